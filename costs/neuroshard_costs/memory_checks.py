"""A plan's memory held against its shards, and against what devices and hosts have: one sentence per contradiction."""

from collections.abc import Iterator, Sequence

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceMemory
from neuroshard_api.documents.topology import Topology

from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory


def memory_problems(plan: Plan, ledger: MemoryLedger, *, must_fit: bool) -> Iterator[str]:
    """Yield the problems of a plan's memory; each sentence begins with the field's path.

    Args:
        plan: with its memory.
        ledger: of its resolved request.
        must_fit: whether it is a problem if a device has too little.
    """
    recomputed = tables_memory(ledger, plan.tables)
    if len(plan.memory) != len(recomputed):
        yield f"memory: has {len(plan.memory)} entries, the topology has {len(recomputed)} devices"
        return
    for device, (written, right) in enumerate(zip(plan.memory, recomputed, strict=True)):
        for field in DeviceMemory.model_fields:
            if getattr(written, field) != getattr(right, field):
                yield (
                    f"memory[{device}].{field}: is {getattr(written, field)}, the plan's shards and its request need "
                    f"{getattr(right, field)}"
                )
        if must_fit and right.used_bytes > right.capacity_bytes:
            yield (
                f"memory[{device}]: needs {right.used_bytes} bytes of {right.capacity_bytes}; "
                "move or split tables, or give devices with more memory"
            )
    yield from _host_memory_problems(plan.resolved.topology, recomputed, capacity=ledger.host_capacity_bytes)


def _host_memory_problems(topology: Topology, memory: Sequence[DeviceMemory], *, capacity: int) -> Iterator[str]:
    """Yield the nodes whose tables take more host memory than there is."""
    for node in range(topology.num_nodes):
        first = node * topology.devices_per_node
        needed = sum(each.host_bytes for each in memory[first : first + topology.devices_per_node])
        if needed > capacity:
            yield (
                f"memory: tables of node {node} need {needed} bytes of host memory, it has {capacity} for them; move "
                "some to another node or to device memory, or give nodes with more"
            )
