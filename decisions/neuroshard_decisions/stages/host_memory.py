"""Memory of nodes for tables: what nodes of the job's kind offer, and whether the plan keeps to it.

The job says how much of a node's memory tables may take; nodes offer what Kubernetes calls allocatable. The planner is
asked for no more than they offer, less what the workers request for themselves. A warning says so, or names a plan
whose workers no node would take.
"""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.resource import quantity, size_bytes
from neuroshard_api.process.sizes import format_bytes

from neuroshard_decisions import names
from neuroshard_decisions.conditions import Reason, WarningUpdate, warnings_among
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.results import PlanResult
from neuroshard_decisions.stages.profiling import hardware_of

_MIB = 2**20


def within_nodes(context: Context, request: PlanRequest) -> PlanRequest:
    """Return the request with no more host memory than nodes offer.

    Raises:
        DocumentError: they offer none beyond what the workers request for themselves.
    """
    memory, free = request.topology.host_memory, _free_bytes(context)
    if memory is None or free is None or memory.bytes_per_node <= free:
        return request
    if free <= 0:
        raise DocumentError(
            "job", [f"spec.planner.hostMemoryPerNode: {_offer(context)}; hint: request less, or leave it out"]
        )
    limited = memory.model_copy(update={"bytes_per_node": free})
    return request.model_copy(update={"topology": request.topology.model_copy(update={"host_memory": limited})})


def host_memory_available(context: Context, plan: PlanResult) -> tuple[WarningUpdate, ...]:
    """Return a warning where nodes offer less than the plan's tables take, or than they may take by the job."""
    permitted, free = context.spec.planner.host_memory_per_node, _free_bytes(context)
    needed = plan.host_bytes_per_node
    found: dict[Reason, str] = {}
    if permitted is not None and free is not None:
        taken = f"tables of the plan take {format_bytes(needed)} of a node; {_offer(context)}"
        if needed > free:
            hint = "hint: lower spec.planner.hostMemoryPerNode while the job is suspended, or give larger nodes"
            found[Reason.NODES_TOO_SMALL] = f"{taken}; {hint}"
        elif size_bytes(permitted) > free:
            found[Reason.LIMITED_BY_NODES] = f"{taken}; spec.planner.hostMemoryPerNode is {permitted}"
    return warnings_among((Reason.NODES_TOO_SMALL, Reason.LIMITED_BY_NODES), found)


def _free_bytes(context: Context) -> int | None:
    """Return the memory that nodes offer beyond what a worker requests for itself. None: not known."""
    offered = hardware_of(context).node_memory_mib
    return None if offered is None else offered * _MIB - _own_bytes(context)


def _own_bytes(context: Context) -> int:
    """Return the memory that a worker requests under any plan; that of a pod template counts first."""
    containers = context.spec.pod_template.spec.get("containers") or []
    of_template: list[Mapping[str, Any]] = [
        each.get("resources") or {} for each in containers if each.get("name") == names.TRAINER
    ]
    own = context.spec.trainer.resources_per_node
    for resources in (*of_template, {"requests": own.requests, "limits": own.limits}):
        for kind in ("requests", "limits"):
            amount = (resources.get(kind) or {}).get("memory")
            if amount is not None:
                return int(quantity(amount))
    return 0


def _offer(context: Context) -> str:
    own = _own_bytes(context)
    offered = own + (_free_bytes(context) or 0)
    return f"nodes of the kind offer {format_bytes(offered)} to pods, of which workers request {format_bytes(own)}"
