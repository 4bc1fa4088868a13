"""Launching: the workers' Service, their access, and the Indexed Job of the present attempt."""

from datetime import datetime, timedelta

from neuroshard_api.job_status import Stage, StageName, StageState

from neuroshard_operator import names
from neuroshard_operator.actions import Action, Delete, Event, Manifest, Patch
from neuroshard_operator.children.access import REPAIRED, access, ensured
from neuroshard_operator.children.files import job_files
from neuroshard_operator.children.workers import service, worker_job
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import View, seconds_until, worker_count
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.stages.input_hashes import workers_hash
from neuroshard_operator.stages.planning import Planned
from neuroshard_operator.stages.result import Course, Step, says, says_of_workers

FIRST_PAUSE_S = 10.0
"""Before the second restart that counts; the first follows at once. Each further pause is twice as long."""
LONGEST_PAUSE_S = 300.0
LOOK_AGAIN_S = 10.0
"""While old pods end: a pod on a lost node ends by the clock, and nothing tells when."""


def launch(view: View, planned: Planned) -> tuple[Step, ChildJob | None]:
    """Return what makes the workers of this attempt be there, and their Job once it is.

    A Job is made only when no pod of another one may still run: there are never two sets of workers.
    """
    inputs = workers_hash(view.spec, planned.summary.hash)
    current = view.job_named(names.worker_job(view.name, view.attempt))
    if current is not None and current.meta.deleted is None:
        if current.meta.labels.get(names.INPUTS_HASH_LABEL) != names.short(inputs):
            return _outdated(view, current), None
        return _there(view, planned, current), current
    others = [job for job in view.owned_jobs(names.WORKER) if job is not current and job.outcome is None]
    living = view.live_workers_beside(None)
    if current is not None or others or living:
        return _waiting_for_old(view, len(living), _stopped(others)), None
    pause = _pause_until(view)
    if pause is not None:
        message = f"attempt {view.attempt} starts at {pause:%H:%M:%S} UTC, {_restarts(view)}"
        return _active(view, Reason.WAITING_TO_RESTART, message, look_again_s=seconds_until(pause, view.now)), None
    return _start(view, planned, inputs), None


def _there(view: View, planned: Planned, current: ChildJob) -> Step:
    """Return the step of workers that were started, with what sets right what someone touched."""
    nodes = view.spec.trainer.num_nodes
    started = [pod for pod in view.pods_of(current) if pod.phase != "Pending"]
    # A pod reads its files when it starts.
    files = [job_files(view)] if current.outcome is None and len(started) < nodes else []
    actions, events = ensured(view, [*_surroundings(view), *files])
    change = {}
    if current.outcome is None and current.parallelism != nodes:
        change["parallelism"] = nodes
    if current.outcome is None and current.suspended and not view.is_queued:
        change["suspend"] = False
    if change:
        patch = Patch(kind="Job", name=current.meta.name, uid=current.meta.uid, change={"spec": change})
        actions = (*actions, patch)
        message = f"Job {current.meta.name} was edited: {', '.join(change)} is set right"
        events = (*events, Event(kind="Warning", reason=REPAIRED, message=message))
    others = [job for job in view.owned_jobs(names.WORKER) if job is not current and job.outcome is None]
    message = f"Job {current.meta.name} runs under plan {planned.name}"
    return Step(
        shown=Stage.LAUNCHING,
        reason=Reason.WORKERS_STARTING,
        message=message,
        done=True,
        actions=(*actions, *_stopped(others)),
        events=events,
    )


def _start(view: View, planned: Planned, inputs: str) -> Step:
    files = job_files(view)
    job = worker_job(
        view,
        plan=planned.name,
        plan_key=planned.summary.key,
        workers_hash=inputs,
        files=files,
        result=names.report(view.name),
    )
    actions, events = ensured(view, [*_surroundings(view), files, job])
    # The attempt before is kept for its logs.
    old = [each for each in view.owned_jobs(names.WORKER) if each.attempt < view.attempt - 1]
    message = f"0 of {view.spec.trainer.num_nodes} workers are ready"
    return _active(view, Reason.WORKERS_STARTING, message, actions=(*actions, *_stopped(old)), events=events)


def _surroundings(view: View) -> list[Manifest]:
    """Return what workers need beside their Job."""
    return [service(view), *access(view, names.WORKER, names.report(view.name))]


def _outdated(view: View, current: ChildJob) -> Step:
    """Stop workers that were started before the job was changed: the change was made while it was suspended."""
    message = f"Job {current.meta.name} was started for another plan or trainer and is replaced"
    return _waiting_for_old(view, current.active, _stopped([current]), message)


def _waiting_for_old(view: View, living: int, actions: tuple[Action, ...], message: str = "") -> Step:
    message = message or f"{living} pods of an earlier start are still ending"
    return Step(
        shown=Stage.LAUNCHING,
        reason=Reason.WAITING_FOR_OLD_PODS,
        message=message,
        says=(says(ConditionType.PODS_READY, Reason.WAITING_FOR_OLD_PODS, message, holds=False),),
        actions=actions,
        facts={"workers": worker_count(view)},
        courses=(Course(stage=StageName.LAUNCHING, state=StageState.ACTIVE, message=message),),
        look_again_s=LOOK_AGAIN_S,
    )


def _stopped(jobs: list[ChildJob]) -> tuple[Action, ...]:
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True)
        for job in jobs
        if job.meta.deleted is None
    )


def _pause_until(view: View) -> datetime | None:
    """Return when the next attempt may start; None: now."""
    failure, counted = view.status.last_failure, view.status.restarts_count_towards_max or 0
    if failure is None or failure.time is None or counted <= 1:
        return None
    pause_s = min(FIRST_PAUSE_S * 2.0 ** min(counted - 2, 30), LONGEST_PAUSE_S)
    until = failure.time + timedelta(seconds=pause_s)
    return until if until > view.now else None


def _restarts(view: View) -> str:
    return f"after {view.status.restarts_count_towards_max} of at most {view.spec.failure_policy.max_restarts} restarts"


def _active(
    view: View,
    reason: Reason,
    message: str,
    *,
    actions: tuple[Action, ...] = (),
    events: tuple[Event, ...] = (),
    look_again_s: float | None = None,
) -> Step:
    name = names.worker_job(view.name, view.attempt)
    return Step(
        shown=Stage.LAUNCHING,
        reason=reason,
        message=message,
        says=says_of_workers(reason, message, holds=False),
        actions=actions,
        events=events,
        facts={"workers": worker_count(view)},
        courses=(Course(stage=StageName.LAUNCHING, state=StageState.ACTIVE, job_name=name, message=message),),
        look_again_s=look_again_s,
    )
