"""The number of nodes of an elastic job: decided once for each start of the workers, by what can take them.

    start: as many nodes as take workers, within the job's bounds -> plan of that size -> workers
    failure, drain, lost node -> the next start decides again
    workers that find no node for two minutes -> a start on the nodes that some have found
    planning for a size fails -> the next larger size; at the maximum the job fails
    Kueue admits fewer workers, or has room for more -> see `quota`

A size stays for a whole start: nodes that come and go while the plan is made change nothing, so that every start comes
to its workers. Each of these is a pass that records the size; the passes after it see the job of that size
(`Context.of_size`), and everything else follows from it: another plan, other workers, other files.
"""

from dataclasses import replace
from datetime import datetime

from neuroshard_api.job.elastic import ElasticStatus, SizeReason
from neuroshard_api.job.status import Stage, StageName

from neuroshard_decisions import names
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.context import PATIENCE, Context
from neuroshard_decisions.hardware import places
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.stages.input_hashes import takes_given_models
from neuroshard_decisions.stages.profiling import hardware_of
from neuroshard_decisions.stages.queueing import is_in_queue
from neuroshard_decisions.stages.result import StageResult
from neuroshard_decisions.stages.running import restarted_elsewhere

MESSAGE_CHARACTERS = 1024


def is_elastic(context: Context) -> bool:
    """Return whether the job may train on several numbers of nodes."""
    return len(context.sizes) > 1


def sized_context(context: Context) -> Context:
    """Return the same with the job of the recorded size; a size out of bounds is the nearest one within them."""
    recorded, sizes = context.status.elastic, context.sizes
    if recorded is None or context.as_asked.spec.experimental.elastic is None:
        return context
    return context.of_size(within(sizes, recorded.num_nodes))


def is_size_due(context: Context) -> bool:
    """Return whether the size of the next start of the workers is to be decided."""
    recorded = context.status.elastic
    is_decided = recorded is not None and recorded.attempt == context.attempt
    return is_elastic(context) and not is_decided and context.current_workers is None


def choose_size(context: Context) -> StageResult | None:
    """Return the step that decides the size of the next start. None: it is decided, or the job has one size."""
    if not is_size_due(context):
        return None
    recorded, room, most = context.status.elastic, _room(context), context.sizes[-1]
    before = None if recorded is None else recorded.num_nodes
    size = most if not context.observed.nodes else within(context.sizes, room)
    if not context.observed.nodes:
        found = "nodes may not be read, so that the maximum is taken"
    elif size > room:
        found = f"{_taken(room)}, and the job waits for its minimum"
    else:
        found = _taken(room)
    if before is not None and before < size and _was_queued(context):
        size, found = within(context.sizes, before), f"{found}, and Kueue had admitted {before}"
    if before is None or before == size:
        reason = SizeReason.NODES_AVAILABLE
    else:
        reason = SizeReason.NODES_LOST if size < before else SizeReason.NODES_JOINED
    return decided_size(context, size, reason, found, attempt=context.attempt)


def _was_queued(context: Context) -> bool:
    """Return whether workers were in a queue: their quota is there, and more is asked for while they train."""
    return context.is_queued or any(map(is_in_queue, context.owned_jobs(names.WORKER)))


def nodes_found(context: Context) -> int:
    """Return the number of nodes of the job's sizes that the open nodes take, of a pass that has read them."""
    return within(context.sizes, _room(context))


def leave_missing_places(context: Context, workers: ChildJob) -> StageResult | None:
    """Return the restart of workers on fewer nodes, where some of them found no node. None: they wait, or found one."""
    if not is_elastic(context) or not _has_waited(context, workers):
        return None
    found = sum(bool(pod.node) for pod in context.pods_of(workers) if pod.live and pod.meta.deleted is None)
    size, before = within(context.sizes, found), context.spec.trainer.num_nodes
    if found >= workers.parallelism or size >= before:
        return None
    why = f"{found} of {before} workers have found a node in {PATIENCE.total_seconds() / 60:.0f} minutes"
    return restarted_at(context, size, SizeReason.NODES_LOST, why, is_missed=True)


def leave_out_size(context: Context, last: StageResult) -> StageResult | None:
    """Return the step that takes the next larger size where there is no plan for this one. None: there is none."""
    failed = last.completion is not None and not last.completion.succeeded
    if not (failed and is_elastic(context) and any(each.stage is StageName.PLANNING for each in last.stage_updates)):
        return None
    before = context.spec.trainer.num_nodes
    larger = [size for size in context.sizes if size > before]
    if not larger:
        return None
    return decided_size(
        context,
        larger[0],
        SizeReason.NO_PLAN,
        f"no plan for {before}: {last.message}",
        attempt=context.attempt,
        least=before + 1,
    )


def _room(context: Context) -> int:
    """Return the number of workers that the open nodes take."""
    hardware = None if takes_given_models(context.spec) else hardware_of(context)
    return places(context.spec, context.observed.nodes or (), hardware)


def _taken(room: int) -> str:
    return f"open nodes take {room} worker{'' if room == 1 else 's'}"


def _has_waited(context: Context, workers: ChildJob) -> bool:
    """Return whether workers that were never all ready have waited for nodes for as long as patience lasts."""
    if workers.outcome is not None or workers.suspended or context.ready_since is not None:
        return False
    since = workers.start_time or workers.meta.created
    pods = [pod for pod in context.pods_of(workers) if pod.live]
    waiting: list[datetime | None] = [pod.meta.created for pod in pods if not pod.node]
    if len(pods) < workers.parallelism:  # a quota may keep the others from being made
        waiting.append(since)
    return any(moment is not None and context.now >= moment + PATIENCE for moment in waiting)


def within(sizes: tuple[int, ...], room: int) -> int:
    """Return the largest size that fits, or the smallest one where none does."""
    return max((size for size in sizes if size <= room), default=sizes[0])


def restarted_at(context: Context, size: int, reason: SizeReason, why: str, *, is_missed: bool = False) -> StageResult:
    """Return the restart of workers on another number of nodes, as of `decided_size`."""
    decided = decided_size(context, size, reason, why, attempt=context.attempt + 1, is_missed=is_missed)
    step = restarted_elsewhere(context, decided.message, decided.status_fields)
    return replace(step, events=decided.events)


def decided_size(
    context: Context,
    size: int,
    reason: SizeReason,
    why: str,
    *,
    attempt: int,
    least: int | None = None,
    is_missed: bool = False,
) -> StageResult:
    """Return the step that records a number of nodes.

    Args:
        context: of the pass.
        size: the number.
        reason: of it.
        why: the same as a sentence.
        attempt: start of the workers that it is for.
        least: fewest nodes with a plan. If unset: as it was.
        is_missed: whether workers found no node.
    """
    recorded, most = context.status.elastic, context.as_asked.spec.trainer.num_nodes
    message = f"{size} of at most {most} nodes: {why}"[:MESSAGE_CHARACTERS]
    is_other = recorded is not None and recorded.num_nodes != size
    is_news = is_other or (recorded is None and size < most)
    decided = ElasticStatus(
        num_nodes=size,
        reason=reason.value,
        message=message,
        start_time=context.now,
        attempt=attempt,
        resizes=((recorded.resizes or 0) + 1) if recorded and is_other else (recorded.resizes if recorded else None),
        missed=((recorded.missed or 0) + 1) if recorded and is_missed else (recorded.missed if recorded else None),
        least_nodes=least or (recorded.least_nodes if recorded else None),
    )
    return StageResult(
        display_stage=Stage.PENDING if context.status.plan is None else Stage.LAUNCHING,
        reason=Reason.SIZE_DECIDED,
        message=message,
        events=(Event(reason=EventReason.RESIZED, message=message),) if is_news else (),
        status_fields={"elastic": decided},
        requeue_after_s=0.1,
    )
