"""A plan's price held against its shards and itself: one sentence per contradiction. Computes no price again."""

from collections.abc import Iterator
from math import isclose

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceCost
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import ShardingType

TOLERANCE = 1e-6  # relative, between costs that are written in the plan twice


def price_problems(plan: Plan) -> Iterator[str]:
    """Yield the problems of a plan's costs; each sentence begins with the field's path."""
    yield from _device_cost_problems(plan)
    yield from _server_cost_problems(plan)
    yield from _total_problems(plan)


def _device_cost_problems(plan: Plan) -> Iterator[str]:
    columns = np.zeros(plan.resolved.topology.num_devices)
    num_vectors = {table.name: table.num_vectors for table in plan.request.tables.tables}
    for table in plan.tables:
        for shard in table.shards if table.sharding_type.is_by_columns else ():
            columns[shard.device] += num_vectors.get(table.name, 1) * shard.num_columns
    devices = plan.predicted.devices
    has_copies = any(table.sharding_type is ShardingType.DATA_PARALLEL for table in plan.tables)
    with_host = {shard.device for table in plan.tables if table.compute_kernel.is_on_host for shard in table.shards}
    if len(devices) != len(columns):
        yield f"predicted.devices: has {len(devices)} entries, the topology has {len(columns)} devices"
        return
    for device, (cost, right) in enumerate(zip(devices, columns.tolist(), strict=True)):
        if abs(cost.embedding_dim_sum - right) > 0.5 + TOLERANCE * right:  # it is rounded
            yield (
                f"predicted.devices[{device}].embedding_dim_sum: is {cost.embedding_dim_sum}, "
                f"the shards by columns there have {round(right)} pooled columns"
            )
        if cost.dense_update_ms and not has_copies:
            yield (
                f"predicted.devices[{device}].dense_update_ms: is {cost.dense_update_ms:.6g}, and no table is "
                "data_parallel"
            )
        if cost.host_link_ms and device not in with_host:
            yield (
                f"predicted.devices[{device}].host_link_ms: is {cost.host_link_ms:.6g}, and no shard there is in host "
                "memory"
            )
        yield from _collective_problems(device, cost, has_groups=plan.replication is not None)
    slowest = max(cost.total_ms for cost in devices)
    if not isclose(plan.predicted.total_ms, slowest, rel_tol=TOLERANCE):
        yield f"predicted.total_ms: is {plan.predicted.total_ms:.6g}, the slowest device takes {slowest:.6g}"


def _server_cost_problems(plan: Plan) -> Iterator[str]:
    """Yield the contradictions between the times of servers and what devices wait for them."""
    served = None if plan.servers is None else plan.servers.predicted
    for device, cost in enumerate(plan.predicted.devices):
        found, hidden_ms = cost.server_ms, cost.server_hidden_ms
        if (found is None) != (served is None) or (hidden_ms is None) != (served is None):
            yield f"predicted.devices[{device}].server_ms: must be there where servers have a price, and only there"
        elif found is not None and served is not None and hidden_ms is not None:
            if not isclose(found, served.total_ms, rel_tol=TOLERANCE):
                yield f"predicted.devices[{device}].server_ms: is {found:.6g}, the servers take {served.total_ms:.6g}"
            if hidden_ms > found * (1 + TOLERANCE):
                yield f"predicted.devices[{device}].server_hidden_ms: is {hidden_ms:.6g}, of {found:.6g} in all"
    if served is not None:
        slowest = max(cost.total_ms for cost in served.devices)
        if not isclose(served.total_ms, slowest, rel_tol=TOLERANCE):
            yield f"servers.predicted.total_ms: is {served.total_ms:.6g}, the slowest process takes {slowest:.6g}"


def _collective_problems(device: int, cost: DeviceCost, *, has_groups: bool) -> Iterator[str]:
    """Yield the totals that a device's collectives, where they are known, do not add up to."""
    if not cost.collectives:
        return
    inputs = [each for each in cost.collectives if each.kind is CollectiveKind.INDICES]
    outputs = [each for each in cost.collectives if each.kind is not CollectiveKind.INDICES]
    if any(each.kind is CollectiveKind.SYNC for each in outputs) and not has_groups:
        yield f"predicted.devices[{device}].collectives: have a sync, and the plan has no groups (replication)"
    sums_ms = {
        "input_communication_ms": sum(each.forward_ms + each.backward_ms for each in inputs),
        "forward_communication_ms": sum(each.forward_ms for each in outputs),
        "backward_communication_ms": sum(each.backward_ms for each in outputs),
    }
    for field, total_ms in sums_ms.items():
        if not isclose(getattr(cost, field), total_ms, rel_tol=TOLERANCE, abs_tol=1e-12):
            yield (
                f"predicted.devices[{device}].{field}: is {getattr(cost, field):.6g}, its collectives take "
                f"{total_ms:.6g}"
            )


def _total_problems(plan: Plan) -> Iterator[str]:
    """Yield the contradictions among the plan's own totals and labels."""
    total, bound = plan.predicted.total_ms, plan.lower_bound_ms
    if bound > total * (1 + TOLERANCE):
        yield f"lower_bound_ms: is {bound:.6g}, above the plan's own cost of {total:.6g}"
    elif bound and not isclose(1 + plan.gap, total / bound, rel_tol=TOLERANCE):
        yield f"gap: is {plan.gap:.6g}, cost over lower bound gives {total / bound - 1:.6g}"
    if plan.predicted.source != plan.bundle.source:
        yield f"predicted.source: is {plan.predicted.source!r}, the bundle's is {plan.bundle.source!r}"
    for index, baseline in enumerate(plan.baselines):
        if (baseline.total_ms is None) == (baseline.problem is None):
            yield f"baselines[{index}]: gives neither or both of total_ms and problem; hint: give one"
