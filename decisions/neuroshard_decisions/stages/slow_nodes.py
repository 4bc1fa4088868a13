"""Workers on a node that is lastingly slower than its peers: they start again elsewhere, under the same plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from neuroshard_api.documents.drift_report import DriftChange, SlowdownCause, first_change
from neuroshard_api.job.replanning import MAX_AVOIDED_NODES, AvoidedNode, ReplanningMode
from neuroshard_api.replanning.decision import SlowNode, decide_slow_node
from neuroshard_api.replanning.record import MESSAGE_CHARACTERS

from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.context import slow_nodes
from neuroshard_decisions.observed.results import DriftSummary
from neuroshard_decisions.stages.result import StageResult
from neuroshard_decisions.stages.running import restarted_elsewhere
from neuroshard_decisions.stages.training import TrainingWorkers


def leave_slow_node(training: TrainingWorkers) -> StageResult | None:
    """Return the restart of workers away from a slow node. None: no node is slow, or it does not pay to leave it."""
    context, drift = training.context, training.drift
    policy, record = context.spec.replanning, training.record
    leaves = policy.mode is ReplanningMode.AUTO and context.spec.experimental.avoid_slow_nodes
    if drift is None or not leaves:
        return None
    change = first_change(drift.changes, SlowdownCause.DEVICE_SLOW, SlowdownCause.NODE_SLOW)
    node = None if change is None else _node_of(training, change.ranks)
    avoided = slow_nodes(context)
    if change is None or node is None or node in avoided:
        return None
    slow, peers = _compute_ms(drift, change)
    paid_until = (record.history[-1].from_step or 0) if record.replans and record.history else 0
    decision = decide_slow_node(
        SlowNode(
            slow_ms=slow,
            peers_ms=peers,
            reference_step_ms=drift.reference_step_ms,
            since_step=max(change.since_step, paid_until),  # what was lost before led to that restart
        ),
        training.restart(drift),
        policy,
        num_avoided=len(avoided),
        max_avoided=MAX_AVOIDED_NODES,
    )
    if not decision.acts:
        return None
    found = f"node {node} is slow; restarting the workers on other nodes where possible: {decision.message}"
    message = found[:MESSAGE_CHARACTERS]
    still = [each for each in record.avoided_nodes if each.name in avoided]
    recorded = training.with_restart(training.entry(Reason.NODE_SLOW, message)).model_copy(
        update={"avoided_nodes": (*still, AvoidedNode(name=node, time=context.now))}
    )
    step = restarted_elsewhere(context, message, {"replanning": recorded})
    return replace(step, events=(Event(reason=EventReason.SLOW_NODE, message=message),))


def _node_of(training: TrainingWorkers, ranks: Sequence[int]) -> str | None:
    """Return the node that all of these ranks are on. None: they are on several, or it is not known."""
    context, current = training.context, training.workers
    per_node = context.spec.trainer.devices_per_node
    indices = {rank // per_node for rank in ranks}
    nodes: Mapping[int | None, str] = {pod.index: pod.node for pod in context.pods_of(current) if pod.live}
    found = {nodes.get(index, "") for index in indices}
    return found.pop() or None if len(found) == 1 else None


def _compute_ms(drift: DriftSummary, change: DriftChange) -> tuple[float, float]:
    """Return the compute of the slowest of the slow ranks, and the median of all others; 0 where there are none."""
    slow = max((drift.compute_ms.get(rank, 0.0) for rank in change.ranks), default=0.0)
    peers = [ms for rank, ms in drift.compute_ms.items() if rank not in change.ranks]
    return slow, median(peers) if peers else 0.0
