"""Embedding servers: processes on CPU hosts that hold tables, bring no samples, and are ranks of the training.

    ranks       0 .. T-1    trainers    samples, dense part, tables on devices
                T .. T+S-1  servers     whole tables, or blocks of their columns

A lookup of a table on servers is an all-to-all of all ranks, and so is its gradient. So a step is exact: servers update
their rows in it. A request names the tables; the plan has their shards in a part of its own, and all else in the plan
is of the other tables, as if there were no servers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES
from neuroshard_api.documents.dense_layout import DensePolicy
from neuroshard_api.documents.document import Value
from neuroshard_api.sharding.kernels import kernel_problem

if TYPE_CHECKING:
    from neuroshard_api.documents.request import PlanRequest


class ServerPool(Value):
    """Equal hosts, each with equally many processes that hold tables."""

    count: Annotated[int, Field(ge=1, le=1024)]
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """On each server. Each has a share of the server's memory."""
    memory_bytes: Annotated[int, Field(ge=1, le=MAX_MEMORY_BYTES)]
    """Of each server, for all of its processes."""
    tables: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the tables that are on servers."""

    @property
    def num_processes(self) -> int:
        """Processes of all servers."""
        return self.count * self.processes

    @property
    def bytes_per_process(self) -> int:
        """Memory of each process."""
        return self.memory_bytes // self.processes


def servers_problem(request: "PlanRequest") -> str | None:
    """Return the first reason that the servers of a request cannot serve it, field first. None: they can."""
    pool = request.servers
    if pool is None:
        return None
    tables = {table.name: table for table in request.tables.tables}
    unknown = next((name for name in pool.tables if name not in tables), None)
    if unknown is not None:
        return f"servers.tables: there is no table {unknown!r} in the set {request.tables.name!r}; hint: check the name"
    if len(set(pool.tables)) == len(tables):
        return "servers.tables: names all tables, and trainers need one on their devices; hint: leave one out"
    sequence = next((name for name in pool.tables if tables[name].is_sequence), None)
    if sequence is not None:
        return f"servers.tables: {sequence!r} has pooling NONE, and servers pool; hint: leave it out"
    for name in pool.tables:
        table, optimizer = tables[name], request.optimizer_of(tables[name])
        problem = kernel_problem("cpu", weight_types={name: table.data_type}, optimizer=optimizer)
        if problem is not None:
            return f"servers.tables: {name!r} would be trained on a CPU: {problem}"
    return _training_problem(request) or _constraint_problem(request, pool.tables)


def _training_problem(request: "PlanRequest") -> str | None:
    """Return the first setting of the training that servers do not go with."""
    device, dense = request.topology.device, request.dense_choices
    if not device.is_cpu:
        return (
            f"servers: serve trainers on CPUs, and the devices are {device.name}"
            "; hint: give host memory of the GPU nodes (topology.host_memory), or leave servers out"
        )
    if request.topology.num_nodes > 1:
        return "servers: serve the trainers of one node; hint: give one node, or leave servers out"
    if request.pipeline.value != "none":
        return f"pipeline: is {request.pipeline.value}, and servers answer one batch after the other; hint: set none"
    others = {
        "replication": request.replication,
        "communication": request.communication,
        "wire": request.wire,
        "gradient_choices": request.gradient_choices,
        "gradients": request.gradients,
        "deduplicate": request.deduplicate,
    }
    other = next((field for field, value in others.items() if value is not None), None)
    if other is not None:
        return f"{other}: does not go with servers; hint: leave one of the two out"
    if dense is not None and dense.policy is DensePolicy.SHARD:
        return "dense_choices.policy: shard does not go with servers; hint: replicate the dense part"
    return None


def _constraint_problem(request: "PlanRequest", names: Sequence[str]) -> str | None:
    constraints, tables = request.constraints, request.tables.tables
    named = next((name for name in names if name in constraints.tables), None)
    if named is not None:
        return f"constraints.tables: {named!r} is on servers, which take no constraints; hint: leave them out"
    groups = [group for group in constraints.colocate if set(group) & set(names)]
    groups += [(table.name,) for table in tables if table.name in names and table.colocation_group is not None]
    if groups:
        return f"servers.tables: {groups[0][0]!r} is co-located with others on a device; hint: leave it out"
    return None
