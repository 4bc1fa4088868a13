"""The cost of a step in the words of a job's status: what a plan predicts, and what its workers measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup
from neuroshard_api.documents.step_report import MeasuredDuplication, RankTimes, StepReport
from neuroshard_api.job.status import (
    BestBaseline,
    DuplicationFactor,
    HostBoundPart,
    LeverStatus,
    MeasuredCost,
    PredictedCost,
    StepCostStatus,
)
from neuroshard_api.sharding.collectives import CollectiveKind, CollectiveTime
from neuroshard_api.sharding.kinds import Family

MIB = 2**20
_HOST_BOUND = {
    HostBoundPart.COMPUTE: ("forward_compute", "backward_compute"),
    HostBoundPart.FORWARD_COMMUNICATION: ("input_communication", "forward_communication"),
    HostBoundPart.BACKWARD_COMMUNICATION: ("backward_communication",),
    HostBoundPart.EXPANSION: ("expansion",),
}
_DENSE = ("dense_forward", "dense_backward", "dense_collectives")
_PART_NAMES = {
    HostBoundPart.COMPUTE: "compute",
    HostBoundPart.FORWARD_COMMUNICATION: "forward all-to-all",
    HostBoundPart.BACKWARD_COMMUNICATION: "backward all-to-all",
    HostBoundPart.EXPANSION: "expansion",
    HostBoundPart.DENSE: "dense part",
}
BUSY_PERCENT = 25
"""Of a worker's time: where it waits for a processor for this long, others slow its steps by a third or more."""
SHOWN_GROUPS = 64
"""Duplication groups in a status, the first ones of the plan."""


def predicted_cost(plan: Plan) -> PredictedCost:
    """Return the predicted cost of the slowest device, whose parts add up to the total but for rounding."""
    slowest = plan.predicted.devices[plan.slowest_device]
    return PredictedCost(
        total_microseconds=_microseconds(plan.predicted.total_ms),
        compute_microseconds=_microseconds(slowest.compute_ms + slowest.dense_update_ms + slowest.host_link_ms),
        forward_communication_microseconds=_microseconds(
            slowest.wait_ms
            + slowest.input_communication_ms
            + slowest.forward_communication_ms
            + slowest.server_exposed_ms
        ),
        backward_communication_microseconds=_microseconds(slowest.backward_communication_ms),
        expansion_microseconds=None if slowest.expansion_ms is None else _microseconds(slowest.expansion_ms),
        server_hidden_microseconds=_microseconds(slowest.server_hidden_ms or 0.0)
        if plan.servers is not None and plan.request.looks_ahead
        else None,
        dense_microseconds=None if plan.dense_cost is None else _microseconds(plan.dense_cost.passes_ms),
        step_microseconds=None
        if plan.step is None or plan.step.dense_ms is None
        else _microseconds(plan.step.total_ms),
        max_device_memory_mib=max(device.used_bytes for device in plan.memory) // MIB if plan.memory else None,
        source=plan.predicted.source,
        duplication_factors=_factors(plan.deduplication),
    )


def baseline_cost(plan: GivenPlan) -> BestBaseline | None:
    """Return the cheapest baseline under the same cost models. None: no baseline found a plan."""
    found = [(each.total_ms, each.algorithm, each.step_ms) for each in plan.baselines if each.total_ms is not None]
    if not found:
        return None
    total_ms, algorithm, step_ms = min(found, key=lambda each: each[:2])
    is_whole = step_ms is not None and plan.dense_cost is not None
    return BestBaseline(
        algorithm=algorithm.value,
        total_microseconds=_microseconds(total_ms),
        step_microseconds=_microseconds(step_ms or 0.0) if is_whole else None,
    )


def levers_of(plan: GivenPlan) -> tuple[LeverStatus, ...] | None:
    """Return the levers that a plan names, what saves most first. None: it names none."""
    found = tuple(
        LeverStatus(
            name=each.name.value,
            text=each.text,
            total_microseconds=_microseconds(each.total_ms),
            num_samples=each.num_samples,
            saved_percent=round(100 * each.saved_share),
            field=each.field,
        )
        for each in plan.levers or ()
    )
    return found or None


@dataclass(frozen=True, slots=True)
class PlannedTimes:
    """What a plan predicts of a step, as one rank measured it, in milliseconds."""

    rank: int
    compute_ms: float
    input_communication_ms: float
    forward_communication_ms: float
    """With the waits for ranks whose lookups take longer, and for embedding servers."""
    backward_communication_ms: float
    expansion_ms: float
    late_ms: float
    """Other waiting in these exchanges, for ranks that came later to them; not in the total."""

    @property
    def total_ms(self) -> float:
        """Sum of the parts that a plan predicts."""
        forward_ms = self.input_communication_ms + self.forward_communication_ms
        return self.compute_ms + forward_ms + self.backward_communication_ms + self.expansion_ms


def planned_times(ranks: Sequence[RankTimes]) -> Sequence[PlannedTimes]:
    """Return the predicted parts of a step as each rank measured them.

    A plan knows one reason for a rank to come late to an exchange: longer lookups. What ranks wait beyond that is
    theirs by the machine, such as readers and other programs on the same cores.
    """
    longest_ms = max(times.forward_compute_ms for times in ranks)
    found = []
    for times in ranks:
        input_late_ms, forward_late_ms, backward_late_ms = (
            min(wait_ms, whole_ms)
            for wait_ms, whole_ms in (
                (times.input_peer_wait_ms, times.input_communication_ms),
                (times.forward_peer_wait_ms, times.forward_communication_ms),
                (times.backward_peer_wait_ms, times.backward_communication_ms),
            )
        )
        forward_late_ms = max(0.0, forward_late_ms - (longest_ms - times.forward_compute_ms))
        found.append(
            PlannedTimes(
                rank=times.rank,
                compute_ms=times.forward_compute_ms + times.backward_compute_ms,
                input_communication_ms=times.input_communication_ms - input_late_ms,
                forward_communication_ms=times.forward_communication_ms - forward_late_ms + (times.server_ms or 0.0),
                backward_communication_ms=times.backward_communication_ms - backward_late_ms,
                expansion_ms=times.expansion_ms,
                late_ms=input_late_ms + forward_late_ms + backward_late_ms,
            )
        )
    return found


def slowest_rank(ranks: Sequence[PlannedTimes]) -> PlannedTimes:
    """Return the times of the rank that is slowest in what a plan predicts."""
    return max(ranks, key=lambda times: times.total_ms)


def embedding_ms(ranks: Sequence[RankTimes]) -> float:
    """Return the part of a step that a plan predicts, of the rank that is slowest in it, in milliseconds."""
    return slowest_rank(planned_times(ranks)).total_ms


def measured_cost(report: StepReport) -> MeasuredCost:
    """Return the measured cost of the rank that is slowest in what a plan predicts."""
    ranks = planned_times(report.ranks)
    times = slowest_rank(ranks)
    slowest = report.ranks[ranks.index(times)]
    late_ms = max(each.late_ms for each in ranks)
    return MeasuredCost(
        total_microseconds=_microseconds(times.total_ms),
        compute_microseconds=_microseconds(times.compute_ms),
        forward_communication_microseconds=_microseconds(times.input_communication_ms + times.forward_communication_ms),
        backward_communication_microseconds=_microseconds(times.backward_communication_ms),
        peer_wait_microseconds=_microseconds(late_ms) if _tells_waits(report.ranks) else None,
        expansion_microseconds=None if report.duplication is None else _microseconds(slowest.expansion_ms),
        server_hidden_microseconds=None
        if slowest.server_hidden_ms is None
        else _microseconds(slowest.server_hidden_ms),
        dense_microseconds=_slowest_dense(report.ranks),
        step_microseconds=_microseconds(max(rank.step_ms for rank in report.ranks)),
        steps=report.first_step + report.num_steps,
        source=report.source,
        duplication_factors=_factors(report.duplication),
        host_bound_parts=_host_bound_parts(slowest, report.ranks) or None,
        processor_wait_percent=_processor_wait_percent(report.ranks),
    )


@dataclass(frozen=True, slots=True)
class ComparedCollective:
    """A collective as a plan predicts it and as its workers measured it."""

    kind: CollectiveKind
    family: Family | None
    predicted: CollectiveTime
    measured: CollectiveTime


def compared_collectives(plan: Plan, report: StepReport) -> tuple[ComparedCollective, ...]:
    """Return the collectives of which both have a time, in the plan's order.

    Predicted: those of the slowest device. Measured: those of the rank that `measured_cost` is of, without the waits
    for ranks that came later.
    """
    slowest = slowest_rank(planned_times(report.ranks)).rank
    measured = {
        (each.kind, each.family): CollectiveTime(
            kind=each.kind,
            family=each.family,
            forward_ms=each.forward_ms - (each.forward_wait_ms or 0.0),
            backward_ms=each.backward_ms - (each.backward_wait_ms or 0.0),
        )
        for times in report.ranks
        if times.rank == slowest
        for each in times.collectives
    }
    return tuple(
        ComparedCollective(each.kind, each.family, each, measured[each.kind, each.family])
        for each in plan.predicted.devices[plan.slowest_device].collectives
        if (each.kind, each.family) in measured
    )


def error_percent(predicted: StepCostStatus, measured: StepCostStatus) -> int | None:
    """Return the excess of the measured total over the predicted one.

    None: one of them is 0 or not known, it was measured on another device than it was predicted for, or the host bound
    a part of it, so that the excess is not the prediction's error.
    """
    if is_host_bound(measured):
        return None
    if not predicted.total_microseconds or measured.total_microseconds is None:
        return None
    if is_same_device(predicted, measured) is False:
        return None
    return round(100 * (measured.total_microseconds / predicted.total_microseconds - 1))


def host_bound_parts(measured: StepCostStatus) -> tuple[HostBoundPart, ...]:
    """Return the parts that the host bound; those of a prediction are none."""
    return (measured.host_bound_parts or ()) if isinstance(measured, MeasuredCost) else ()


def is_host_bound(measured: StepCostStatus | None) -> bool:
    """Return whether the host bound a part of the measured total."""
    return measured is not None and bool(set(host_bound_parts(measured)) - {HostBoundPart.DENSE})


def measurement_notes(measured: StepCostStatus) -> list[str]:
    """Return the sentences on what the measured times have in them besides the plan's work."""
    return list(filter(None, (_host_bound_note(measured), _processor_note(measured))))


def is_busy(measured: StepCostStatus | None) -> bool:
    """Return whether a worker waited for a processor so long that its times are those of the machine's other work."""
    return isinstance(measured, MeasuredCost) and (measured.processor_wait_percent or 0) >= BUSY_PERCENT


def _processor_note(measured: StepCostStatus) -> str | None:
    if not isinstance(measured, MeasuredCost) or not is_busy(measured):
        return None
    return (
        f"A worker waited for a processor for {measured.processor_wait_percent} % of the time in which it could run, "
        "since more processes and threads ran than there are processors: measured times say little of the plan."
    )


def _host_bound_note(measured: StepCostStatus) -> str | None:
    """Return the sentence about parts that the host bound. None: there are none."""
    parts = [_PART_NAMES[part] for part in host_bound_parts(measured)]
    if not parts:
        return None
    return (
        "The host launches this step's kernels later than the device could run them: measured times of parts include "
        f"waiting for the host ({', '.join(parts)}), and are not compared with the prediction."
    )


def is_same_device(predicted: StepCostStatus, measured: StepCostStatus) -> bool | None:
    """Return whether both are of one product; drivers write it with spaces, labels with hyphens. None: not known."""
    if not predicted.source or not measured.source:
        return None
    return _device_of(predicted) == _device_of(measured)


def other_device_note(predicted: StepCostStatus, measured: StepCostStatus) -> str | None:
    """Return the note on two devices that `simulation_note` does not explain. None: they are one, or not known."""
    if simulation_note(predicted, measured) is not None or is_same_device(predicted, measured) is not False:
        return None
    return "Measured on other devices than predicted for: the two cannot be compared."


def simulation_note(predicted: StepCostStatus, measured: StepCostStatus) -> str | None:
    """Return the note that any comparison of the two needs. None: both are simulated, or neither is."""
    sources = (predicted.source or "", measured.source or "")
    is_simulated = [source.startswith("simulated:") for source in sources]
    if not all(sources) or is_simulated != [True, False]:
        return None
    return (
        f"Predicted by simulated cost models ({sources[0]}), measured on a real device ({sources[1]}): the "
        "difference says how far the simulation is from that device, not how good the plan is."
    )


def lookahead_note(predicted: StepCostStatus, measured: StepCostStatus) -> str | None:
    """Return the sentence on embedding servers next to the steps, by both. None: nothing is looked up ahead."""
    times = predicted.server_hidden_microseconds, measured.server_hidden_microseconds
    if times == (None, None):
        return None
    planned, found = ("-" if each is None else f"{each / 1000:.3f}" for each in times)
    return (
        f"Embedding servers next to the step, by lookahead: {planned} ms predicted, {found} ms measured; what the step "
        "waits for is in the totals."
    )


def dense_note(
    predicted: StepCostStatus,
    measured: StepCostStatus,
    *,
    as_slow: StepCostStatus | None = None,
    tried: StepCostStatus | None = None,
) -> str:
    """Return the dense part's time of both, and how far the measured one is above the expected one.

    Args:
        predicted: of the plan.
        measured: of the training.
        as_slow: the prediction for a machine as slow as it was in training. If unset: it was as while profiled.
        tried: of a trial before the training, which is what is expected. If unset: the prediction is.
    """
    planned, found = predicted.dense_microseconds, measured.dense_microseconds
    parts = ["not predicted" if planned is None else f"{planned / 1000:.3f} ms predicted"]
    if tried is not None and tried.dense_microseconds is not None:
        planned = tried.dense_microseconds
        parts.append(f"{planned / 1000:.3f} ms in the trial")
    parts.append("not measured" if found is None else f"{found / 1000:.3f} ms measured")
    is_bound = HostBoundPart.DENSE in host_bound_parts(measured)
    if planned and found is not None and is_same_device(predicted, measured) is not False and not is_bound:
        parts.append(f"{100 * (found / planned - 1):+.0f} %")
        slow = None if as_slow is None else as_slow.dense_microseconds
        if slow:
            parts.append(f"{100 * (found / slow - 1):+.0f} % of {slow / 1000:.3f} ms as slow")
    return f"Dense part, not in the totals: {', '.join(parts)}."


def _factors(groups: Sequence[DeduplicatedGroup | MeasuredDuplication] | None) -> tuple[DuplicationFactor, ...] | None:
    if not groups:
        return None
    shown = groups[:SHOWN_GROUPS]
    return tuple(DuplicationFactor(group=each.group[:64], factor=f"{each.factor:.4g}") for each in shown)


def _device_of(cost: StepCostStatus) -> str:
    """Return the product that a source names."""
    return (cost.source or "").partition(":")[2].replace(" ", "-")


def _slowest_dense(ranks: Sequence[RankTimes]) -> int | None:
    """Return the dense part's passes of the rank that is slowest in them. None: it is not known."""
    known = [ms for ms in (rank.dense_passes_ms for rank in ranks) if ms is not None]
    return _microseconds(max(known)) if known else None


def _host_bound_parts(slowest: RankTimes, ranks: Sequence[RankTimes]) -> tuple[HostBoundPart, ...]:
    """Return the parts that the host bound: of the rank that the cost is of, the dense part on any rank."""
    found = [part for part, names in _HOST_BOUND.items() if slowest.host_bound and slowest.host_bound.binds(*names)]
    dense = any(each.host_bound is not None and each.host_bound.binds(*_DENSE) for each in ranks)
    return (*found, HostBoundPart.DENSE) if dense else tuple(found)


def _processor_wait_percent(ranks: Sequence[RankTimes]) -> int | None:
    """Return the percent of the rank that waited for a processor most. None: it is not known."""
    known = [each.processor_wait_share for each in ranks if each.processor_wait_share is not None]
    return round(100 * max(known)) if known else None


def _tells_waits(ranks: Sequence[RankTimes]) -> bool:
    """Return whether the trainer reported the waits for ranks that came later."""
    return any(each.forward_wait_ms is not None for times in ranks for each in times.collectives)


def _microseconds(milliseconds: float) -> int:
    return round(milliseconds * 1000)
