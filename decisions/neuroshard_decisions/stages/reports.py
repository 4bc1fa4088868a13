"""What the workers report of their progress and step times, at most every `measured_seconds`. Pure functions."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from neuroshard_api.documents.finding import lasting
from neuroshard_api.documents.progress import CHECKS_TO_SUSPEND, GuardRecord, GuardState, by_variant
from neuroshard_api.job.stage_commands import is_run_id, run_id
from neuroshard_api.job.status import CheckpointStatus, Cost, Metric, TrainerStatus
from neuroshard_api.job.step_cost import error_percent, is_same_device

from neuroshard_decisions import names
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import Reason, WarningUpdate, warning_of, warnings_among
from neuroshard_decisions.context import Context, seconds_until
from neuroshard_decisions.observed.results import ReportSummary

METRIC_NAME_CHARACTERS = 64
_PART = "; "
"""Between the parts of a message, by which an event of an earlier pass is recognized."""

_BETWEEN = " | "
"""Between findings, whose texts have semicolons."""
_SHOWN_FINDINGS = 5
"""Those that began first: all of their texts are in the message, by which events of earlier passes are recognized."""

UNMEASURED_AFTER = timedelta(minutes=10)
"""How long workers train without a report of their steps until people hear of it."""


def latest(context: Context) -> ReportSummary | None:
    """Return the workers' last report, of any attempt and plan. None: none that can be read."""
    config_map = context.config_map(names.report(context.name))
    document = config_map.document if config_map else None
    return document if isinstance(document, ReportSummary) else None


def reported(context: Context, *, last: bool) -> dict[str, object]:
    """Return the workers' reports since the status was written, or nothing if that is too recent.

    `last`: the workers have ended, and their last report is written in any case.
    """
    report = latest(context)
    if report is None or (not last and _wait_s(context) > 0):
        return {}
    return {**_cost(context, report), **_progress(context, report)}


def _cost(context: Context, report: ReportSummary) -> dict[str, object]:
    cost, plan = context.status.cost, context.status.plan
    if report.measured is None or cost is None or plan is None:
        return {}
    if plan.hash != f"sha256:{report.plan_hash}" or is_of_another_attempt(context, report.measured_by):
        return {}
    before = cost.measured
    if before is not None and before.model_copy(update={"last_updated_time": None}) == report.measured:
        return {}
    error = None if cost.predicted is None else error_percent(cost.predicted, report.measured)
    said = report.measured.model_copy(update={"last_updated_time": context.now})
    return {"cost": cost.model_copy(update={"measured": said, "error_percent": error})}


def is_of_another_attempt(context: Context, reported_by: str | None) -> bool:
    """Return whether an earlier attempt, or a deleted job of the same name, left a report on the volume.

    One without an id of the operator's form, such as by torchrun's own --rdzv-id, is of the present attempt.
    """
    return _names_its_attempt(reported_by) and reported_by != run_id(context.uid, context.attempt)


def _names_its_attempt(reported_by: str | None) -> bool:
    return reported_by is not None and is_run_id(reported_by)


def _progress(context: Context, report: ReportSummary) -> dict[str, object]:
    progress = report.progress
    if progress is None or is_of_another_attempt(context, progress.run_id):
        return {}
    guards = (
        ("narrow_types_change_percent", progress.guard),
        ("narrow_gradients_change_percent", progress.gradient_guard),
    )
    checked = [(name, guard.change_percent) for name, guard in guards if guard and guard.change_percent is not None]
    metrics = tuple(
        Metric(name=name[:METRIC_NAME_CHARACTERS], value=f"{value:.6g}")
        for name, value in (*checked, *progress.numbers.items())
    )
    remaining = progress.remaining_seconds
    said = TrainerStatus(
        progress_percentage=min(100 * progress.step // progress.num_steps, 100) if progress.num_steps else None,
        estimated_remaining_seconds=None if remaining is None else round(remaining),
        metrics=metrics[:256],
        best_variant=next(iter(by_variant(progress.metrics)), None),
    )
    status_fields: dict[str, object] = {}
    before = context.status.trainer_status
    if before is None or before.model_copy(update={"last_updated_time": None}) != said:
        status_fields["trainer_status"] = said.model_copy(update={"last_updated_time": context.now})
    kept = context.status.checkpoint
    if progress.checkpoint_step is not None and (kept is None or kept.step != progress.checkpoint_step):
        status_fields["checkpoint"] = CheckpointStatus(
            path=progress.checkpoint_path, step=progress.checkpoint_step, time=context.now
        )
    return status_fields


def cleared(context: Context) -> dict[str, object]:
    """Return the fields of the status without what the attempt that ends reported; checkpoints stay.

    A report that does not name its attempt stays as well: it would be taken for one of the next attempt.
    """
    report, cost = latest(context), context.status.cost
    fields: dict[str, object] = {}
    if report is None or report.progress is None or _names_its_attempt(report.progress.run_id):
        fields["trainer_status"] = None
    if cost is not None and (report is None or report.measured is None or _names_its_attempt(report.measured_by)):
        fields["cost"] = cost.model_copy(update={"measured": None, "error_percent": None})
    return fields


def other_device(context: Context, status_fields: Mapping[str, object]) -> tuple[WarningUpdate, ...]:
    """Return a warning where the workers report another device than the plan was made for.

    `status_fields`: what this pass writes of their report, or clears of it.
    """
    cost, found = status_fields.get("cost", context.status.cost), {}
    if (
        isinstance(cost, Cost)
        and cost.predicted
        and cost.measured
        and is_same_device(cost.predicted, cost.measured) is False
    ):
        found[Reason.OTHER_DEVICE] = (
            f"the plan is for {cost.predicted.source}, and the workers run on {cost.measured.source}: its costs do not "
            "hold for them; hint: keep the job's pods to one product by podTemplate.spec.nodeSelector, or plan with "
            "cost models of it"
        )
    return warnings_among((Reason.OTHER_DEVICE,), found)


def narrow_exchange(context: Context) -> tuple[tuple[WarningUpdate, ...], tuple[Event, ...]]:
    """Return a warning where narrow types cost accuracy, and an event for each guard that suspended them."""
    report = latest(context)
    progress = None if report is None else report.progress
    if progress is None or is_of_another_attempt(context, progress.run_id):
        return (), ()
    limit = str(context.spec.narrow_types.guard.max_entropy_increase_percent)
    of_gradients = progress.gradient_guard
    text = _PART.join(
        [
            *_measured(progress.guard, "change of the held-out loss by narrow types", limit),
            *_measured(
                of_gradients, "difference of narrow gradients", f"{of_gradients and of_gradients.maximum_percent}"
            ),
        ]
    )
    suspensions = [
        *_suspension(progress.guard, "exchange is exact"),
        *_suspension(of_gradients, "gradients travel whole"),
    ]
    found: dict[Reason, str] = {}
    if suspensions:
        found[Reason.COMPRESSION_SUSPENDED] = _PART.join([*suspensions, text])
    elif any(each.exceeded_in_a_row >= CHECKS_TO_SUSPEND for each in (progress.guard, of_gradients) if each):
        found[Reason.ACCURACY_CHANGED] = text
    before = warning_of(context.status.warnings, Reason.COMPRESSION_SUSPENDED)
    recorded = before.message.split(_PART) if before else ()
    events = tuple(
        Event(reason=EventReason.COMPRESSION_SUSPENDED, message=f"{each}{_PART}{text}")
        for each in suspensions
        if each not in recorded
    )
    return warnings_among((Reason.COMPRESSION_SUSPENDED, Reason.ACCURACY_CHANGED), found), events


def data_findings(context: Context) -> tuple[tuple[WarningUpdate, ...], tuple[Event, ...]]:
    """Return a warning of what is wrong with loss and data at present, and an event for each new finding."""
    report = latest(context)
    progress = None if report is None else report.progress
    if progress is None or is_of_another_attempt(context, progress.run_id):
        return (), ()
    found = lasting(progress.findings or ())
    texts = [finding.text for finding in found[:_SHOWN_FINDINGS]]
    before = warning_of(context.status.warnings, Reason.DATA_ANOMALY)
    recorded = () if before is None else before.message.split(_BETWEEN)
    events = tuple(Event(reason=EventReason.DATA_ANOMALY, message=text) for text in texts if text not in recorded)
    more = [f"{len(found) - len(texts)} more"] if len(found) > len(texts) else []
    warning = {Reason.DATA_ANOMALY: _BETWEEN.join([*texts, *more])} if texts else {}
    return warnings_among((Reason.DATA_ANOMALY,), warning), events


def _suspension(guard: GuardRecord | None, what: str) -> Iterator[str]:
    """Yield since when a guard has suspended narrow types, if it has."""
    if guard is not None and guard.state is GuardState.SUSPENDED:
        yield f"{what} since step {guard.since_step}"


def _measured(guard: GuardRecord | None, what: str, limit: str) -> Iterator[str]:
    """Yield a guard's last measurement, if there is one."""
    if guard is not None:
        last = "no check so far" if guard.change_percent is None else f"{guard.change_percent:.3g} % in the last check"
        yield f"{what}: {last}, at most {limit} % (checks: {guard.num_checks})"


def last_progress(context: Context) -> datetime | None:
    """Return the time of this attempt's last progress report, or of its readiness; None: the workers never report."""
    measured = context.status.cost.measured if context.status.cost else None
    times = [each.last_updated_time for each in (measured, context.status.trainer_status) if each is not None]
    known = [time for time in times if time is not None]
    never_reported = not known and latest(context) is None  # of an earlier attempt, the ConfigMap has its report
    if never_reported or context.ready_since is None:
        return None
    return max([*known, context.ready_since])


def report_is_due(context: Context) -> bool:
    """Return whether a report that came now would be written into the status."""
    workers = context.workers
    return _wait_s(context) <= 0 or (workers is not None and workers.outcome is not None)


def _wait_s(context: Context) -> float:
    """Return the seconds until measured numbers may be written again."""
    measured = context.status.cost.measured if context.status.cost else None
    trainer = context.status.trainer_status
    times = [each.last_updated_time for each in (measured, trainer) if each and each.last_updated_time]
    if not times:
        return 0.0
    due = max(times) + timedelta(seconds=context.rules.measured_seconds)
    return (due - context.now).total_seconds()


def unmeasured(context: Context) -> str:
    """Return the reason for which nothing is measured after a while, as the end of a message; or empty."""
    due = _unmeasured_from(context)
    if due is None or context.now < due:
        return ""
    hint = "hint: let it write step reports, as the guide to trainers of your own shows"
    return f"; the trainer reports no steps, so that nothing is measured; {hint}"


def unmeasured_check_s(context: Context) -> float | None:
    """Return the seconds until a message names a trainer that reports nothing. None: it reports, or one names it."""
    due = _unmeasured_from(context)
    return None if due is None or context.now >= due else seconds_until(due, context.now)


def _unmeasured_from(context: Context) -> datetime | None:
    """Return from when on a trainer of one's own is one that reports nothing. None: it may report, or has."""
    has_measured = context.status.cost is not None and context.status.cost.measured is not None
    if not context.spec.trainer.command or has_measured or context.ready_since is None:
        return None
    return context.ready_since + UNMEASURED_AFTER


def next_report_s(context: Context, reported: dict[str, object]) -> float | None:
    """Return the seconds until a pass for numbers that came too early for this one; None: a new report starts one."""
    report = context.config_map(names.report(context.name))
    if reported or report is None or (report.is_read and report.document is None):
        return None
    wait_s = _wait_s(context)
    return seconds_until(context.now + timedelta(seconds=wait_s), context.now) if wait_s > 0 else None
