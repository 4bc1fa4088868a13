"""The size of elastic jobs in a queue of Kueue's: fewer workers than were asked for, and room for more.

    workers wait for half a minute -> any number down to the minimum will do (`queueing.accept_fewer`)
    fewer are admitted -> size recorded, and planned for while they hold the quota -> workers of that size
    workers of less than the maximum train -> a question to the queue (`Ask`) -> size recorded, and planned for while
    the question holds the quota -> restart, where it pays -> workers of that size wait, and the question goes

Kueue alone knows what a queue may borrow, preempt, and share, so that it is asked, and no quota is computed here.
Workers that were admitted in another number than they were planned for never train: their rendezvous has the other one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from neuroshard_api.job.elastic import SizeReason
from neuroshard_api.job.status import Status

from neuroshard_decisions import names
from neuroshard_decisions.actions import Ask, Delete
from neuroshard_decisions.context import SLOW_START_S, Context, earliest, seconds_until
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.stages.elastic import is_elastic, restarted_at, within
from neuroshard_decisions.stages.launching import workers_run
from neuroshard_decisions.stages.queueing import is_in_queue
from neuroshard_decisions.stages.result import StageResult
from neuroshard_decisions.stages.training import TrainingWorkers

OPEN_FOR = timedelta(minutes=10)
"""How long a question outlives passes that do not ask it, while its size is planned for."""


def take_admitted(context: Context, workers: ChildJob) -> StageResult | None:
    """Return the restart of workers in the number that Kueue admitted, where it is smaller. None: it is not.

    They hold their quota until the next attempt has a plan.
    """
    admitted, before = workers.parallelism, context.spec.trainer.num_nodes
    is_running = not workers.suspended and workers.outcome is None and is_in_queue(workers)
    if not (is_elastic(context) and is_running and admitted < before and workers.completions == admitted):
        return None
    recorded = context.status.elastic
    why = f"Kueue admits {admitted} of {before} workers"
    is_missed = recorded is not None and recorded.reason in {SizeReason.QUOTA_RETURNED, SizeReason.NODES_JOINED}
    return restarted_at(context, within(context.sizes, admitted), SizeReason.QUOTA_LACKING, why, is_missed=is_missed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the queue says to the question for more workers."""

    question: Ask
    admitted: int = 0
    """Workers that it has quota for, in addition."""
    waits_s: float | None = None
    """Seconds for which the question is kept. None: it is answered."""

    def kept(self, step: StageResult) -> StageResult:
        """Return a step that keeps the question, and with it the quota."""
        return replace(step, actions=(*step.actions, self.question))


def ask(training: TrainingWorkers, num_nodes: int) -> Answer:
    """Return the queue's answer to the question for a number of workers in addition, which is asked thereby.

    A queue that admits none of them within half a minute has no room: a question that waits for longer would hold up
    those after it where a queue keeps its order.
    """
    context = training.context
    name = names.job_of_attempt(names.QUOTA, context.name, context.attempt)
    question = Ask(name=name, run=workers_run(context, training.planned), num_nodes=num_nodes)
    job = context.job_named(name)
    if job is None or job.meta.deleted is not None:
        return Answer(question=question, waits_s=SLOW_START_S)
    if not job.suspended:
        return Answer(question=question, admitted=job.parallelism)
    until = (job.meta.created or context.now) + timedelta(seconds=SLOW_START_S)
    return Answer(question=question, waits_s=seconds_until(until, context.now) if context.now < until else None)


def give_back(context: Context, prepared: Sequence[StageResult]) -> list[StageResult]:
    """Return the stages before workers, without quota of another start that a stage in the same queue waits for.

    A default queue has the planner too. What the workers of the start before and a question hold may be all there is.
    """
    waiting = [
        job for role in (names.PROFILER, names.PLANNER) for job in context.owned_jobs(role) if _waits(context, job)
    ]
    holders = [
        job
        for role in (names.WORKER, names.QUOTA)
        for job in context.owned_jobs(role)
        if not job.suspended and job.outcome is None and job.meta.deleted is None
    ]
    if not waiting or not holders:
        return list(prepared)
    due = max(job.meta.created or context.now for job in waiting) + timedelta(seconds=SLOW_START_S)
    *before, last = prepared
    if context.now < due:
        wanted_s = (last.requeue_after_s, seconds_until(due, context.now))
        return [*before, replace(last, requeue_after_s=earliest(wanted_s))]
    gone = (Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True) for job in holders)
    return [*before, replace(last, actions=(*last.actions, *gone))]


def _waits(context: Context, job: ChildJob) -> bool:
    return context.is_held(job) and job.outcome is None and job.meta.deleted is None


def withdrawn(context: Context, steps: Iterable[StageResult], status: Status) -> tuple[Delete, ...]:
    """Return the deletion of questions that no step asks; between two starts they keep the quota for the next one.

    A pass without a report of the workers, as after a restart of the operator, leaves a size open that is planned for.
    """
    questions = [job for job in context.owned_jobs(names.QUOTA) if job.meta.deleted is None]
    if not questions or (context.current_workers is None and not context.spec.suspend):
        return ()
    actions = [action for step in steps for action in step.actions]
    kept = {each.name for each in actions if isinstance(each, Ask | Delete)}
    growth = None if status.elastic is None else status.elastic.growth
    is_open = growth is not None and growth.verdict is None and not context.spec.suspend
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid)
        for job in questions
        if job.meta.name not in kept and not (is_open and _is_new(context, job))
    )


def _is_new(context: Context, question: ChildJob) -> bool:
    return context.now < (question.meta.created or context.now) + OPEN_FOR
