"""Workers that are kept to the kind of GPU that was profiled: whether nodes of that kind still take them.

A plan holds for one kind, so the choice is not made again by itself: the nodes may be open again in an hour, and the
other kind may be slower or too small. The condition NodesAvailable says so, and what the user can do.
"""

from neuroshard_operator.conditions import ConditionType, ConditionUpdate, Reason, is_false
from neuroshard_operator.context import PATIENCE, Context
from neuroshard_operator.hardware import product_selector
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.scheduling import may_take
from neuroshard_operator.stages.result import condition


def wait_for_a_node(context: Context, workers: ChildJob) -> bool:
    """Return whether workers that are kept to a kind of GPU have waited for a node for as long as patience lasts."""
    if workers.outcome is not None or workers.suspended or not product_selector(context.status.hardware):
        return False
    waiting = [pod for pod in context.pods_of(workers) if pod.live and not pod.node and pod.meta.created is not None]
    return any(context.now >= pod.meta.created + PATIENCE for pod in waiting if pod.meta.created is not None)


def nodes_available(context: Context, workers: ChildJob) -> tuple[ConditionUpdate, ...]:
    """Return whether a node of the profiled kind may take the workers; nothing where that is not known or not new."""
    selector = product_selector(context.status.hardware)
    kind, product = ConditionType.NODES_AVAILABLE, ", ".join(selector.values())
    if context.observed.nodes and wait_for_a_node(context, workers):
        template, resource = context.spec.pod_template.spec, context.spec.trainer.gpus
        chosen = template.get("nodeSelector") or {}
        pod_spec = {**template, "nodeSelector": {**selector, **chosen}}
        if not any(may_take(node, pod_spec, resource=resource) for node in context.observed.nodes):
            message = (
                f"no node with {product} takes the workers' pods: all are cordoned, tainted, or gone; hint: open one, "
                "or suspend and resume the job: its kind of GPU is then chosen again, and planned for"
            )
            return (condition(kind, Reason.NODES_CLOSED, message, holds=False),)
    elif context.observed.nodes is None and wait_for_a_node(context, workers):
        return ()
    if not is_false(context.status.conditions, kind):
        return ()
    return (condition(kind, Reason.NODES_OPEN, f"nodes with {product} take the workers' pods", holds=True),)
