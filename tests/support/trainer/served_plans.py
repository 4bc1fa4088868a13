"""Plans of two or four trainers with embedding servers, and what else the jobs of these plans say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import ServedTables
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer, Table
from support import builders
from support.planner.placements import given_plan, grid, on_node
from support.trainer.trainer_builders import TABLES, Cuts, placement, plan_of
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

NEAR: Cuts = {"item": ((1, 16), (0, 16)), "country": ((0, 16),)}
FAR: Mapping[int, Cuts] = {
    0: {**NEAR, "user": ((1, 12), (0, 20))},
    1: {"user": ((0, 12), (0, 20))},
    2: {"user": ((1, 12), (0, 20))},
}
"""By number of servers, the place of the first table, always in the same blocks of columns: row-wise state is the mean
over a block."""
OPTIMIZERS = {"SGD": Optimizer.SGD, "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD}
CPU = builders.device_type(name="cpu-test", memory_bytes=4 * builders.GIB)
MODEL: Mapping[str, Any] = {"embeddingOptimizer": "SGD", "batchSizePerDevice": 8}
SPEC: Mapping[str, Any] = {
    "data": {"numSamples": 4000, "validationPercent": 5},
    "training": {"logEverySteps": 4, "evalEverySteps": 100_000, "denseOptimizer": "Adam"},
    "experimental": {"pipeline": "None", "rendezvous": {"timeoutSeconds": 120}},
}


def planned(
    num_servers: int,
    optimizer: Optimizer,
    *,
    tables: Sequence[Table] = TABLES,
    pool: ServerPool | None = None,
    num_nodes: int = 1,
) -> Plan:
    """Return a plan for two trainers and servers."""
    fields: dict[str, Any] = {
        "topology": builders.topology(2, num_nodes=num_nodes, device=CPU),
        "pipeline": Pipeline.NONE,
        "optimizer": optimizer,
        "batch_size_per_device": 8,
    }
    whole = plan_of(FAR[0] if not num_servers else NEAR, tables=tables, world_size=2, **fields)
    if not num_servers:
        return whole
    pool = pool or ServerPool(count=num_servers, memory_bytes=4 * builders.GIB, tables=("user",))
    far = tuple(placement(table, FAR[num_servers][table.name]) for table in tables if table.name in pool.tables)
    near = plan_of(NEAR, tables=tables[1:], world_size=2, **fields)
    request = whole.request.model_copy(update={"servers": pool})
    return near.model_copy(update={"request": request, "servers": ServedTables(tables=far)})


TWO_NODES = builders.topology(4, num_nodes=2, device=CPU)


def planned_by_node(num_servers: int, optimizer: Optimizer) -> GivenPlan:
    """Return a plan for four trainers on two nodes and servers, with tables that are cut by the rows of a node."""
    user, item, country = TABLES
    pool = ServerPool(count=num_servers, memory_bytes=4 * builders.GIB, tables=("user",)) if num_servers else None
    request = builders.request(
        *TABLES,
        topology=TWO_NODES,
        pipeline=Pipeline.NONE,
        optimizer=optimizer,
        batch_size_per_device=8,
        servers=pool,
    )
    near = (on_node(item, 1, TWO_NODES), grid(country, TWO_NODES, (0, 8), (1, 8)))
    far = placement(user, FAR[num_servers]["user"])
    if pool is None:
        return given_plan(request, far, *near)
    return GivenPlan(algorithm=request.algorithm, tables=near, servers=ServedTables(tables=(far,)), request=request)


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint, by name."""
    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    return dict(_flat("", torch.load(file)))


def _flat(name: str, value: Any) -> Sequence[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    return [found for key, each in value.items() for found in _flat(f"{name}/{key}", each)]
