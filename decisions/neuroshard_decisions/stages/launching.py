"""Launching: the workers' Service, their access, and the Indexed Jobs of the present attempt."""

from dataclasses import replace
from datetime import datetime, timedelta

from neuroshard_api.job.status import Servers, Stage, StageName, StageState
from neuroshard_api.lifecycle.restarts import LONGEST_PAUSE_S

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Change, Delete, Event, EventReason, Start, Sustain, WorkersRun
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import ENDS_WITHIN, Context, pod_counts, seconds_until, slow_nodes
from neuroshard_decisions.files import job_files
from neuroshard_decisions.hardware import product_selector
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.stages.checkpoints import no_checkpoint_volume
from neuroshard_decisions.stages.input_hashes import workers_hash
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.queueing import servers_not_queued
from neuroshard_decisions.stages.reports import cleared, other_device
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition, worker_conditions

REQUEUE_AFTER_S = 10.0
"""While old pods end: a pod on a lost node ends by the clock, and nothing tells when."""


def launch(context: Context, planned: Planned) -> tuple[StageResult, ChildJob | None]:
    """Return the result that starts this attempt's workers, and their Job once it exists.

    A Job is made only when no pod of another one may still run: there are never two sets of workers. Embedding servers
    are a Job next to it, and the two come and go together: without one of them the other is of no use.
    """
    inputs = workers_hash(context.spec, planned.summary.hash)
    current = context.workers
    if current is not None and current.meta.deleted is None:
        why = _why_replaced(context, current, inputs)
        return (_there(context, planned, current), current) if not why else (_replaced(context, current, why), None)
    abandoned = [job for job in (current, _servers(context)) if job is not None and context.is_abandoned(job)]
    if abandoned:
        return _past(context, abandoned[0]), None
    others = _others(context, current)
    living = context.live_workers
    if current is not None or others or living:
        return _waiting_for_old(context, len(living), _stopped(others)), None
    pause = _pause_until(context)
    if pause is not None:
        message = f"attempt {context.attempt} starts at {pause:%H:%M:%S} UTC, {_restarts(context)}"
        return _active(
            context, Reason.WAITING_TO_RESTART, message, requeue_after_s=seconds_until(pause, context.now)
        ), None
    return _start(context, planned), None


def _servers(context: Context) -> ChildJob | None:
    return context.job_of(names.SERVER, context.attempt)


def _of_attempts(context: Context) -> list[ChildJob]:
    """Return the Jobs of all attempts: of workers, and of their embedding servers."""
    return [job for role in names.OF_AN_ATTEMPT for job in context.owned_jobs(role)]


def _others(context: Context, current: ChildJob | None) -> list[ChildJob]:
    """Return the unfinished Jobs of other attempts whose pods may still run; without workers, of servers too."""
    present = [] if current is None else [current]
    own = present if current is None or current.meta.deleted else context.with_servers(current)
    jobs = [job for job in _of_attempts(context) if job not in own]
    jobs = [job for job in jobs if job.outcome is None or _lingers(context, job)]
    return [job for job in jobs if not context.is_abandoned(job)]


def _lingers(context: Context, job: ChildJob) -> bool:
    """Return whether nobody ends the pods of a Job whose partner in a JobSet has failed."""
    if job.job_set is None or job.outcome is None or job.outcome.succeeded or job.outcome.time is None:
        return False
    is_due = context.now >= job.outcome.time + ENDS_WITHIN
    return is_due and any(pod.live and pod.meta.deleted is None for pod in context.pods_of(job))


def _lacks_servers(context: Context, current: ChildJob) -> bool:
    """Return whether the Job of the embedding servers of workers that have not ended is not there."""
    servers = context.servers_of(current)
    is_there = servers is not None and servers.meta.deleted is None
    return bool(context.num_servers) and current.outcome is None and not is_there


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
    sizes = {names.WORKER: context.spec.trainer.num_nodes, names.SERVER: context.num_servers}
    started = [pod for pod in context.pods_with_servers(current) if pod.phase != "Pending"]
    # A pod reads its files when it starts.
    files = (job_files(context),) if current.outcome is None and len(started) < sum(sizes.values()) else ()
    sustained = Sustain(role=names.WORKER, result=names.report(context.name), files=files, is_met=True)
    repairs: list[Action] = []
    events: list[Event] = []
    for job in context.with_servers(current):
        change, edited = _restored(context, job, sizes[job.role])
        if edited:
            repairs.append(change)
            message = f"Job {job.meta.name} was edited: {', '.join(edited)} is restored"
            events.append(Event(reason=EventReason.CHILD_REPAIRED, message=message))
    if _lacks_servers(context, current):
        repairs.append(Start(run=workers_run(context, planned)))
    others = _others(context, current)
    message = f"Job {current.meta.name} runs under plan {planned.name}"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WORKERS_STARTING,
        message=message,
        done=True,
        warnings=no_checkpoint_volume(context),
        actions=(sustained, *repairs, *_stopped(others)),
        events=tuple(events),
    )


def _restored(context: Context, job: ChildJob, size: int) -> tuple[Change, list[str]]:
    """Return the change that gives a Job its number of pods back and lets it run, and the names of what it changes."""
    is_there = job.outcome is None and job.meta.deleted is None
    is_resized = is_there and job.parallelism != size
    is_stopped = is_there and job.suspended and not context.is_held(job)
    change = Change(
        kind="Job",
        name=job.meta.name,
        uid=job.meta.uid,
        parallelism=size if is_resized else None,
        suspended=False if is_stopped else None,
        labels={names.RESUMED_LABEL: "true"} if is_stopped else {},
    )
    return change, [what for what, holds in (("parallelism", is_resized), ("suspend", is_stopped)) if holds]


def _start(context: Context, planned: Planned) -> StageResult:
    num_servers = _num_servers(context, planned)
    problem = servers_not_queued(context) if num_servers else None
    if problem is not None:  # since the label came, which a change of it tells
        return _active(context, Reason.INVALID_INPUT, problem)
    # The attempt before is kept for its logs.
    old = [each for each in _of_attempts(context) if each.attempt < context.attempt - 1]
    message = f"0 of {context.spec.trainer.num_nodes} workers are ready"
    run = workers_run(context, planned)
    actions = (Start(run=run), *_stopped(old))
    step = _active(context, Reason.WORKERS_STARTING, message, job_name=run.name, actions=actions)
    servers = Servers(desired=num_servers, ready=0) if num_servers else None
    return replace(step, status_fields={**step.status_fields, "servers": servers})


def _num_servers(context: Context, planned: Planned) -> int:
    """Return the number of pods of embedding servers that a plan needs: none where it has no tables there."""
    servers = planned.summary.servers
    return 0 if servers is None or context.rules.starts_servers else servers.count


def workers_run(context: Context, planned: Planned) -> WorkersRun:
    """Return the workers of this attempt, under their plan."""
    has_servers = bool(_num_servers(context, planned))
    job_set = _job_set(context, has_servers=has_servers)
    return WorkersRun(
        name=_job_name(context, names.WORKER, job_set),
        attempt=context.attempt,
        plan=planned.name,
        plan_key=planned.summary.key,
        workers_hash=workers_hash(context.spec, planned.summary.hash),
        files=job_files(context),
        result=names.report(context.name),
        host_bytes=planned.summary.host_bytes_per_node,
        nodes_per_rack=planned.summary.nodes_per_rack,
        node_labels=product_selector(context.status.hardware),
        avoided_nodes=tuple(dict.fromkeys([*_failed_node(context), *slow_nodes(context)])),
        servers=_job_name(context, names.SERVER, job_set) if has_servers else None,
        job_set=job_set,
    )


def _job_set(context: Context, *, has_servers: bool) -> str | None:
    """Return the name of what joins the workers of the present attempt and their servers. None: nothing does."""
    return names.job_set(context.name, context.attempt) if has_servers and context.is_queued else None


def _job_name(context: Context, role: str, job_set: str | None) -> str:
    if job_set is not None:
        return names.job_of_set(names.PARTS_OF_SET[role], job_set)
    return names.job_of_attempt(role, context.name, context.attempt)


def _failed_node(context: Context) -> tuple[str, ...]:
    """Return the node of the last failure, which may be sick."""
    failure = context.status.last_failure
    if not context.attempt or failure is None or failure.stage is not Stage.RUNNING or not failure.node_name:
        return ()
    return (failure.node_name,)


def _why_replaced(context: Context, current: ChildJob, inputs: str) -> str:
    """Return the reason to replace workers that were started, in the same attempt; empty: they stay.

    They were started before the job was changed, which it was while suspended; or somebody deleted their servers; or
    Kueue holds them and their servers one by one, since before the job had the label of a queue.
    """
    if current.meta.labels.get(names.INPUTS_HASH_LABEL) != names.short(inputs):
        return f"Job {current.meta.name} was started for another plan or trainer and is replaced"
    servers = _servers(context)
    if current.outcome is None and servers is not None and context.is_abandoned(servers):
        return f"Job {servers.meta.name} was deleted, and the nodes of its pods do not answer; its workers are replaced"
    if _enters_a_queue(context, current):
        return f"Job {current.meta.name} is replaced, for it and its embedding servers enter a queue as one"
    if context.ready_since is not None and _lacks_servers(context, current):
        return f"Job {_job_name(context, names.SERVER, None)} is gone, and its workers are replaced"
    return ""


def _enters_a_queue(context: Context, current: ChildJob) -> bool:
    """Return whether workers that do not run yet have servers, and the label of a queue by now."""
    if current.job_set is not None or current.outcome is not None or not (context.is_queued and context.num_servers):
        return False
    return current.suspended or _lacks_servers(context, current)


def _replaced(context: Context, current: ChildJob, message: str) -> StageResult:
    """Stop workers, and their servers, for others of the same attempt."""
    return _waiting_for_old(context, current.active, _stopped(context.with_servers(current)), message)


def _waiting_for_old(context: Context, living: int, actions: tuple[Action, ...], message: str = "") -> StageResult:
    message = message or f"pods of an earlier start are still ending ({living} left)"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WAITING_FOR_OLD_PODS,
        message=message,
        conditions=(condition(ConditionType.PODS_READY, Reason.WAITING_FOR_OLD_PODS, message, holds=False),),
        actions=actions,
        status_fields=pod_counts(context),
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
    job_name: str | None = None,
    actions: tuple[Action, ...] = (),
    events: tuple[Event, ...] = (),
    requeue_after_s: float | None = None,
) -> StageResult:
    name = job_name or _job_name(context, names.WORKER, _job_set(context, has_servers=bool(context.num_servers)))
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        conditions=worker_conditions(reason, message, holds=False),
        actions=actions,
        events=events,
        status_fields=pod_counts(context),
        stage_updates=(
            StageUpdate(stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=name, message=message),
        ),
        requeue_after_s=requeue_after_s,
    )
