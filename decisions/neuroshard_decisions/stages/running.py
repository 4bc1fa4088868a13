"""Running: the workers' pods, their failures and restarts, and what they measure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from neuroshard_api.job.policies import FailureAction
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.job.status import (
    LastFailure,
    Stage,
    StageName,
    StageState,
)
from neuroshard_api.lifecycle.failures import FailureCause, FailureVerdict, believed, verdict
from neuroshard_api.lifecycle.restarts import HUNG, Attempt, NextAttempt, after_failure, no_progress, progress_due
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.replanning.record import with_plan_before

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Delete, Event, EventReason
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import ENDS_WITHIN, Context, earliest, pod_counts, seconds_until
from neuroshard_decisions.failures import cause_of, cause_of_loss, was_stopped
from neuroshard_decisions.observed.objects import OF_ANOTHER_NAMESPACE, ChildJob, ChildPod
from neuroshard_decisions.stages.input_hashes import asked_hash, replans_of
from neuroshard_decisions.stages.pinned import no_node_of_kind
from neuroshard_decisions.stages.queueing import accept_fewer, held_message, put_into_queue, queued
from neuroshard_decisions.stages.reports import (
    cleared,
    data_findings,
    last_progress,
    narrow_exchange,
    next_report_s,
    other_device,
    reported,
    unmeasured,
    unmeasured_check_s,
)
from neuroshard_decisions.stages.result import (
    Completion,
    StageResult,
    StageUpdate,
    condition,
    described,
    failed,
    worker_conditions,
)

MEETS_WITHIN = timedelta(seconds=10)
"""How long workers that all run need to meet: names of pods resolve some seconds after their start."""
SILENT_REQUEUE_S = 10.0
"""While a pod does not answer: it counts as lost by the clock, and nothing tells when."""


def succeeded(context: Context) -> StageResult | None:
    """Return the step that ends a job whose workers all succeeded; None while they did not.

    It is asked before anything else: work that is done is done, even if the job was suspended in that moment.
    """
    current = context.workers
    if current is None or not _have_succeeded(context, current):
        return None
    message = f"all {context.spec.trainer.num_nodes} workers succeeded{context.outlived_by(current)}"
    return StageResult(
        display_stage=Stage.SUCCEEDED,
        reason=Reason.TRAINED,
        message=message,
        conditions=worker_conditions(Reason.TRAINED, message, holds=False),
        status_fields={**pod_counts(context), **reported(context, last=True)},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED),
            StageUpdate(
                stage=StageName.RUNNING, state=StageState.SUCCEEDED, job_name=current.meta.name, message=message
            ),
        ),
        completion=Completion(succeeded=True, reason=Reason.TRAINED, message=message),
    )


def _have_succeeded(context: Context, current: ChildJob) -> bool:
    """Return whether all workers succeeded: the Job says so, or all their trainers where others keep it from that."""
    if current.outcome is not None and current.outcome.succeeded:
        return True
    pods = context.pods_of(current)
    well = {pod.index for pod in pods if pod.ended_well and not pod.disruption}
    is_over = current.outcome is not None or any(pod.is_outlived for pod in pods)
    return is_over and len(well) == current.parallelism == context.spec.trainer.num_nodes


def run(context: Context, current: ChildJob) -> StageResult:
    """Return the result for workers that were started."""
    jobs, all_pods = context.with_servers(current), context.pods_with_servers(current)
    has_failed = any(job.outcome is not None and not job.outcome.succeeded for job in jobs)
    if current.outcome is not None or has_failed or any(pod.is_outlived and pod.exit_code for pod in all_pods):
        return _failure(context, current)
    held = next((job for job in jobs if context.is_held(job)), None)
    if held is not None:
        message = held_message(context, held)
        step = queued(_launching(context, current, Reason.QUEUED, message), message)
        fewer, due_s = accept_fewer(context, current)
        moved = [action for job in jobs for action in put_into_queue(context, job)]
        return replace(step, actions=(*moved, *fewer), requeue_after_s=earliest([step.requeue_after_s, due_s]))
    silent = _lost_nodes(context, current) or _hang(context, current)
    if silent is not None:
        return silent
    wanted = context.spec.trainer.num_nodes
    pods = context.pods_of(current)
    ready = sum(pod.ready for pod in pods)
    ended = sum(pod.ended_well for pod in pods)
    message = f"{ready} of {wanted} workers are ready" + (f", {ended} succeeded" if ended else "")
    serving = sum(pod.ready or pod.ended_well for pod in all_pods if pod.role == names.SERVER)
    if context.num_servers:
        message += f", {serving} of {context.num_servers} embedding servers"
    message += context.outlived_by(current)
    if ready + ended >= wanted and serving >= context.num_servers:
        message += unmeasured(context)
        return _running(context, current, Reason.WORKERS_READY, message, are_ready=True)
    stuck = context.trouble_of(current)
    if stuck:
        message = f"{message}: {stuck}{_deadlock(context)}"
    if context.stage_status(StageName.LAUNCHING).state is StageState.SUCCEEDED:  # so these workers ran already
        return _running(context, current, Reason.WORKERS_LOST, message, are_ready=False)
    return _launching(context, current, Reason.PODS_PENDING if stuck else Reason.WORKERS_STARTING, message)


def _deadlock(context: Context) -> str:
    """Return the jobs that hold devices and wait for more, as this one does, as the end of a message; or empty."""
    others = context.observed.half_started
    if not others:
        return ""
    who = ", ".join(f"job {each}" if each != OF_ANOTHER_NAMESPACE else f"a job {each}" for each in others[:3])
    hint = "hint: suspend one of them, set runPolicy.preRunningDeadlineSeconds, or queue them with Kueue"
    return f"; {who} also holds devices and waits for more, so that none of them starts; {hint}"


def _running(context: Context, current: ChildJob, reason: Reason, message: str, *, are_ready: bool) -> StageResult:
    report = reported(context, last=False)
    exchange, events = narrow_exchange(context)
    anomalies, found = data_findings(context)
    return StageResult(
        display_stage=Stage.RUNNING,
        reason=reason,
        message=message,
        conditions=(
            condition(ConditionType.PODS_READY, reason, message, holds=are_ready),
            condition(ConditionType.RUNNING, reason, message, holds=True),
        ),
        warnings=(*other_device(context, report), *exchange, *anomalies, *no_node_of_kind(context, current)),
        events=(*events, *found),
        status_fields={**pod_counts(context), **report},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.SUCCEEDED, job_name=current.meta.name),
            StageUpdate(stage=StageName.RUNNING, state=StageState.ACTIVE, job_name=current.meta.name, message=message),
        ),
        requeue_after_s=earliest(
            [
                next_report_s(context, report),
                _hang_check_s(context),
                context.loss_check_s(current),
                unmeasured_check_s(context),
            ]
        ),
    )


def _launching(context: Context, current: ChildJob, reason: Reason, message: str) -> StageResult:
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        conditions=worker_conditions(reason, message, holds=False),
        warnings=no_node_of_kind(context, current),
        status_fields={**pod_counts(context), **reported(context, last=False)},
        stage_updates=(
            StageUpdate(
                stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=current.meta.name, message=message
            ),
        ),
        requeue_after_s=earliest([context.start_check_s(current), context.loss_check_s(current)]),
    )


def _failure(context: Context, current: ChildJob) -> StageResult:
    """Return the end of the job or the next attempt. The attempt is recorded first, and started by a later pass."""
    jobs = context.with_servers(current)
    cause = cause_of(jobs, context.observed.pods)
    silent = sorted(_expected(context, current), key=lambda pod: pod.meta.name)
    silent = [pod for pod in silent if pod.live and pod.termination is None]
    never_met = context.ready_since is None and _nobody_was_late(context, current)
    if cause.exit_code == ExitCode.PEER_LOST and silent and not never_met and not all(map(context.is_lost, silent)):
        # Its peers noticed a lost node long before the cluster does. The next attempt waits for these pods anyway.
        message = f"{described(cause)}; pod {silent[0].meta.name} on node {silent[0].node or '(none)'} does not answer"
        if context.ready_since is None:
            waiting = _launching(context, current, Reason.WORKERS_LOST, message)
        else:
            waiting = _running(context, current, Reason.WORKERS_LOST, message, are_ready=False)
        if current.outcome is not None:
            end = _end_of_servers(context, current, cause.time or context.now)
            return replace(waiting, actions=end, requeue_after_s=SILENT_REQUEUE_S)
        # Servers lost workers whose Job has not failed: their nodes are lost, or they hang.
        return _hang(context, current) or replace(waiting, requeue_after_s=SILENT_REQUEUE_S)
    lost_node = cause.exit_code == ExitCode.PEER_LOST and bool(silent) and not never_met
    decided = verdict(
        context.spec.failure_policy,
        cause,
        has_run=context.ready_since is not None,
        nobody_late=never_met,
        stopped=context.rules.may_stop_workers and was_stopped(jobs, context.observed.pods),
        lost_node=lost_node,
    )
    if lost_node:  # the next attempt avoids the silent pod's node and not that of the peer that noticed it
        noticed = f"{cause}; no pod on this node answers"
        cause = cause_of_loss(silent, noticed, cause.time or context.now)
    ended = believed(cause.time, since=current.meta.created, now=context.now)
    return _ended(context, replace(cause, time=ended), decided, note=context.outlived_by(current))


def _expected(context: Context, current: ChildJob) -> list[ChildPod]:
    """Return the pods that end where a peer of theirs is gone: not servers that wait for workers that gave up."""
    return context.pods_of(current) if context.ready_since is None else context.pods_with_servers(current)


def _end_of_servers(context: Context, current: ChildJob, since: datetime) -> tuple[Action, ...]:
    """Return the deletion of embedding servers that do not end after their workers.

    A Job deletes its own pods once one of them has failed; of two Jobs nobody does.
    """
    servers = context.servers_of(current)
    if servers is None or servers.outcome is not None or servers.meta.deleted is not None:
        return ()
    if context.now < since + ENDS_WITHIN:
        return ()
    return (Delete(kind="Job", name=servers.meta.name, uid=servers.meta.uid, wait_for_pods=True),)


def _nobody_was_late(context: Context, current: ChildJob) -> bool:
    """Return whether the containers of all workers ran at once for a while, in which they could have met."""
    wanted = context.num_pods(current)
    if wanted == 1:
        return True
    pods = context.pods_with_servers(current)
    pods = [pod for pod in pods if pod.exit_code is not None or pod.phase == "Running"]
    starts = [pod.started for pod in pods if pod.started is not None]
    # Each waits for the others from its own start on.
    spread = max(starts) - min(starts) if starts else timedelta(0)
    timeout = timedelta(seconds=context.spec.experimental.rendezvous.timeout_seconds)
    return len(pods) == wanted and timeout - spread >= min(MEETS_WITHIN, timeout / 2)


def _lost_nodes(context: Context, current: ChildJob) -> StageResult | None:
    """Return the restart of workers whose nodes are gone: their Job gets no outcome before the Node objects go.

    None of the others can complete, and where all pods are lost nobody else is left to fail. None: no node is lost.
    """
    lost = context.lost_pods(current)
    if not lost:
        return None
    what = "workers and embedding servers" if context.servers_of(current) else "workers"
    message = f"{len(lost)} of {context.num_pods(current)} {what} are on nodes that do not answer"
    cause = cause_of_loss(lost, message, context.now)
    until = min(pod.meta.deleted for pod in lost if pod.meta.deleted is not None)
    decided = verdict(
        context.spec.failure_policy, cause, has_run=context.ready_since is not None, stopped=False, lost_node=True
    )
    return _ended(context, cause, decided, healthy_until=until)


def _hang(context: Context, current: ChildJob) -> StageResult | None:
    """Return the restart of workers that report no progress any more; None while they do, or never did."""
    last = last_progress(context)
    cause = no_progress(context.spec.failure_policy, last, context.now)
    if cause is None:
        return None
    if reported(context, last=True):
        return None  # it came since the status was written, as after a pause of the operator
    evicted = [pod for pod in context.pods_with_servers(current) if pod.live and pod.disruption]
    if evicted:  # a pod on a node that stopped answering: the cluster takes it away, and nothing else ends
        noticed = cause_of_loss(evicted, cause.message, context.now)
        decided = verdict(context.spec.failure_policy, noticed, lost_node=True)
        return _ended(context, noticed, decided, healthy_until=last)
    return _ended(context, cause, HUNG, healthy_until=last)


def _hang_check_s(context: Context) -> float | None:
    due = progress_due(context.spec.failure_policy, last_progress(context))
    return None if due is None else seconds_until(due, context.now)


def _healthy_time(context: Context, until: datetime) -> timedelta:
    """Return the training time of this attempt's workers: to the failure, or where they report, to the last report."""
    if context.ready_since is None:
        return timedelta(0)
    last = last_progress(context)
    if last is not None and not reported(context, last=True):
        until = min(until, last)
    return max(until - context.ready_since, timedelta(0))


def _ended(
    context: Context,
    cause: FailureCause,
    decided: FailureVerdict,
    *,
    healthy_until: datetime | None = None,
    note: str = "",
) -> StageResult:
    """Return the result after the workers have failed: another attempt, or the end of the job.

    `healthy_until`: when they last trained, where that was before the cause's time. `note`: what else people should
    know, at the end of the message.
    """
    healthy = _healthy_time(context, healthy_until or cause.time or context.now)
    attempt = Attempt(number=context.attempt, healthy=healthy, never_ran=cause.never_ran)
    what = described(cause)
    before = _plan_before(context, cause) if decided.counts else None
    record: Mapping[str, object] = {}
    if before is not None:
        record = {"replanning": before}
        what = f"{what}; they resume under the plan before, since this one was not measured yet"
        decided, note = replace(decided, action=FailureAction.RESTART_JOB_AND_IGNORE_MAX_RESTARTS), ""
        attempt = replace(attempt, never_ran=False)
    follows = after_failure(context.spec.failure_policy, context.status, attempt, decided, what=what, note=note)
    status_fields = {**pod_counts(context), **reported(context, last=True), **record}
    failure = cause.recorded(Stage.RUNNING, context.now)
    if isinstance(follows, NextAttempt):
        return _restart(context, follows, failure, status_fields)
    reason = Reason.TOO_MANY_RESTARTS if follows.too_many else Reason.WORKERS_FAILED
    message = follows.message
    step = failed(display_stage=Stage.RUNNING, stage=StageName.RUNNING, reason=reason, message=message, failure=failure)
    return replace(step, status_fields=status_fields, conditions=worker_conditions(reason, message, holds=False))


def _plan_before(context: Context, cause: FailureCause) -> ReplanningStatus | None:
    """Return the record in which the plan before is in force again. None: the plan in force is not in doubt."""
    record = context.status.replanning
    message = f"the workers failed under the plan that was taken, before it was measured: {described(cause)}"
    return None if record is None else with_plan_before(record, message=message, now=context.now)


def restarted_elsewhere(context: Context, message: str, status_fields: Mapping[str, object]) -> StageResult:
    """Return the restart of workers that train. It counts as no failure; later passes start the next attempt.

    Args:
        context: of the pass.
        message: why.
        status_fields: what else is recorded.
    """
    old_reports = cleared(context)
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.RESTARTING,
        message=message,
        conditions=worker_conditions(Reason.RESTARTING, message, holds=False),
        warnings=other_device(context, old_reports),
        status_fields={**old_reports, **status_fields, "restarts": context.attempt + 1},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, restarted=True),
            StageUpdate(stage=StageName.RUNNING, state=StageState.WAITING, message=message),
        ),
        requeue_after_s=0.1,
    )


def _restart(
    context: Context, follows: NextAttempt, failure: LastFailure, status_fields: Mapping[str, object]
) -> StageResult:
    message, replans = follows.message, follows.replans
    old_reports = cleared(context)
    if replans and context.broken_rules:  # a spec that this release refuses gets no plan, and has one to go on with
        replans = False
        message = f"{message}; under the plan there is, since another needs a changed spec: {context.broken_rules[0]}"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.RESTARTING,
        message=message,
        conditions=worker_conditions(Reason.RESTARTING, message, holds=False),
        warnings=other_device(context, old_reports),
        events=(Event(reason=EventReason.WORKERS_RESTARTED, message=message),),
        status_fields={
            **status_fields,
            **old_reports,
            **follows.status_fields(failure, context.now),
            **({"replans": replans_of(context) + 1, "replans_inputs_hash": asked_hash(context)} if replans else {}),
        },
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, restarted=True),
            StageUpdate(stage=StageName.RUNNING, state=StageState.WAITING, message=message),
        ),
        requeue_after_s=0.1,
    )
