"""What a run came to: predicted, baseline and measured cost side by side. Reads the run's files."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import hardware_in, measured_in, trial_in

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.job.machine_speed import MachineSpeed
    from neuroshard_api.job.status import BestBaseline, MeasuredCost, StepCostStatus
    from neuroshard_api.job.step_cost import ComparedCollective
    from neuroshard_api.sharding.collectives import CollectiveTime
    from rich.console import RenderableType


_PARTS = ("compute", "forward all-to-all", "backward all-to-all", "total")
_ALL_TO_ALLS = 2
"""Collectives of a plan by columns, of indices and of pooled embeddings: rows of the table name these two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """Costs and metrics of a run; what did not take place is None."""

    job: str
    num_devices: int
    predicted: "StepCostStatus | None"
    """None: the plan was given without a price."""
    baseline: "BestBaseline | None"
    measured: "MeasuredCost | None"
    error_percent: int | None
    """How far measured is above predicted by the cost models alone. None: nothing was measured, or not on what was
    predicted for, or the host bound a part of it."""
    progress: "TrainingProgress | None"
    collectives: "tuple[ComparedCollective, ...]" = ()
    """Those that both a priced plan and the step report name."""
    tried: "MeasuredCost | None" = None
    """Of the steps of a trial of the plan before the training. None: there was none."""
    differences: tuple[str, ...] = ()
    """A sentence about each part that took another time than in the trial, without one than predicted."""
    late_ranks: str | None = None
    """Sentence about ranks that come late to exchanges. None: there are none, or it is not known."""
    load_average: float | None = None
    """Of the machine, of the five minutes before the end. None: not asked for."""
    other_processors: float | None = None
    """Used by other programs during the training, at most. None: not known."""
    drift: str | None = None
    """The slow-down that lasts, in one line. None: there is none, or nothing watched for it."""
    speed: "MachineSpeed | None" = None
    """Of the machine in training. None: as while it was profiled, or not known."""

    @property
    def predicted_as_slow(self) -> "StepCostStatus | None":
        """What is predicted for a machine as slow as it was in training. None: it was as while it was profiled."""
        from neuroshard_api.job.machine_speed import on_machine

        if self.speed is None or self.predicted is None:
            return None
        return on_machine(self.predicted, self.speed)

    @property
    def is_same_device(self) -> bool:
        """Whether it was measured on what was predicted for, as far as that is known."""
        from neuroshard_api.job.step_cost import is_same_device

        return (
            self.predicted is not None
            and self.measured is not None
            and is_same_device(self.predicted, self.measured) is not False
        )


def result_of(
    name: str,
    directory: RunDirectory,
    plan: "GivenPlan",
    *,
    load_average: float | None = None,
    other_processors: float | None = None,
) -> RunResult:
    """Return the result of a plan, and of its training if there was one.

    Args:
        name: of the job.
        directory: of the run.
        plan: in force.
        load_average: of the machine, of the five minutes before the end.
        other_processors: used by other programs during the training.
    """
    from neuroshard_api.documents.plan import Plan
    from neuroshard_api.job.late_ranks import late_ranks_note
    from neuroshard_api.job.machine_speed import MachineSpeed, machine_speed
    from neuroshard_api.job.off_parts import off_parts
    from neuroshard_api.job.step_cost import (
        baseline_cost,
        compared_collectives,
        error_percent,
        measured_cost,
        predicted_cost,
    )

    report, progress, drift = measured_in(directory)
    trial, hardware = trial_in(directory), hardware_in(directory)
    predicted = predicted_cost(plan) if isinstance(plan, Plan) else None
    measured = None if report is None else measured_cost(report)
    speed: MachineSpeed | None = None
    differences: tuple[str, ...] = ()
    if isinstance(plan, Plan) and predicted is not None and report is not None:
        speed = machine_speed(report, hardware, source=plan.predicted.source)
        loop_ms = None if hardware is None else hardware.core_loop_ms
        differences = off_parts(predicted, report, trial=trial, core_loop_ms=loop_ms)
    error = error_percent(predicted, measured) if predicted is not None and measured is not None else None
    return RunResult(
        job=name,
        num_devices=plan.num_devices,
        predicted=predicted,
        baseline=baseline_cost(plan),
        measured=measured,
        error_percent=error,
        progress=progress,
        collectives=compared_collectives(plan, report) if isinstance(plan, Plan) and report is not None else (),
        tried=None if trial is None else measured_cost(trial),
        differences=differences,
        load_average=load_average,
        other_processors=other_processors,
        late_ranks=None if report is None else late_ranks_note(report),
        drift=None if drift is None else drift.headline,
        speed=speed,
    )


def result_json(result: RunResult) -> str:
    """Return the result as JSON, in the words of a job's status."""
    import json

    def plain(part: "StepCostStatus | BestBaseline | None") -> object:
        return None if part is None else part.model_dump(mode="json", exclude_none=True)

    def way(time: "CollectiveTime") -> dict[str, int]:
        return {f"{name}Microseconds": round(1000 * getattr(time, f"{name}_ms")) for name in ("forward", "backward")}

    data = {
        "job": result.job,
        "numDevices": result.num_devices,
        "predicted": plain(result.predicted),
        "baseline": plain(result.baseline),
        "tried": plain(result.tried),
        "measured": plain(result.measured),
        "errorPercent": result.error_percent,
        "coreSlowdown": None if result.speed is None else round(result.speed.core_slowdown, 3),
        "predictedAsSlow": plain(result.predicted_as_slow),
        "steps": None if result.progress is None else result.progress.step,
        "collectives": [
            {"kind": each.kind, "family": each.family, "predicted": way(each.predicted), "measured": way(each.measured)}
            for each in result.collectives
        ],
        "loadAverage": result.load_average,
        "otherProcessors": result.other_processors,
        "differences": result.differences,
        "lateRanks": result.late_ranks,
        "drift": result.drift,
        "findings": [finding.text for finding in (result.progress and result.progress.findings) or ()],
        "metrics": {} if result.progress is None else dict(result.progress.metrics),
    }
    return json.dumps(data, indent=1) + "\n"


def result_table(result: RunResult) -> "RenderableType":
    """Return the table that ends a run: a row for each part of a step, narrow enough for 60 columns."""
    from neuroshard_report.terminal.tables import TextTable
    from rich.console import Group

    predicted, tried, measured, baseline = result.predicted, result.tried, result.measured, result.baseline
    here = result.predicted_as_slow if tried is None else None
    expected = tried or predicted
    is_compared = expected is not None and measured is not None and result.is_same_device
    errors = _errors(expected, measured) if expected is not None and measured is not None and is_compared else []
    found = {
        "predicted": [] if predicted is None else _times(predicted),
        "as slow": [] if here is None else _times(here),
        "tried": [] if tried is None else _times(tried),
        "measured": [] if measured is None else _times(measured),
        "error": errors if any(errors) else [],
        "baseline": [] if predicted is None or baseline is None else ["", "", "", _ms(baseline.total_microseconds)],
    }
    columns = {name: times for name, times in found.items() if times}
    rows = [(part, *(times[at] for times in columns.values())) for at, part in enumerate(_PARTS)]
    for each in result.collectives if len(result.collectives) > _ALL_TO_ALLS else ():
        name = f"{each.kind} of {each.family or 'all'}".replace("_", " ")
        for way in ("forward", "backward"):
            pair = {"predicted": each.predicted, "measured": each.measured}
            times = [f"{getattr(pair[column], f'{way}_ms'):.3f}" if column in pair else "" for column in columns]
            rows.append((f"  {name}, {way}", *times))
    of_devices = "1 device" if result.num_devices == 1 else f"slowest of {result.num_devices} devices"
    title = f"{result.job}: embedding part of a step, {of_devices}, in ms"
    return Group(title, TextTable(columns=("", *columns), rows=tuple(rows)), *_sources(result), *_notes(result))


def _sources(result: RunResult) -> list[str]:
    """Return the sources of the times in each column."""
    found = [("Predicted", result.predicted), ("Measured", result.measured)]
    sources = [f"{name}: {cost.source}." for name, cost in found if cost is not None and cost.source]
    best = "" if result.baseline is None else f"Best baseline: {result.baseline.algorithm}."
    return [*sources, *filter(None, [best])]


def _notes(result: RunResult) -> list[str]:
    from neuroshard_api.documents.progress import DIVERGED, by_variant, of_model
    from neuroshard_api.job.step_cost import (
        dense_note,
        is_busy,
        lookahead_note,
        measurement_notes,
        other_device_note,
        simulation_note,
    )

    notes: list[str] = []
    if result.predicted is not None and result.measured is not None:
        simulated = simulation_note(result.predicted, result.measured)
        notes += [*filter(None, [simulated]), *measurement_notes(result.measured)]
        notes += _expectation_notes(result)
        if is_busy(result.measured) and result.load_average is not None:
            notes.append(_load_note(result.load_average, result.other_processors))
        notes += [
            f"Group {planned.group}: {found.factor} samples per distinct list, planned {planned.factor}."
            for planned, found in zip(
                result.predicted.duplication_factors or (), result.measured.duplication_factors or (), strict=False
            )
        ]
        if result.measured.expansion_microseconds is not None:
            times = (result.predicted.expansion_microseconds, result.measured.expansion_microseconds)
            predicted_ms, measured_ms = (_ms(each) or "-" for each in times)
            notes.append(
                f"Expansion of repeats: {predicted_ms} ms predicted, {measured_ms} ms measured, in the totals."
            )
        notes += filter(None, [lookahead_note(result.predicted, result.measured)])
        if result.measured.dense_microseconds is not None:
            as_slow = None if result.tried is not None else result.predicted_as_slow
            notes.append(dense_note(result.predicted, result.measured, as_slow=as_slow, tried=result.tried))
        whole = {"predicted": result.predicted, "in the trial": result.tried, "measured": result.measured}
        steps = {name: cost.step_microseconds for name, cost in whole.items() if cost is not None}
        if all(steps.values()):
            notes.append(f"Whole step: {', '.join(f'{_ms(each)} ms {name}' for name, each in steps.items())}.")
        other = other_device_note(result.predicted, result.measured)
        notes += [*result.differences, *filter(None, [result.late_ranks, other])]
    if result.progress is not None:
        metrics = "".join(f", {name} {value:.4f}" for name, value in of_model(result.progress.metrics).items())
        notes.append(f"Trained {result.progress.step:,} steps{metrics}.")
        for variant, own in by_variant(result.progress.numbers).items():
            said = ", ".join(f"{name} {value:.4f}" for name, value in own.items())
            notes.append(f"Variant {variant}: {f'diverged at step {own[DIVERGED]:.0f}' if DIVERGED in own else said}.")
        notes += [f"{finding.text}." for finding in result.progress.findings or ()]
    if result.drift is not None:
        notes.append(f"Drift: {result.drift}")
    return notes


def _expectation_notes(result: RunResult) -> list[str]:
    """Return the source of the column `tried` with the error of the prediction alone, or that of `as slow`."""
    if result.tried is not None:
        off = "" if result.error_percent is None else f" The cost models alone are {result.error_percent:+d} % off."
        tried = "steps under this plan before the training, with its readers and ranks; `error` is of these times"
        return [f"Tried: {tried}.{off}"]
    if result.speed is None or result.measured is None:
        return []
    here = result.predicted_as_slow
    total = "" if here is None else _errors(here, result.measured)[-1]
    off = f": the total is {total} from it" if total else ""
    return [f"{result.speed.text} The column `as slow` is the prediction for such a machine{off}."]


def _load_note(load_average: float, other_processors: float | None) -> str:
    text = f"The machine's load average was {load_average:.1f} on {os.cpu_count()} processors"
    others = "" if other_processors is None else f"; other programs used at most {other_processors:.1f} of them"
    return f"{text}{others}."


def _times(cost: "StepCostStatus") -> list[str]:
    return [_ms(microseconds) for microseconds in _microseconds(cost)]


def _errors(predicted: "StepCostStatus", measured: "StepCostStatus") -> list[str]:
    """Return the excess of each measured time over the predicted one; empty where nothing was, or the host bound it."""
    from neuroshard_api.job.status import HostBoundPart
    from neuroshard_api.job.step_cost import host_bound_parts, is_host_bound

    bound = host_bound_parts(measured)
    columns = (HostBoundPart.COMPUTE, HostBoundPart.FORWARD_COMMUNICATION, HostBoundPart.BACKWARD_COMMUNICATION)
    is_bound = [*(part in bound for part in columns), is_host_bound(measured)]
    return [
        f"{100 * (after / before - 1):+.0f} %" if before and after is not None and not waits else ""
        for before, after, waits in zip(_microseconds(predicted), _microseconds(measured), is_bound, strict=True)
    ]


def _microseconds(cost: "StepCostStatus") -> list[int | None]:
    return [
        cost.compute_microseconds,
        cost.forward_communication_microseconds,
        cost.backward_communication_microseconds,
        cost.total_microseconds,
    ]


def _ms(microseconds: int | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1000:.3f}"
