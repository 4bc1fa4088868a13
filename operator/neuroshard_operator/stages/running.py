"""Running: the workers' pods, their failures and restarts, and what they measure."""

from dataclasses import replace
from datetime import timedelta

from neuroshard_api.job_policies import FailureAction
from neuroshard_api.job_status import (
    CheckpointStatus,
    LastFailure,
    Metric,
    Stage,
    StageName,
    StageState,
    TrainerStatus,
)
from neuroshard_api.step_cost import error_percent

from neuroshard_operator import names
from neuroshard_operator.actions import Event
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import Context, seconds_until, worker_count
from neuroshard_operator.failures import Verdict, cause_of, trouble, verdict
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.observed.results import ReportSummary
from neuroshard_operator.stages.profiling import queued
from neuroshard_operator.stages.result import (
    Completion,
    StageResult,
    StageUpdate,
    condition,
    described,
    failed,
    worker_conditions,
)

RESTARTED = "WorkersRestarted"
"""Reason of the event about a restart."""
METRIC_NAME_CHARACTERS = 64


def succeeded(context: Context) -> StageResult | None:
    """Return the step that ends a job whose workers all ended well; None while they did not.

    It is asked before anything else: work that is done is done, even if the job was suspended in that moment.
    """
    current = context.job_named(names.worker_job(context.name, context.attempt))
    if current is None or current.outcome is None or not current.outcome.succeeded:
        return None
    message = f"all {context.spec.trainer.num_nodes} workers ended well"
    return StageResult(
        display_stage=Stage.SUCCEEDED,
        reason=Reason.TRAINED,
        message=message,
        conditions=worker_conditions(Reason.TRAINED, message, holds=False),
        status_fields={"workers": worker_count(context), **_reported(context, last=True)},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED),
            StageUpdate(
                stage=StageName.RUNNING, state=StageState.SUCCEEDED, job_name=current.meta.name, message=message
            ),
        ),
        completion=Completion(succeeded=True, reason=Reason.TRAINED, message=message),
    )


def run(context: Context, current: ChildJob) -> StageResult:
    """Return what is to be said and done about workers that were started."""
    if current.outcome is not None:
        return _failure(context, current)
    if current.suspended and context.is_queued:
        message = f"Job {current.meta.name} waits for Kueue to admit it"
        return queued(_launching(context, current, Reason.QUEUED, message), message)
    wanted = context.spec.trainer.num_nodes
    pods = context.pods_of(current)
    ready = sum(pod.ready for pod in pods)
    ended = sum(pod.ended_well for pod in pods)
    message = f"{ready} of {wanted} workers are ready" + (f", {ended} ended well" if ended else "")
    if ready + ended >= wanted:
        return _running(context, current, Reason.WORKERS_READY, message, are_ready=True)
    stuck = trouble(pods)
    if stuck:
        message = f"{message}: {stuck}"
    if context.stage_status(StageName.LAUNCHING).state is StageState.SUCCEEDED:  # so these workers ran already
        return _running(context, current, Reason.WORKERS_LOST, message, are_ready=False)
    return _launching(context, current, Reason.PODS_PENDING if stuck else Reason.WORKERS_STARTING, message)


def _running(context: Context, current: ChildJob, reason: Reason, message: str, *, are_ready: bool) -> StageResult:
    reported = _reported(context, last=False)
    return StageResult(
        display_stage=Stage.RUNNING,
        reason=reason,
        message=message,
        conditions=(
            condition(ConditionType.PODS_READY, reason, message, holds=are_ready),
            condition(ConditionType.RUNNING, reason, message, holds=True),
        ),
        status_fields={"workers": worker_count(context), **reported},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED, job_name=current.meta.name),
            StageUpdate(stage=StageName.RUNNING, state=StageState.ACTIVE, job_name=current.meta.name, message=message),
        ),
        requeue_after_s=_next_report_s(context, reported),
    )


def _launching(context: Context, current: ChildJob, reason: Reason, message: str) -> StageResult:
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        conditions=worker_conditions(reason, message, holds=False),
        status_fields={"workers": worker_count(context), **_reported(context, last=False)},
        stage_updates=(
            StageUpdate(
                stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=current.meta.name, message=message
            ),
        ),
    )


def _failure(context: Context, current: ChildJob) -> StageResult:
    """Return the end of the job or the next attempt. The attempt is recorded first, and started by a later pass."""
    cause = cause_of(current, context.observed.pods)
    has_run = context.stage_status(StageName.LAUNCHING).state is StageState.SUCCEEDED
    decided = verdict(context.spec.failure_policy, cause, has_run=has_run)
    failure = cause.recorded(Stage.RUNNING, context.now)
    counted = context.status.restarts_count_towards_max or 0
    most = context.spec.failure_policy.max_restarts
    status_fields = {"workers": worker_count(context), **_reported(context, last=True)}
    if decided.action is FailureAction.FAIL_JOB:
        step = failed(
            display_stage=Stage.RUNNING,
            stage=StageName.RUNNING,
            reason=Reason.WORKERS_FAILED,
            message=f"{described(cause)} (failure rule: {decided.rule})",
            failure=failure,
        )
    elif decided.counts and counted >= most:
        step = failed(
            display_stage=Stage.RUNNING,
            stage=StageName.RUNNING,
            reason=Reason.TOO_MANY_RESTARTS,
            message=f"the workers failed after {counted} of at most {most} restarts; the last time {described(cause)}",
            failure=failure,
        )
    else:
        return _restart(context, described(cause), decided, failure, status_fields)
    return replace(
        step, status_fields=status_fields, conditions=worker_conditions(step.reason, step.message, holds=False)
    )


def _restart(
    context: Context, what: str, decided: Verdict, failure: LastFailure, status_fields: dict[str, object]
) -> StageResult:
    counted = (context.status.restarts_count_towards_max or 0) + decided.counts
    counting = f"restart {counted} of {context.spec.failure_policy.max_restarts}" if decided.counts else "not counted"
    message = f"all workers start again ({counting}, failure rule: {decided.rule}): {what}"
    replan = decided.action is FailureAction.REPLAN_AND_RESTART
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.RESTARTING,
        message=message,
        conditions=worker_conditions(Reason.RESTARTING, message, holds=False),
        events=(Event(kind="Warning", reason=RESTARTED, message=message),),
        status_fields={
            **status_fields,
            "restarts": context.attempt + 1,
            "restarts_count_towards_max": counted,
            "last_failure": failure,
            **({"replans": (context.status.replans or 0) + 1} if replan else {}),
        },
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, restarted=True),
            StageUpdate(stage=StageName.RUNNING, state=StageState.WAITING, message=message),
        ),
        requeue_after_s=0.1,
    )


def _report(context: Context) -> ReportSummary | None:
    config_map = context.config_map(names.report(context.name))
    document = config_map.document if config_map else None
    return document if isinstance(document, ReportSummary) else None


def _reported(context: Context, *, last: bool) -> dict[str, object]:
    """Return what the workers reported since the status was written, or nothing if that is too recent.

    `last`: the workers have ended, and what they said last is written in any case.
    """
    report = _report(context)
    if report is None or (not last and _wait_s(context) > 0):
        return {}
    return {**_cost(context, report), **_progress(context, report)}


def _cost(context: Context, report: ReportSummary) -> dict[str, object]:
    cost, plan = context.status.cost, context.status.plan
    if report.measured is None or cost is None or cost.predicted is None or plan is None:
        return {}
    if plan.hash != f"sha256:{report.plan_hash}":
        return {}  # of workers that ran under an earlier plan
    before = cost.measured
    if before is not None and before.model_copy(update={"last_updated_time": None}) == report.measured:
        return {}
    error = error_percent(cost.predicted, report.measured)
    said = report.measured.model_copy(update={"last_updated_time": context.now})
    return {"cost": cost.model_copy(update={"measured": said, "error_percent": error})}


def _progress(context: Context, report: ReportSummary) -> dict[str, object]:
    progress = report.progress
    if progress is None:
        return {}
    metrics = tuple(
        Metric(name=name[:METRIC_NAME_CHARACTERS], value=f"{value:.6g}") for name, value in progress.metrics.items()
    )
    remaining = progress.remaining_seconds
    said = TrainerStatus(
        progress_percentage=min(100 * progress.step // progress.num_steps, 100) if progress.num_steps else None,
        estimated_remaining_seconds=None if remaining is None else round(remaining),
        metrics=metrics[:256],
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


def _wait_s(context: Context) -> float:
    """Return the seconds until measured numbers may be written again."""
    measured = context.status.cost.measured if context.status.cost else None
    trainer = context.status.trainer_status
    times = [each.last_updated_time for each in (measured, trainer) if each and each.last_updated_time]
    if not times:
        return 0.0
    due = max(times) + timedelta(seconds=context.settings.measured_seconds)
    return (due - context.now).total_seconds()


def _next_report_s(context: Context, reported: dict[str, object]) -> float | None:
    """Return when to look again for numbers that came too early for this pass; None: a new report wakes us."""
    if reported or _report(context) is None:
        return None
    wait_s = _wait_s(context)
    return seconds_until(context.now + timedelta(seconds=wait_s), context.now) if wait_s > 0 else None
