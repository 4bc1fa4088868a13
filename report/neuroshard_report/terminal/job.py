"""A job's status as text. Formats, reads nothing."""

from collections.abc import Iterator
from datetime import datetime

from neuroshard_api.documents.progress import by_variant, of_model
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.job.status import Cost, LeverStatus, Status, StepCostStatus
from neuroshard_api.job.step_cost import dense_note, lookahead_note, measurement_notes, simulation_note
from neuroshard_api.job.training_job import DLRMTrainingJob
from rich.console import Group, RenderableType

from neuroshard_report.quantities import format_count, format_ms
from neuroshard_report.terminal.tables import TextTable

MICROSECONDS_PER_MS = 1000


def render_headline(job: DLRMTrainingJob) -> str:
    """Return the job's stage and its reason, on one line."""
    if job.status is None or job.status.stage is None:
        return f"{job.metadata.name}: no status yet; is the operator running?"
    reason = f" ({job.status.reason})" if job.status.reason else ""
    message = f": {job.status.message}" if job.status.message else ""
    return f"{job.metadata.name}: {job.status.stage}{reason}{message}"


def render_job(job: DLRMTrainingJob) -> RenderableType:
    """Return the stages, the costs, the trainer's numbers and the last failure, as far as they are known."""
    parts: list[RenderableType] = [render_headline(job)]
    status = job.status
    if status is not None:
        if status.stages:
            parts += ["", _stages(status)]
        if status.cost is not None:
            parts += ["", _costs(status)]
        facts = list(_facts(status))
        if facts:
            parts += ["", *facts]
    return Group(*parts)


def _stages(status: Status) -> RenderableType:
    rows = tuple(
        (
            stage.name.value,
            stage.state.value if stage.state else "-",
            str(stage.attempts or "-"),
            _took(stage.start_time, stage.completion_time),
            (stage.message or "").partition("\n")[0],
        )
        for stage in status.stages
    )
    return TextTable(columns=("stage", "state", "attempts", "took", "what"), rows=rows, text_columns=(0, 1, 4))


def _costs(status: Status) -> RenderableType:
    assert status.cost is not None, "asked by render_job"
    cost, rows = status.cost, []
    for name, each in (("predicted", cost.predicted), ("measured", cost.measured)):
        if each is not None:
            rows.append((name, *_milliseconds(each), _ms(each.step_microseconds), each.source or "-"))
    if cost.baseline is not None:
        total = _ms(cost.baseline.total_microseconds)
        whole = _ms(cost.baseline.step_microseconds)
        rows.insert(1, ("baseline", total, "-", "-", "-", whole, cost.baseline.algorithm or "-"))
    columns = ("ms a step", "embeddings", "compute", "forward", "backward", "whole step", "from")
    return TextTable(columns=columns, rows=tuple(rows), text_columns=(0, 6))


def _facts(status: Status) -> Iterator[str]:
    yield from (f"warning: {each.reason}: {each.message}" for each in status.warnings)
    if status.cost is not None:
        yield from _of_cost(status.cost)
    if status.plan is not None and status.plan.config_map_ref is not None:
        found = f"{status.plan.algorithm or 'given'}, {status.plan.world_size or '?'} devices"
        yield f"plan: ConfigMap {status.plan.config_map_ref.name} ({found})"
    if status.batch is not None:
        rates = f"embeddings {status.batch.embedding_learning_rate}, dense part {status.batch.dense_learning_rate}"
        yield f"batch: {format_count(status.batch.samples_per_device)} samples per device; learning rates {rates}"
    if status.trainer_status is not None:
        values = {metric.name: metric.value for metric in status.trainer_status.metrics}
        metrics = ", ".join(f"{name} {value}" for name, value in of_model(values).items())
        progress = status.trainer_status.progress_percentage
        yield f"trainer: {progress if progress is not None else '?'} % done{f', {metrics}' if metrics else ''}"
        for variant, own in by_variant(values).items():
            yield f"variant {variant}: {', '.join(f'{name} {value}' for name, value in own.items())}"
    if status.replanning is not None:
        yield from _further_plans(status.replanning)
    if status.restarts:
        yield f"restarts: {status.restarts}, of which {status.restarts_count_towards_max or 0} after failures"
    failure = status.last_failure
    if failure is not None:
        node = f" on {failure.node_name}" if failure.node_name else ""
        where = f" of pod {failure.pod_name}{node}" if failure.pod_name else ""
        code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
        yield f"last failure: {failure.reason or 'unknown'}{where}{code}"
        yield from (f"  {line}" for line in (failure.message or "").splitlines())


def _of_cost(cost: Cost) -> Iterator[str]:
    if cost.error_percent is not None:
        side = "above" if cost.error_percent >= 0 else "below"
        yield f"measured is {abs(cost.error_percent)} % {side} what was predicted"
    if cost.predicted is not None and cost.measured is not None:
        notes = simulation_note(cost.predicted, cost.measured), lookahead_note(cost.predicted, cost.measured)
        yield from (*filter(None, notes), *measurement_notes(cost.measured))
        yield from _duplication(cost.predicted, cost.measured)
        if cost.measured.dense_microseconds is not None:
            yield dense_note(cost.predicted, cost.measured)
    yield from map(_lever, cost.levers or ())


def _lever(lever: LeverStatus) -> str:
    per_sample = "" if lever.num_samples is None else f" for {format_count(lever.num_samples)} samples"
    saved = f"-{lever.saved_percent} %{' per sample' if per_sample else ''}"
    return f"would help: {lever.text}: about {_ms(lever.total_microseconds)} ms{per_sample} ({saved}); {lever.field}"


def _further_plans(record: ReplanningStatus) -> Iterator[str]:
    """Yield the candidate with its verdict, avoided nodes, and the plans that were trained under, the newest last."""
    candidate = record.candidate
    if candidate is not None:
        gain = f", gain {_ms(candidate.gain_microseconds)} ms a step" if candidate.gain_microseconds else ""
        what = f"{candidate.verdict or 'being made'}{gain}{f': {candidate.message}' if candidate.message else ''}"
        yield f"candidate plan {candidate.number}: {what}"
    if record.avoided_nodes:
        yield f"avoided nodes: {', '.join(node.name for node in record.avoided_nodes)}"
    for plan in record.history:
        times = f"predicted {_ms(plan.predicted_microseconds)} ms, measured {_ms(plan.measured_microseconds)} ms"
        promised, measured = (
            "-" if percent is None else f"{percent} %"
            for percent in (plan.promised_gain_percent, plan.measured_gain_percent)
        )
        gain = "" if plan.promised_gain_percent is None else f", gain promised {promised}, measured {measured}"
        yield f"plan {plan.hash.removeprefix('sha256:')[:10]} ({plan.reason}): {times}{gain}"


def _duplication(predicted: StepCostStatus, measured: StepCostStatus) -> Iterator[str]:
    if predicted.expansion_microseconds is not None or measured.expansion_microseconds is not None:
        times = (predicted.expansion_microseconds, measured.expansion_microseconds)
        yield "expansion of repeats: {} ms predicted, {} ms measured, in the totals".format(*map(_ms, times))
    found = {each.group: each.factor for each in measured.duplication_factors or ()}
    for each in predicted.duplication_factors or ():
        yield f"group {each.group}: {found.get(each.group, '?')} samples per distinct list, planned {each.factor}"


def _milliseconds(cost: StepCostStatus) -> tuple[str, str, str, str]:
    communication = (cost.forward_communication_microseconds, cost.backward_communication_microseconds)
    total, compute, forward, backward = (
        _ms(part) for part in (cost.total_microseconds, cost.compute_microseconds, *communication)
    )
    return total, compute, forward, backward


def _ms(microseconds: int | None) -> str:
    return "-" if microseconds is None else format_ms(microseconds / MICROSECONDS_PER_MS)


def _took(start: datetime | None, end: datetime | None) -> str:
    return "-" if start is None or end is None else str(end - start).removesuffix(".000000")
