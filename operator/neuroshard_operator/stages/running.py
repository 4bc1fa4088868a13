"""Running: the workers' pods, their failures and restarts, and what they measure."""

from dataclasses import replace

from neuroshard_api.job_policies import FailureAction
from neuroshard_api.job_status import (
    LastFailure,
    Stage,
    StageName,
    StageState,
)

from neuroshard_operator import names
from neuroshard_operator.actions import Event
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import Context, worker_count
from neuroshard_operator.failures import Verdict, cause_of, trouble, verdict, was_stopped
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.stages.reports import next_report_s, reported
from neuroshard_operator.stages.result import (
    Completion,
    StageResult,
    StageUpdate,
    condition,
    described,
    failed,
    held_message,
    queued,
    worker_conditions,
)

RESTARTED = "WorkersRestarted"
"""Reason of the event about a restart."""


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
        status_fields={"workers": worker_count(context), **reported(context, last=True)},
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
    if context.is_held(current):
        message = held_message(context, current)
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
    report = reported(context, last=False)
    return StageResult(
        display_stage=Stage.RUNNING,
        reason=reason,
        message=message,
        conditions=(
            condition(ConditionType.PODS_READY, reason, message, holds=are_ready),
            condition(ConditionType.RUNNING, reason, message, holds=True),
        ),
        status_fields={"workers": worker_count(context), **report},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED, job_name=current.meta.name),
            StageUpdate(stage=StageName.RUNNING, state=StageState.ACTIVE, job_name=current.meta.name, message=message),
        ),
        requeue_after_s=next_report_s(context, report),
    )


def _launching(context: Context, current: ChildJob, reason: Reason, message: str) -> StageResult:
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        conditions=worker_conditions(reason, message, holds=False),
        status_fields={"workers": worker_count(context), **reported(context, last=False)},
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
    decided = verdict(
        context.spec.failure_policy, cause, has_run=has_run, stopped=was_stopped(current, context.observed.pods)
    )
    failure = cause.recorded(Stage.RUNNING, context.now)
    counted = context.status.restarts_count_towards_max or 0
    most = context.spec.failure_policy.max_restarts
    status_fields = {"workers": worker_count(context), **reported(context, last=True)}
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
