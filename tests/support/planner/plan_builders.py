"""Builder of whole plans for tests of what reads plans: sizes of every order, without a search or a bundle."""

import random
from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import (
    BaselineCost,
    BundleReference,
    DeduplicatedGroup,
    DeviceCost,
    DeviceMemory,
    PlanCost,
    SearchStatistics,
    Shard,
    TablePlacement,
)
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.sharding.kinds import ShardingType
from support.builders import device_type, topology

SOURCE = "simulated:Test Device 80GB"


def random_tables(count: int, *, seed: int = 0) -> tuple[Table, ...]:
    """Return tables with rows, widths and pooling factors spread as in recommendation models."""
    rng = random.Random(seed)  # noqa: S311 - draws test data
    return tuple(
        Table(
            name=f"table_{index}",
            num_embeddings=int(10 ** rng.uniform(2, 7.3)),
            embedding_dim=rng.choice((16, 32, 64, 128, 128, 256)),
            pooling_factor=round(10 ** rng.uniform(0, 1.7), 1),
        )
        for index in range(count)
    )


def plan_of(
    *members: Table,
    num_devices: int = 8,
    num_nodes: int = 1,
    split_every: int = 9,
    name: str = "test set",
    **fields: Any,
) -> Plan:
    """Return a plan that puts tables on the least loaded devices and halves every ``split_every``-th one (0: none)."""
    request = PlanRequest(
        tables=TableSet(name=name, tables=members or random_tables(26)),
        topology=topology(num_devices, num_nodes=num_nodes, device=device_type()),
    )
    loads = [0.0] * num_devices
    dims = [0] * num_devices
    weights = [0] * num_devices
    placements = []
    for index, table in enumerate(request.tables.tables):
        halves = 2 if split_every and index % split_every == 0 and table.embedding_dim >= 32 else 1
        width = table.embedding_dim // halves
        shards = []
        for half in range(halves):
            device = min(range(num_devices), key=loads.__getitem__)
            loads[device] += width * table.pooling_factor
            dims[device] += width
            weights[device] += 4 * width * table.num_embeddings
            shards.append(
                Shard(device=device, num_rows=table.num_embeddings, column_offset=half * width, num_columns=width)
            )
        kind = ShardingType.COLUMN_WISE if halves > 1 else ShardingType.TABLE_WISE
        placements.append(TablePlacement(name=table.name, sharding_type=kind, shards=tuple(shards)))
    costs = _costs(loads, dims)
    total = max(_total(cost) for cost in costs)
    defaults: dict[str, Any] = {
        "algorithm": Algorithm.NEUROSHARD,
        "bundle": BundleReference(
            name="test-bundle", source=SOURCE, weights_sha256="ab" * 32, compute_mape=0.031, communication_mape=0.024
        ),
        "predicted": PlanCost(total_ms=total, source=SOURCE, devices=costs),
        "lower_bound_ms": total * 0.93,
        "gap": 1 / 0.93 - 1,
        "baselines": (
            BaselineCost(algorithm=Algorithm.DIM_GREEDY, total_ms=total * 1.32),
            BaselineCost(algorithm=Algorithm.SIZE_GREEDY, total_ms=total * 1.71),
            BaselineCost(algorithm=Algorithm.LOOKUP_GREEDY, total_ms=total * 1.18),
            BaselineCost(algorithm=Algorithm.RANDOM, problem="table 'table_3' needs 91 GiB, device 2 offers 80 GiB"),
        ),
        "tables": tuple(placements),
        "memory": tuple(_memory(weight, dim) for weight, dim in zip(weights, dims, strict=True)),
        "search": SearchStatistics(
            evaluations=18_240, placements=312, levels=6, improvements=41, budget_exhausted=False
        ),
        "request": request,
    }
    return Plan(**{**defaults, **fields})


def without_repeats(plan: Plan) -> Plan:
    """Return a plan that leaves out the repeats of its first table."""
    group = DeduplicatedGroup(
        group="user", features=(plan.request.tables.tables[0].name,), factor=7.5, saved_ms=plan.predicted.total_ms / 2
    )
    devices = [device.model_copy(update={"expansion_ms": 0.5}) for device in plan.predicted.devices]
    cost = plan.predicted.model_copy(update={"devices": tuple(devices), "total_ms": plan.predicted.total_ms + 0.5})
    update = {"deduplication": (group,), "predicted": cost, "all_lists_ms": 2 * plan.predicted.total_ms}
    return plan.model_copy(update=update)


def in_collections(plan: Plan, *paths: str) -> Plan:
    """Return a plan whose tables are in the collections at these paths, in turn."""
    tables = plan.request.tables
    members = [
        table.model_copy(update={"collection": paths[index % len(paths)]}) for index, table in enumerate(tables.tables)
    ]
    request = plan.request.model_copy(update={"tables": tables.model_copy(update={"tables": tuple(members)})})
    return plan.model_copy(update={"request": request})


def with_managed_collision(plan: Plan, num_bytes: int) -> Plan:
    """Return a plan whose devices have this much memory for managed collision."""
    memory = [each.model_copy(update={"managed_collision_bytes": num_bytes}) for each in plan.memory]
    return plan.model_copy(update={"memory": tuple(memory)})


def _costs(loads: list[float], dims: list[int]) -> tuple[DeviceCost, ...]:
    """Return costs in proportion to read volume and columns; every device waits for the slowest forward pass."""
    forward = [0.004 * load for load in loads]
    return tuple(
        DeviceCost(
            forward_compute_ms=time,
            backward_compute_ms=1.7 * time,
            wait_ms=max(forward) - time,
            forward_communication_ms=0.004 * dim,
            backward_communication_ms=0.0035 * dim,
            embedding_dim_sum=dim,
        )
        for time, dim in zip(forward, dims, strict=True)
    )


def _total(cost: DeviceCost) -> float:
    terms: list[float] = [value for field, value in cost.model_dump(exclude_none=True).items() if field.endswith("_ms")]
    return sum(terms)


def _memory(weights: int, dim: int) -> DeviceMemory:
    capacity = device_type().memory_bytes
    return DeviceMemory(
        weights_bytes=weights,
        optimizer_state_bytes=weights // 32,
        activation_bytes=dim * 65_536 * 8,
        input_bytes=2**28,
        dense_bytes=2**30,
        reserve_bytes=capacity // 10,
        capacity_bytes=capacity,
    )
