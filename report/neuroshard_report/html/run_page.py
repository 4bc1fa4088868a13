"""A run as one HTML file: what was predicted next to what was measured, part by part and rank by rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceCost
from neuroshard_api.documents.progress import DIVERGED, GuardRecord, TrainingProgress, by_variant, of_model
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.job.late_ranks import late_ranks_note
from neuroshard_api.job.machine_speed import machine_speed, on_machine
from neuroshard_api.job.off_parts import off_parts
from neuroshard_api.job.status import StepCostStatus
from neuroshard_api.job.step_cost import (
    PlannedTimes,
    host_bound_parts,
    is_host_bound,
    is_same_device,
    measured_cost,
    measurement_notes,
    other_device_note,
    planned_times,
    predicted_cost,
    simulation_note,
)

from neuroshard_report.html.curves import NAMES, curves
from neuroshard_report.html.page import environment, page_style
from neuroshard_report.html.timeline import StageSpan, stage_bars, start_lines
from neuroshard_report.quantities import format_ms, format_percent

PARTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "index exchange": ("input_communication", ("input_communication_ms",), ("input_communication_ms",)),
    "forward compute": ("forward_compute", ("forward_compute_ms",), ("forward_compute_ms",)),
    "forward exchange and wait": (
        "forward_communication",
        ("wait_ms", "forward_communication_ms"),
        ("forward_communication_ms",),
    ),
    "backward exchange": ("backward_communication", ("backward_communication_ms",), ("backward_communication_ms",)),
    "backward compute and updates": (
        "backward_compute",
        ("backward_compute_ms", "dense_update_ms"),
        ("backward_compute_ms",),
    ),
    "rows from host memory": ("forward_compute", ("host_link_ms",), ()),
    "expansion of repeats": ("expansion", ("expansion_ms",), ("expansion_ms",)),
    "wait for servers": ("forward_communication", ("server_exposed_ms",), ("server_ms",)),
}
"""Parts of the embedding part: the host-bound share, fields of a `DeviceCost`, and fields of `RankTimes`.

Measured, rows from host memory are in the compute that waits for them.
"""
UNMEASURED = tuple(name for name, (_, _, measured) in PARTS.items() if not measured)
COLORS = dict(zip(PARTS, ("c2", "c0", "c3", "c4", "c5", "c7", "c8", "c8"), strict=True))
"""Classes of the parts, as in the report of a plan."""
MAX_RANKS = 64
"""Ranks in the table; of more, those with the longest steps."""
MICROSECONDS = 1000
"""In a millisecond."""
NO_BREAK = "\N{NO-BREAK SPACE}"
LEAST_MS = 0.0005
"""Less is shown as nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """One rank's times of the embedding part, in milliseconds, by the parts' names."""

    rank: int
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    host_bound: tuple[str, ...]
    """Names of the parts that the host bound in most steps."""
    step_ms: float
    tried: Mapping[str, float] | None = None
    """Of the trial of the plan. None: there was none."""

    @property
    def predicted_ms(self) -> float:
        """Sum of the predicted parts."""
        return sum(self.predicted.values())

    @property
    def measured_ms(self) -> float:
        """Sum of the measured parts."""
        return sum(self.measured.values())

    @property
    def tried_ms(self) -> float:
        """Sum of the parts in the trial; 0 without one."""
        return sum((self.tried or {}).values())

    @property
    def expected(self) -> Mapping[str, float]:
        """The parts that errors are of: those of the trial, without one the predicted ones."""
        return self.predicted if self.tried is None else self.tried

    @property
    def expected_ms(self) -> float:
        """Sum of the expected parts."""
        return sum(self.expected.values())


def render_run(
    plan: Plan,
    *,
    steps: StepReport | None,
    progress: TrainingProgress | None,
    drift: DriftReport | None = None,
    stages: Sequence[StageSpan] = (),
    hardware: Hardware | None = None,
    trial: StepReport | None = None,
    failure: str | None = None,
    refresh_s: int | None = None,
) -> str:
    """Return the page of a run; what is not there yet is left out. Equal arguments give equal pages.

    Args:
        plan: that the run trains under.
        steps: measured under it.
        progress: of the training.
        drift: of the training under this plan.
        stages: of the run, with every attempt at them.
        hardware: of the profile that the plan's price is of. None: not known.
        trial: of steps under the plan before the training. None: there was none.
        failure: sentence on what ended the run. None: it is under way, or did not fail.
        refresh_s: seconds after which a browser loads the page again. None: the run has ended.
    """
    ranks = rank_parts(plan, steps, trial)
    predicted, measured = predicted_cost(plan), None if steps is None else measured_cost(steps)
    notes: list[str] = []
    differences: Sequence[str] = ()
    is_compared = False
    if measured is not None:
        compared = (simulation_note(predicted, measured), other_device_note(predicted, measured))
        notes = [*filter(None, compared), *measurement_notes(measured)]
        speed = None if steps is None else machine_speed(steps, hardware, source=plan.predicted.source)
        if speed is not None and trial is None:
            as_slow = on_machine(predicted, speed).total_microseconds
            sentence = f" For such a machine, {format_ms(as_slow / MICROSECONDS)} ms are predicted." if as_slow else ""
            notes.append(f"{speed.text}{sentence}")
        notes += filter(None, [None if steps is None else late_ranks_note(steps)])
        is_compared = is_same_device(predicted, measured) is not False
        if steps is not None:
            loop_ms = None if hardware is None else hardware.core_loop_ms
            differences = off_parts(predicted, steps, trial=trial, core_loop_ms=loop_ms)
    slowest = max(ranks, key=lambda each: each.measured_ms, default=None)
    shown = sorted(ranks, key=lambda each: -each.step_ms)[:MAX_RANKS]
    names = [
        name
        for name in PARTS
        if any(each.predicted[name] >= LEAST_MS or each.measured[name] >= LEAST_MS for each in ranks)
    ]
    return (
        environment()
        .get_template("run.html.j2")
        .render(
            plan=plan,
            steps=steps,
            progress=progress,
            drift=drift,
            curves=curves(progress),
            stages=stage_bars(stages, progress),
            starts=start_lines(progress),
            failure=failure,
            refresh_s=refresh_s,
            guards=[] if progress is None else _guards(progress),
            style=page_style(),
            metric_names=NAMES,
            metrics={} if progress is None else of_model(progress.metrics),
            variants={} if progress is None else by_variant(progress.numbers),
            diverged=DIVERGED,
            unmeasured=UNMEASURED,
            parts=names,
            others=[] if steps is None else _other_rows(predicted, steps, trial, is_compared=is_compared),
            colors=COLORS,
            ranks=sorted(shown, key=lambda each: each.rank),
            slowest=slowest,
            longest_ms=max((max(each.predicted_ms, each.tried_ms, each.measured_ms) for each in ranks), default=0.0)
            or 1.0,
            differences=differences,
            notes=notes,
            error=error_text if is_compared else _no_error,
            sum_error=error_text if is_compared and not is_host_bound(measured) else _no_error,
        )
    )


def _other_rows(
    predicted: StepCostStatus, steps: StepReport, trial: StepReport | None, *, is_compared: bool
) -> Sequence[tuple[str, float | None, float | None, float, str]]:
    """Return predicted, tried, and measured times of what is not in the sum, and the error; None: not known."""
    measured, tried = measured_cost(steps), None if trial is None else measured_cost(trial)
    is_compared = is_compared and not host_bound_parts(measured)
    rows = []
    for name, field in (
        ("servers next to the step", "server_hidden_microseconds"),
        ("dense part", "dense_microseconds"),
        ("whole step", "step_microseconds"),
    ):
        first, second, last = (None if each is None else getattr(each, field) for each in (predicted, tried, measured))
        if last is not None:
            expected, found = (second if trial is not None else first) or 0, last / MICROSECONDS
            error = error_text(expected / MICROSECONDS, found) if is_compared else ""
            rows.append((f"{name}, slowest rank", _ms(first), _ms(second), found, error))
    return rows


def _ms(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / MICROSECONDS


def rank_parts(plan: Plan, steps: StepReport | None, trial: StepReport | None = None) -> Sequence[RankParts]:
    """Return predicted and measured parts of each rank; a rank of a group has the costs of its place in the group."""
    if steps is None:
        return ()
    tried = {}
    if trial is not None:
        tried = {
            times.rank: _measured_parts(times, planned)
            for times, planned in zip(trial.ranks, planned_times(trial.ranks), strict=True)
        }
    places = {rank: place for members in plan.groups for place, rank in enumerate(members)}
    return [
        _parts(times, planned, plan.predicted.devices[places[times.rank]], tried.get(times.rank))
        for times, planned in zip(steps.ranks, planned_times(steps.ranks), strict=True)
        if times.rank in places
    ]


def _measured_parts(times: RankTimes, planned: PlannedTimes) -> dict[str, float]:
    without_waits = {
        "index exchange": planned.input_communication_ms,
        "forward exchange and wait": planned.forward_communication_ms,
        "backward exchange": planned.backward_communication_ms,
    }
    return {**{name: _sum(times, fields) for name, (_, _, fields) in PARTS.items()}, **without_waits}


def _parts(times: RankTimes, planned: PlannedTimes, cost: DeviceCost, tried: Mapping[str, float] | None) -> RankParts:
    bound = times.host_bound
    return RankParts(
        rank=times.rank,
        predicted={name: _sum(cost, fields) for name, (_, fields, _) in PARTS.items()},
        measured=_measured_parts(times, planned),
        tried=tried,
        host_bound=tuple(
            name
            for name, (part, _, _) in PARTS.items()
            if bound is not None and name not in UNMEASURED and bound.binds(part)
        ),
        step_ms=times.step_ms,
    )


def _sum(holder: DeviceCost | RankTimes, fields: Sequence[str]) -> float:
    return sum(getattr(holder, field) or 0.0 for field in fields)


def error_text(predicted_ms: float, measured_ms: float) -> str:
    """Return the excess of a measured time over the predicted one; empty where nothing was predicted."""
    if predicted_ms < LEAST_MS:
        return ""
    share = measured_ms / predicted_ms - 1
    return f"{'+' if share >= 0 else '-'}{format_percent(abs(share))}".replace(" ", NO_BREAK)


def _no_error(_predicted_ms: float, _measured_ms: float) -> str:
    return ""


def _guards(progress: TrainingProgress) -> Sequence[tuple[str, GuardRecord]]:
    """Return the records of the guards of narrow types, by what they guard."""
    named = (("pooled embeddings", progress.guard), ("gradients of the dense part", progress.gradient_guard))
    return [(name, record) for name, record in named if record is not None]
