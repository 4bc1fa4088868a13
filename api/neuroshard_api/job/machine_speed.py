"""How much slower a machine was in training than while it was profiled, where processes compute on its processors.

Two things make it slower, and neither is the plan's doing. Cores run slower, which a fixed loop tells: all parts take
that many times as long. And processes share cores. What computation waits for a processor is measured: it is what its
time has beyond its processor time. An exchange takes the inverse of the share of time for which a rank had a processor
when it could run.

Predicted times are those of a rank with a core to itself, as the profile measured it. Where they were corrected by the
steps of a training, that training's machine is in them, and nothing is known of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.job.status import StepCostStatus
from neuroshard_api.job.step_cost import planned_times, slowest_rank

LEAST_SLOWDOWN: Final = 1.1
"""Loops of undisturbed cores differ by 5 %, and so do times: a smaller slow-down is not named."""
LEAST_SHARE: Final = 0.5
"""Of the time in which a rank could run: with less of a processor, its exchanges wait for other things than shares."""
_MICROSECONDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """The processors that one rank had."""

    rank: int
    core_slowdown: float
    """Processor time of the fixed loop over that in the profile."""
    processor_share: float
    """Of the time in which the rank could run: the part in which it had a processor."""
    compute_wait_ms: float
    """Of a step's lookups and updates: waiting for a processor."""
    dense_wait_ms: float
    """The same of the dense part's passes, of the rank that is slowest in them."""

    @property
    def text(self) -> str:
        """One sentence on it."""
        parts = []
        if self.core_slowdown >= LEAST_SLOWDOWN:
            parts.append(f"its cores took {self.core_slowdown:.2f} times as long for the same loop")
        if self.processor_share * LEAST_SLOWDOWN <= 1:
            parts.append(
                f"rank {self.rank} had a processor for {100 * self.processor_share:.0f} % of the time in which it "
                f"could run, and waited for one for {self.compute_wait_ms:.3f} ms of its lookups and updates and for "
                f"{self.dense_wait_ms:.3f} ms of its dense part"
            )
        return f"The machine was slower than while it was profiled, which no plan predicts: {', and '.join(parts)}."


def machine_speed(report: StepReport, hardware: Hardware | None, *, source: str) -> MachineSpeed | None:
    """Return the speed for the rank that `measured_cost` is of. None: as in the profile, on devices, or not known.

    Args:
        report: of steps on this machine.
        hardware: of the profile that the prediction is of. None: not known.
        source: of the prediction.
    """
    if hardware is None or hardware.core_loop_ms is None or {hardware.source, report.source} != {source}:
        return None
    slowest = slowest_rank(planned_times(report.ranks)).rank
    times = next(each for each in report.ranks if each.rank == slowest)
    if times.core_loop_ms is None or times.compute_processor_ms is None or times.processor_wait_share is None:
        return None
    compute_ms = times.forward_compute_ms + times.backward_compute_ms
    speed = MachineSpeed(
        rank=slowest,
        core_slowdown=max(1.0, times.core_loop_ms / hardware.core_loop_ms),
        processor_share=1 - times.processor_wait_share,
        compute_wait_ms=max(0.0, compute_ms - times.compute_processor_ms),
        dense_wait_ms=_dense_wait_ms(report.ranks),
    )
    is_slower = speed.core_slowdown >= LEAST_SLOWDOWN or speed.processor_share * LEAST_SLOWDOWN <= 1
    return speed if is_slower else None


def on_machine(predicted: StepCostStatus, speed: MachineSpeed) -> StepCostStatus:
    """Return the predicted cost on a machine of that speed.

    Without exchanges, and so without a total, where the rank had too little of a processor for them.
    """
    compute = _scaled(predicted.compute_microseconds, speed.core_slowdown, wait_ms=speed.compute_wait_ms)
    expansion = _scaled(predicted.expansion_microseconds, speed.core_slowdown)
    total = forward = backward = None
    if speed.processor_share >= LEAST_SHARE:
        in_exchanges = speed.core_slowdown / speed.processor_share
        forward = _scaled(predicted.forward_communication_microseconds, in_exchanges)
        backward = _scaled(predicted.backward_communication_microseconds, in_exchanges)
        total = sum(each or 0 for each in (compute, forward, backward, expansion))
    return StepCostStatus(
        total_microseconds=total,
        compute_microseconds=compute,
        forward_communication_microseconds=forward,
        backward_communication_microseconds=backward,
        expansion_microseconds=expansion,
        dense_microseconds=_scaled(predicted.dense_microseconds, speed.core_slowdown, wait_ms=speed.dense_wait_ms),
        source=predicted.source,
    )


def _scaled(microseconds: int | None, factor: float, *, wait_ms: float = 0.0) -> int | None:
    return None if microseconds is None else round(microseconds * factor + _MICROSECONDS * wait_ms)


def _dense_wait_ms(ranks: Sequence[RankTimes]) -> float:
    """Return the waiting for a processor in the dense part, of the rank that is slowest in it; 0: not known."""
    known = [each for each in ranks if each.dense_passes_ms is not None and each.dense_processor_ms is not None]
    if not known:
        return 0.0
    times = max(known, key=lambda each: each.dense_passes_ms or 0.0)
    own_ms = (times.dense_forward_ms or 0.0) + (times.dense_backward_ms or 0.0)
    return max(0.0, own_ms - (times.dense_processor_ms or 0.0))
