"""Which parts of a step took another time than expected, on which rank, and why: a sentence for each.

Expected is what a plan predicts, or what a trial of the plan took before the training. The cause is what the ranks
measured of themselves: waiting for a processor, the speed of their cores, and the part's own waits.
"""

from dataclasses import dataclass
from typing import Final

from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.job.late_ranks import SCARCE_SHARE
from neuroshard_api.job.machine_speed import LEAST_SLOWDOWN
from neuroshard_api.job.status import HostBoundPart, StepCostStatus
from neuroshard_api.job.step_cost import (
    host_bound_parts,
    is_same_device,
    measured_cost,
    planned_times,
    simulation_note,
    slowest_rank,
)

TOTAL_OFF_SHARE: Final = 0.25
"""Of the expected total: from there on the part that is off most is named, however little that is of the part."""
PART_OFF_SHARE: Final = 0.4
"""Of a part's expected time: from there on it is named."""
LEAST_OFF_SHARE: Final = 0.02
"""Of the expected total: a part that is off by less is not worth a sentence."""
CAUSE_SHARE: Final = 0.5
"""Of a part's excess: what accounts for as much is its cause."""
_MICROSECONDS: Final = 1000
_PARTS: Final = {
    HostBoundPart.COMPUTE: ("lookups and updates", "compute_microseconds"),
    HostBoundPart.FORWARD_COMMUNICATION: ("forward exchange", "forward_communication_microseconds"),
    HostBoundPart.BACKWARD_COMMUNICATION: ("backward exchange", "backward_communication_microseconds"),
    HostBoundPart.DENSE: ("dense part", "dense_microseconds"),
}
_EXCHANGES: Final = {HostBoundPart.FORWARD_COMMUNICATION, HostBoundPart.BACKWARD_COMMUNICATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffPart:
    part: HostBoundPart
    expected_ms: float
    measured_ms: float

    @property
    def off_ms(self) -> float:
        return self.measured_ms - self.expected_ms

    def is_off(self, least_ms: float) -> bool:
        return abs(self.off_ms) >= max(least_ms, PART_OFF_SHARE * self.expected_ms)


def off_parts(
    predicted: StepCostStatus,
    report: StepReport,
    *,
    trial: StepReport | None = None,
    core_loop_ms: float | None = None,
) -> tuple[str, ...]:
    """Return the sentences, those of the largest differences first; none where all parts are as expected.

    Args:
        predicted: of the plan.
        report: of the training's steps.
        trial: of steps under the plan before the training. None: the plan's prediction is all that is known.
        core_loop_ms: of the fixed loop in the profile. None: not known.
    """
    measured = measured_cost(report)
    if is_same_device(predicted, measured) is False or simulation_note(predicted, measured) is not None:
        return ()
    expected: StepCostStatus = predicted if trial is None else measured_cost(trial)
    bound = {*host_bound_parts(measured), *host_bound_parts(expected)}
    total_ms = (expected.total_microseconds or 0) / _MICROSECONDS
    found = [
        _OffPart(part=part, expected_ms=(before or 0) / _MICROSECONDS, measured_ms=after / _MICROSECONDS)
        for part, (_, field) in _PARTS.items()
        if part not in bound
        and (after := getattr(measured, field)) is not None
        and ((before := getattr(expected, field)) is not None or part is not HostBoundPart.DENSE)
    ]
    least_ms = LEAST_OFF_SHARE * total_ms
    off = [each for each in found if each.is_off(least_ms)]
    of_embeddings = [each for each in found if each.part is not HostBoundPart.DENSE]
    off_ms = (measured.total_microseconds or 0) / _MICROSECONDS - total_ms
    is_total_off = not bound - {HostBoundPart.DENSE} and abs(off_ms) >= TOTAL_OFF_SHARE * total_ms
    if is_total_off and not any(each in of_embeddings for each in off):
        off.append(max(of_embeddings, key=lambda each: abs(each.off_ms)))
    off.sort(key=lambda each: -abs(each.off_ms))
    return tuple(_sentence(each, report, trial, core_loop_ms) for each in off)


def _sentence(off: _OffPart, report: StepReport, trial: StepReport | None, core_loop_ms: float | None) -> str:
    name, _ = _PARTS[off.part]
    if off.part is HostBoundPart.DENSE:
        times = max(report.ranks, key=lambda each: each.dense_passes_ms or 0.0)
    else:
        rank = slowest_rank(planned_times(report.ranks)).rank
        times = next(each for each in report.ranks if each.rank == rank)
    source = "predicted" if trial is None else "in the trial"
    percent = f", {100 * off.off_ms / off.expected_ms:+.0f} %" if off.expected_ms else ""
    text = f"Rank {times.rank}'s {name}: {off.measured_ms:.3f} ms, {off.expected_ms:.3f} {source}{percent}."
    return f"{text} Most likely cause: {_cause(off, times, report, trial, core_loop_ms)}."


def _cause(
    off: _OffPart, times: RankTimes, report: StepReport, trial: StepReport | None, core_loop_ms: float | None
) -> str:
    if off.part in _EXCHANGES and len(report.ranks) == 1 and trial is None:
        return "TorchRec's own work around collectives that exchange nothing, which no plan prices"
    before = None if trial is None else next((each for each in trial.ranks if each.rank == times.rank), None)
    now, sign = ("", 1.0) if off.off_ms >= 0 else (" in the trial", -1.0)
    wait_ms, wait_before_ms = _processor_wait_ms(off.part, times), _processor_wait_ms(off.part, before)
    if sign * (wait_ms - wait_before_ms) >= CAUSE_SHARE * abs(off.off_ms):
        longer_ms = max(wait_ms, wait_before_ms)
        return f"it waited for a processor for {longer_ms:.3f} ms of it{now}, since processes share the processors"
    loop_ms = core_loop_ms if before is None else before.core_loop_ms
    slowdown = times.core_loop_ms / loop_ms if times.core_loop_ms and loop_ms else 1.0
    if slowdown**sign >= LEAST_SLOWDOWN:
        became = "slower" if sign > 0 else "faster"
        return f"its core became {became}, and took {slowdown:.2f} times as long for the same loop"
    shares = (_wait_share(report), 0.0 if trial is None else _wait_share(trial))
    is_exchange = off.part in _EXCHANGES or (times.dense_collectives_ms or 0.0) >= CAUSE_SHARE * abs(off.off_ms)
    if is_exchange and sign * (shares[0] - shares[1]) >= SCARCE_SHARE:
        share = f"{100 * max(shares):.0f} % of the time"
        return f"a process waited for a processor for {share} in which it could run{now}"
    if trial is None:
        return "the cost models, which are of calls that are timed alone, without the rest of a step around them"
    return "not known: the processors were as in the trial"


def _processor_wait_ms(part: HostBoundPart, times: RankTimes | None) -> float:
    """Return the waiting for a processor within a part; 0 where it is not known."""
    if times is not None and part is HostBoundPart.COMPUTE and times.compute_processor_ms is not None:
        return max(0.0, times.forward_compute_ms + times.backward_compute_ms - times.compute_processor_ms)
    if times is not None and part is HostBoundPart.DENSE and times.dense_processor_ms is not None:
        passes_ms = (times.dense_forward_ms or 0.0) + (times.dense_backward_ms or 0.0)
        return max(0.0, passes_ms - times.dense_processor_ms)
    return 0.0


def _wait_share(report: StepReport) -> float:
    """Return the share of the rank that waited for a processor most: in an exchange all wait for it."""
    return max(each.processor_wait_share or 0.0 for each in report.ranks)
