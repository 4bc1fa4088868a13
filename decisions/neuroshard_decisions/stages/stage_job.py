"""A stage that runs one Kubernetes Job, whose pod publishes one result: profiling and planning. Pure functions.

A Job is followed from its start to its result: it waits for Kueue or for a node, or runs; it fails or exceeds its time;
it ends well, and its result is on the way, was deleted by someone, cannot be used, or never comes. What the result
says is the stage's own matter: one that can be used is taken before the Job is followed.

The time limit of a Job begins when a node has taken its pod: time in a queue, or without a free device, does not count.
It is written once the pod has been there for a while: most Jobs of a planner end before, and need none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from neuroshard_api.job.status import Stage, StageName, StageState
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Change, Delete, Event, EventReason, Files, Sustain
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context, earliest, seconds_until
from neuroshard_decisions.failures import cause_of
from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, ChildPod
from neuroshard_decisions.stages.queueing import held_message, put_into_queue, queued
from neuroshard_decisions.stages.result import (
    StageResult,
    StageUpdate,
    condition,
    described,
    failed,
)

RESULT_LATE = timedelta(seconds=30)
"""How long a result may reach the operator after the Job that published it ended: two watches bring them."""
LIMITED_AFTER = timedelta(seconds=60)
"""How long a pod has been on its node, at most, before its Job gets its time limit."""
REJECTED_PAUSE, MOST_REJECTED_PAUSE = timedelta(seconds=30), timedelta(minutes=5)
"""Before a Job is made again whose pods kubelets rejected, at least and at most."""
DEADLINE_EXCEEDED = "DeadlineExceeded"
"""Reason with which Kubernetes ends a Job that took longer than its activeDeadlineSeconds."""
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStage:
    """The names, reasons, and words of a stage that runs a Job."""

    stage: Stage
    name: StageName
    condition: ConditionType
    role: str
    """Role of the Job, and its name in sentences."""
    running: Reason
    failed: Reason
    timed_out: Reason
    unusable: Reason
    time_limit: str
    """What took too long, and the field that says how long it may take."""
    result: str
    """What the Job publishes, in a word."""
    again: str
    """What follows when somebody deleted the result, or the pod's node is lost."""
    failures: Mapping[int, tuple[Reason, str]] = field(default_factory=dict)
    """Reason and words by exit code, of failures that are not the Job's fault."""

    def active(
        self,
        reason: Reason,
        message: str,
        job_name: str | None,
        *,
        actions: tuple[Action, ...] = (),
        events: tuple[Event, ...] = (),
        requeue_after_s: float | None = None,
    ) -> StageResult:
        """Return the result of a stage that is at work or waits."""
        return StageResult(
            display_stage=self.stage,
            reason=reason,
            message=message,
            conditions=(condition(self.condition, reason, message, holds=False),),
            actions=actions,
            events=events,
            stage_updates=(StageUpdate(stage=self.name, state=StageState.ACTIVE, job_name=job_name, message=message),),
            requeue_after_s=requeue_after_s,
        )

    def failed_with(self, reason: Reason, message: str) -> StageResult:
        """Return the result of a stage that ends the job, where no pod failed."""
        return failed(display_stage=self.stage, stage=self.name, reason=reason, message=message)


def follow(
    context: Context,
    stage: JobStage,
    job: ChildJob,
    *,
    doing: str,
    inputs: Sequence[Files],
    problem: str | None,
    timeout_s: int,
) -> StageResult:
    """Return the result of a stage whose Job exists and whose output cannot be taken yet.

    Args:
        context: of the pass.
        stage: that the Job belongs to.
        job: of the stage.
        doing: what the Job does while it runs, for people.
        inputs: files that its pods read: a pod that starts later reads them too.
        problem: of the published result, which cannot be used; None: nothing is published yet.
        timeout_s: how long the Job may take once a node has taken its pod.
    """
    name = job.meta.name
    if _is_lost(context, job):
        message = f"the node of the {stage.role}'s pod does not answer; {stage.again}"
        return once_more(stage, job, message)
    failed_beside = [pod for pod in context.pods_of(job) if pod.is_outlived and pod.exit_code]
    is_stuck = bool(failed_beside) and failed_beside[0].exit_code != ExitCode.PEER_LOST
    if job.outcome is None and not is_stuck:
        step = _at_work(context, stage, job, doing=doing, inputs=inputs)
        limit, due_s = _time_limit(context, job, timedelta(seconds=timeout_s))
        check_s = earliest([step.requeue_after_s, due_s])
        return replace(step, actions=(*step.actions, *limit), requeue_after_s=check_s)
    if job.outcome is None or not job.outcome.succeeded:
        return _failed(context, stage, job, timeout_s=timeout_s)
    late = (job.outcome.time or context.now) + RESULT_LATE
    if problem is None and context.now < late:
        message = f"the {stage.role} is done; its {stage.result} is on the way"
        return stage.active(stage.running, message, name, requeue_after_s=seconds_until(late, context.now))
    if problem is None and _was_deleted(job, context.config_map(names.result(name))):
        return once_more(stage, job, f"the result of Job {name} was deleted; {stage.again}")
    why = problem or "it published nothing"
    return stage.failed_with(stage.unusable, f"the {stage.role} succeeded and its result cannot be used: {why}")


def _is_lost(context: Context, job: ChildJob) -> bool:
    """Whether the node of a Job's pod is gone: the Job makes no other pod before this one has ended.

    A Job that exceeded its time only because of that has not failed, and one that somebody deleted in the foreground
    would keep its name until the Node object goes.
    """
    undecided = job.outcome is None or job.outcome.reason == DEADLINE_EXCEEDED
    return undecided and bool(context.lost_pods(job))


def once_more(stage: JobStage, job: ChildJob, message: str) -> StageResult:
    """Remove the Job, without waiting for its pods, so that its name is free for the next one."""
    return stage.active(
        stage.running,
        message,
        job.meta.name,
        actions=(Delete(kind="Job", name=job.meta.name, uid=job.meta.uid),),
        events=(Event(reason=EventReason.CHILD_REPAIRED, message=message),),
    )


def _at_work(context: Context, stage: JobStage, job: ChildJob, *, doing: str, inputs: Sequence[Files]) -> StageResult:
    name = job.meta.name
    files, result = tuple(inputs), names.result(name)
    sustained = Sustain(role=stage.role, result=result, files=files, is_met=job.parallelism > 1)
    if job.suspended:
        message = held_message(context, job)
        actions = (sustained, *put_into_queue(context, job))
        return replace(queued(stage.active(Reason.QUEUED, message, name), message), actions=actions)
    stuck = context.trouble_of(job)
    reason = Reason.PODS_PENDING if stuck else stage.running
    message = f"the {stage.role}'s pod does not start: {stuck}" if stuck else f"{doing}{context.outlived_by(job)}"
    check_s = earliest([context.start_check_s(job), context.loss_check_s(job)])
    return stage.active(reason, message, name, actions=(sustained,), requeue_after_s=check_s)


def _time_limit(context: Context, job: ChildJob, timeout: timedelta) -> tuple[tuple[Action, ...], float | None]:
    """Return the actions that end a Job in time, and the seconds until then; Kubernetes counts from the Job's start."""
    placed = [_placed(context, pod) for pod in context.pods_of(job) if pod.node]
    if job.deadline_s is not None or job.start_time is None or job.suspended or not placed:
        return (), None
    due = min(placed) + min(LIMITED_AFTER, timeout / 2)
    if context.now < due:
        return (), seconds_until(due, context.now)
    waited = max(min(placed) - job.start_time, timedelta(0))
    deadline_s = (waited + timeout) // timedelta(seconds=1)
    return (Change(kind="Job", name=job.meta.name, uid=job.meta.uid, deadline_s=deadline_s),), None


def _placed(context: Context, pod: ChildPod) -> datetime:
    """Return the time at which a pod got its node; its creation, where that is not known or ahead of this clock."""
    is_known = pod.placed is not None and pod.placed <= context.now
    return pod.placed if pod.placed is not None and is_known else pod.meta.created or context.now


def _failed(context: Context, stage: JobStage, job: ChildJob, *, timeout_s: int) -> StageResult:
    cause = cause_of([job], context.observed.pods)
    if cause.never_ran:
        return _rejected(context, stage, job, described(cause))
    if job.outcome is not None and job.outcome.reason == DEADLINE_EXCEEDED:
        reason, message = stage.timed_out, f"{stage.time_limit} ({timeout_s} s)"
        silent_s = context.loss_check_s(job)
        if silent_s is not None:
            message = f"{message}, and the {stage.role}'s pod has not ended: its node may be lost"
            return stage.active(stage.running, message, job.meta.name, requeue_after_s=silent_s)
    else:
        reason, words = stage.failures.get(cause.exit_code or ExitCode.OK, (stage.failed, f"the {stage.role} failed"))
        message = f"{words}: {described(cause)}{context.outlived_by(job)}"
    return failed(
        display_stage=stage.stage,
        stage=stage.name,
        reason=reason,
        message=message,
        failure=cause.recorded(stage.stage, context.now),
    )


def _rejected(context: Context, stage: JobStage, job: ChildJob, why: str) -> StageResult:
    """Return the step of a stage whose pods ended before any container ran: after a pause it begins again.

    The pause grows with the time that the Job had tried; a node that boots is not the job's fault.
    """
    ended = (job.outcome.time if job.outcome else None) or context.now
    tried = ended - (job.meta.created or ended)
    due = ended + min(max(tried, REJECTED_PAUSE), MOST_REJECTED_PAUSE)
    message = f"no container of the {stage.role} ran: {why}"
    if context.now < due:
        due_s = seconds_until(due, context.now)
        return stage.active(Reason.PODS_PENDING, f"{message}; {stage.again}", job.meta.name, requeue_after_s=due_s)
    return once_more(stage, job, f"{message}; {stage.again}")


def _was_deleted(job: ChildJob, result: ChildConfigMap | None) -> bool:
    """Return whether someone deleted the ConfigMap that a Job's pods publish to, which is made before the Job."""
    return result is None or (result.meta.created or _FIRST) > (job.meta.created or _FIRST)
