"""Launching: the workers' Service, their access, and the Indexed Job of the present attempt."""

from dataclasses import replace
from datetime import datetime, timedelta

from neuroshard_api.job.status import Stage, StageName, StageState
from neuroshard_api.lifecycle.restarts import LONGEST_PAUSE_S

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Change, Delete, Event, EventReason, Start, Sustain, WorkersRun
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context, seconds_until, slow_nodes, worker_count
from neuroshard_decisions.files import job_files
from neuroshard_decisions.hardware import product_selector
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.stages.checkpoints import no_checkpoint_volume
from neuroshard_decisions.stages.input_hashes import workers_hash
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.reports import cleared, other_device
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition, worker_conditions

REQUEUE_AFTER_S = 10.0
"""While old pods end: a pod on a lost node ends by the clock, and nothing tells when."""


def launch(context: Context, planned: Planned) -> tuple[StageResult, ChildJob | None]:
    """Return the result that starts this attempt's workers, and their Job once it exists.

    A Job is made only when no pod of another one may still run: there are never two sets of workers.
    """
    inputs = workers_hash(context.spec, planned.summary.hash)
    current = context.job_named(names.worker_job(context.name, context.attempt))
    if current is not None and current.meta.deleted is None:
        if current.meta.labels.get(names.INPUTS_HASH_LABEL) != names.short(inputs):
            return _outdated(context, current), None
        return _there(context, planned, current), current
    if current is not None and context.is_abandoned(current):
        return _past(context, current), None
    others = _others(context, current)
    living = context.live_workers_beside(None)
    if current is not None or others or living:
        return _waiting_for_old(context, len(living), _stopped(others)), None
    pause = _pause_until(context)
    if pause is not None:
        message = f"attempt {context.attempt} starts at {pause:%H:%M:%S} UTC, {_restarts(context)}"
        return _active(
            context, Reason.WAITING_TO_RESTART, message, requeue_after_s=seconds_until(pause, context.now)
        ), None
    return _start(context, planned, inputs), None


def _others(context: Context, current: ChildJob | None) -> list[ChildJob]:
    """Return the unfinished worker Jobs of other attempts whose pods may still run."""
    jobs = [job for job in context.owned_jobs(names.WORKER) if job is not current and job.outcome is None]
    return [job for job in jobs if not context.is_abandoned(job)]


def _past(context: Context, current: ChildJob) -> StageResult:
    """Go on to the next attempt, past a Job that was deleted and keeps its name until its nodes answer or are removed.

    The attempt is recorded first, and started by a later pass.
    """
    message = f"Job {current.meta.name} was deleted, and the nodes of its pods do not answer; another attempt follows"
    step = _active(context, Reason.RESTARTING, message, requeue_after_s=0.1)
    old_reports = cleared(context)
    return replace(
        step,
        warnings=other_device(context, old_reports),
        status_fields={**step.status_fields, **old_reports, "restarts": context.attempt + 1},
    )


def _there(context: Context, planned: Planned, current: ChildJob) -> StageResult:
    """Return the step of workers that were started, with what sets right what someone touched."""
    nodes = context.spec.trainer.num_nodes
    started = [pod for pod in context.pods_of(current) if pod.phase != "Pending"]
    # A pod reads its files when it starts.
    files = (job_files(context),) if current.outcome is None and len(started) < nodes else ()
    sustained = Sustain(role=names.WORKER, result=names.report(context.name), files=files, is_met=True)
    is_resized = current.outcome is None and current.parallelism != nodes
    is_stopped = current.outcome is None and current.suspended and not context.is_held(current)
    edited = [what for what, holds in (("parallelism", is_resized), ("suspend", is_stopped)) if holds]
    repairs: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    if edited:
        change = Change(
            kind="Job",
            name=current.meta.name,
            uid=current.meta.uid,
            parallelism=nodes if is_resized else None,
            suspended=False if is_stopped else None,
            labels={names.RESUMED_LABEL: "true"} if is_stopped else {},
        )
        repairs = (change,)
        message = f"Job {current.meta.name} was edited: {', '.join(edited)} is restored"
        events = (Event(reason=EventReason.CHILD_REPAIRED, message=message),)
    others = _others(context, current)
    message = f"Job {current.meta.name} runs under plan {planned.name}"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WORKERS_STARTING,
        message=message,
        done=True,
        warnings=no_checkpoint_volume(context),
        actions=(sustained, *repairs, *_stopped(others)),
        events=events,
    )


def _start(context: Context, planned: Planned, inputs: str) -> StageResult:
    run = WorkersRun(
        name=names.worker_job(context.name, context.attempt),
        attempt=context.attempt,
        plan=planned.name,
        plan_key=planned.summary.key,
        workers_hash=inputs,
        files=job_files(context),
        result=names.report(context.name),
        host_bytes=planned.summary.host_bytes_per_node,
        nodes_per_rack=planned.summary.nodes_per_rack,
        node_labels=product_selector(context.status.hardware),
        avoided_nodes=tuple(dict.fromkeys([*_failed_node(context), *slow_nodes(context)])),
    )
    # The attempt before is kept for its logs.
    old = [each for each in context.owned_jobs(names.WORKER) if each.attempt < context.attempt - 1]
    message = f"0 of {context.spec.trainer.num_nodes} workers are ready"
    return _active(context, Reason.WORKERS_STARTING, message, actions=(Start(run=run), *_stopped(old)))


def _failed_node(context: Context) -> tuple[str, ...]:
    """Return the node of the last failure, which may be sick."""
    failure = context.status.last_failure
    if not context.attempt or failure is None or failure.stage is not Stage.RUNNING or not failure.node_name:
        return ()
    return (failure.node_name,)


def _outdated(context: Context, current: ChildJob) -> StageResult:
    """Stop workers that were started before the job was changed: the change was made while it was suspended."""
    message = f"Job {current.meta.name} was started for another plan or trainer and is replaced"
    return _waiting_for_old(context, current.active, _stopped([current]), message)


def _waiting_for_old(context: Context, living: int, actions: tuple[Action, ...], message: str = "") -> StageResult:
    message = message or f"pods of an earlier start are still ending ({living} left)"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WAITING_FOR_OLD_PODS,
        message=message,
        conditions=(condition(ConditionType.PODS_READY, Reason.WAITING_FOR_OLD_PODS, message, holds=False),),
        actions=actions,
        status_fields={"workers": worker_count(context)},
        stage_updates=(StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, message=message),),
        requeue_after_s=REQUEUE_AFTER_S,
    )


def _stopped(jobs: list[ChildJob]) -> tuple[Action, ...]:
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True)
        for job in jobs
        if job.meta.deleted is None
    )


def _pause_until(context: Context) -> datetime | None:
    """Return the earliest start of the next attempt; None: now.

    A start that is later than any pause is none that this clock gave: the operator ran with another clock, or another
    hand wrote it.
    """
    until = context.status.next_start_time
    latest = context.now + timedelta(seconds=LONGEST_PAUSE_S)
    return until if until is not None and context.now < until <= latest else None


def _restarts(context: Context) -> str:
    counted, most = context.status.restarts_count_towards_max, context.spec.failure_policy.max_restarts
    return f"after {counted} of at most {most} restarts"


def _active(
    context: Context,
    reason: Reason,
    message: str,
    *,
    actions: tuple[Action, ...] = (),
    events: tuple[Event, ...] = (),
    requeue_after_s: float | None = None,
) -> StageResult:
    name = names.worker_job(context.name, context.attempt)
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        conditions=worker_conditions(reason, message, holds=False),
        actions=actions,
        events=events,
        status_fields={"workers": worker_count(context)},
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=name, message=message),
        ),
        requeue_after_s=requeue_after_s,
    )
