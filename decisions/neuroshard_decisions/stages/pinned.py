"""Workers that are kept to the kind of GPU that was profiled: whether nodes of that kind still take them.

A plan holds for one kind, so the choice is not made again by itself: the nodes may be open again in an hour, and the
other kind may be slower or too small. A warning says so, and what the user can do.
"""

from neuroshard_decisions.conditions import Reason, WarningUpdate, warnings_among
from neuroshard_decisions.context import PATIENCE, Context
from neuroshard_decisions.hardware import product_selector
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.scheduling import may_take


def wait_for_a_node(context: Context, workers: ChildJob) -> bool:
    """Return whether workers that are kept to a kind of GPU have waited for a node for as long as patience lasts."""
    if workers.outcome is not None or workers.suspended or not product_selector(context.status.hardware):
        return False
    waiting = [pod for pod in context.pods_of(workers) if pod.live and not pod.node and pod.meta.created is not None]
    return any(context.now >= pod.meta.created + PATIENCE for pod in waiting if pod.meta.created is not None)


def no_node_of_kind(context: Context, workers: ChildJob) -> tuple[WarningUpdate, ...]:
    """Return a warning where no node of the profiled kind takes workers that wait for one; nothing while unknown."""
    waits, nodes = wait_for_a_node(context, workers), context.observed.nodes
    if waits and nodes is None:
        return ()
    found = {}
    selector = product_selector(context.status.hardware)
    template, resource = context.spec.pod_template.spec, context.spec.trainer.gpus
    pod_spec = {**template, "nodeSelector": {**selector, **(template.get("nodeSelector") or {})}}
    if waits and nodes and not any(may_take(node, pod_spec, resource=resource) for node in nodes):
        found[Reason.NODES_CLOSED] = (
            f"no node with {', '.join(selector.values())} takes the workers' pods: all are cordoned, tainted, or gone; "
            "hint: open one, or suspend and resume the job: its kind of GPU is then chosen again, and planned for"
        )
    return warnings_among((Reason.NODES_CLOSED,), found)
