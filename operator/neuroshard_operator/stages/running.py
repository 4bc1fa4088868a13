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
from neuroshard_operator.context import View, seconds_until, worker_count
from neuroshard_operator.failures import Verdict, cause_of, trouble, verdict
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.observed.results import ReportSummary
from neuroshard_operator.stages.profiling import queued
from neuroshard_operator.stages.result import Course, End, Step, described, failed, says, says_of_workers

RESTARTED = "WorkersRestarted"
"""Reason of the event about a restart."""
METRIC_NAME_CHARACTERS = 64


def succeeded(view: View) -> Step | None:
    """Return the step that ends a job whose workers all ended well; None while they did not.

    It is asked before anything else: work that is done is done, even if the job was suspended in that moment.
    """
    current = view.job_named(names.worker_job(view.name, view.attempt))
    if current is None or current.outcome is None or not current.outcome.succeeded:
        return None
    message = f"all {view.spec.trainer.num_nodes} workers ended well"
    return Step(
        shown=Stage.SUCCEEDED,
        reason=Reason.TRAINED,
        message=message,
        says=says_of_workers(Reason.TRAINED, message, holds=False),
        facts={"workers": worker_count(view), **_reported(view, last=True)},
        courses=(
            Course(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED),
            Course(stage=StageName.RUNNING, state=StageState.SUCCEEDED, job_name=current.meta.name, message=message),
        ),
        end=End(succeeded=True, reason=Reason.TRAINED, message=message),
    )


def run(view: View, current: ChildJob) -> Step:
    """Return what is to be said and done about workers that were started."""
    if current.outcome is not None:
        return _failure(view, current)
    if current.suspended and view.is_queued:
        message = f"Job {current.meta.name} waits for Kueue to admit it"
        return queued(_launching(view, current, Reason.QUEUED, message), message)
    wanted = view.spec.trainer.num_nodes
    pods = view.pods_of(current)
    ready = sum(pod.ready for pod in pods)
    ended = sum(pod.ended_well for pod in pods)
    message = f"{ready} of {wanted} workers are ready" + (f", {ended} ended well" if ended else "")
    if ready + ended >= wanted:
        return _running(view, current, Reason.WORKERS_READY, message, are_ready=True)
    stuck = trouble(pods)
    if stuck:
        message = f"{message}: {stuck}"
    if view.course(StageName.LAUNCHING).state is StageState.SUCCEEDED:  # so these workers ran already
        return _running(view, current, Reason.WORKERS_LOST, message, are_ready=False)
    return _launching(view, current, Reason.PODS_PENDING if stuck else Reason.WORKERS_STARTING, message)


def _running(view: View, current: ChildJob, reason: Reason, message: str, *, are_ready: bool) -> Step:
    reported = _reported(view, last=False)
    return Step(
        shown=Stage.RUNNING,
        reason=reason,
        message=message,
        says=(
            says(ConditionType.PODS_READY, reason, message, holds=are_ready),
            says(ConditionType.RUNNING, reason, message, holds=True),
        ),
        facts={"workers": worker_count(view), **reported},
        courses=(
            Course(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED, job_name=current.meta.name),
            Course(stage=StageName.RUNNING, state=StageState.ACTIVE, job_name=current.meta.name, message=message),
        ),
        look_again_s=_next_report_s(view, reported),
    )


def _launching(view: View, current: ChildJob, reason: Reason, message: str) -> Step:
    return Step(
        shown=Stage.LAUNCHING,
        reason=reason,
        message=message,
        says=says_of_workers(reason, message, holds=False),
        facts={"workers": worker_count(view), **_reported(view, last=False)},
        courses=(
            Course(stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=current.meta.name, message=message),
        ),
    )


def _failure(view: View, current: ChildJob) -> Step:
    """Return the end of the job or the next attempt. The attempt is recorded first, and started by a later look."""
    cause = cause_of(current, view.observed.pods)
    decided = verdict(view.spec.failure_policy, cause)
    failure = cause.recorded(Stage.RUNNING, view.now)
    counted = view.status.restarts_count_towards_max or 0
    most = view.spec.failure_policy.max_restarts
    facts = {"workers": worker_count(view), **_reported(view, last=True)}
    if decided.action is FailureAction.FAIL_JOB:
        step = failed(
            shown=Stage.RUNNING,
            stage=StageName.RUNNING,
            reason=Reason.WORKERS_FAILED,
            message=f"{described(cause)} (failure rule: {decided.rule})",
            failure=failure,
        )
    elif decided.counts and counted >= most:
        step = failed(
            shown=Stage.RUNNING,
            stage=StageName.RUNNING,
            reason=Reason.TOO_MANY_RESTARTS,
            message=f"the workers failed after {counted} of at most {most} restarts; the last time {described(cause)}",
            failure=failure,
        )
    else:
        return _restart(view, described(cause), decided, failure, facts)
    return replace(step, facts=facts, says=says_of_workers(step.reason, step.message, holds=False))


def _restart(view: View, what: str, decided: Verdict, failure: LastFailure, facts: dict[str, object]) -> Step:
    counted = (view.status.restarts_count_towards_max or 0) + decided.counts
    counting = f"restart {counted} of {view.spec.failure_policy.max_restarts}" if decided.counts else "not counted"
    message = f"all workers start again ({counting}, failure rule: {decided.rule}): {what}"
    replan = decided.action is FailureAction.REPLAN_AND_RESTART
    return Step(
        shown=Stage.LAUNCHING,
        reason=Reason.RESTARTING,
        message=message,
        says=says_of_workers(Reason.RESTARTING, message, holds=False),
        events=(Event(kind="Warning", reason=RESTARTED, message=message),),
        facts={
            **facts,
            "restarts": view.attempt + 1,
            "restarts_count_towards_max": counted,
            "last_failure": failure,
            **({"replans": (view.status.replans or 0) + 1} if replan else {}),
        },
        courses=(
            Course(stage=StageName.LAUNCHING, state=StageState.ACTIVE, again=True),
            Course(stage=StageName.RUNNING, state=StageState.WAITING, message=message),
        ),
        look_again_s=0.1,
    )


def _report(view: View) -> ReportSummary | None:
    config_map = view.config_map(names.report(view.name))
    document = config_map.document if config_map else None
    return document if isinstance(document, ReportSummary) else None


def _reported(view: View, *, last: bool) -> dict[str, object]:
    """Return what the workers reported since the status was written, or nothing if that is too recent.

    `last`: the workers have ended, and what they said last is written in any case.
    """
    report = _report(view)
    if report is None or (not last and _wait_s(view) > 0):
        return {}
    return {**_cost(view, report), **_progress(view, report)}


def _cost(view: View, report: ReportSummary) -> dict[str, object]:
    cost, plan = view.status.cost, view.status.plan
    if report.measured is None or cost is None or cost.predicted is None or plan is None:
        return {}
    if plan.hash != f"sha256:{report.plan_hash}":
        return {}  # of workers that ran under an earlier plan
    before = cost.measured
    if before is not None and before.model_copy(update={"last_updated_time": None}) == report.measured:
        return {}
    error = error_percent(cost.predicted, report.measured)
    said = report.measured.model_copy(update={"last_updated_time": view.now})
    return {"cost": cost.model_copy(update={"measured": said, "error_percent": error})}


def _progress(view: View, report: ReportSummary) -> dict[str, object]:
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
    facts: dict[str, object] = {}
    before = view.status.trainer_status
    if before is None or before.model_copy(update={"last_updated_time": None}) != said:
        facts["trainer_status"] = said.model_copy(update={"last_updated_time": view.now})
    kept = view.status.checkpoint
    if progress.checkpoint_step is not None and (kept is None or kept.step != progress.checkpoint_step):
        facts["checkpoint"] = CheckpointStatus(
            path=progress.checkpoint_path, step=progress.checkpoint_step, time=view.now
        )
    return facts


def _wait_s(view: View) -> float:
    """Return the seconds until measured numbers may be written again."""
    measured = view.status.cost.measured if view.status.cost else None
    trainer = view.status.trainer_status
    times = [each.last_updated_time for each in (measured, trainer) if each and each.last_updated_time]
    if not times:
        return 0.0
    due = max(times) + timedelta(seconds=view.settings.measured_seconds)
    return (due - view.now).total_seconds()


def _next_report_s(view: View, reported: dict[str, object]) -> float | None:
    """Return when to look again for numbers that came too early for this look; None: a new report wakes us."""
    if reported or _report(view) is None:
        return None
    wait_s = _wait_s(view)
    return seconds_until(view.now + timedelta(seconds=wait_s), view.now) if wait_s > 0 else None
