"""Embedding servers: processes on CPU hosts that hold tables, bring no samples, and are ranks of the training.

    ranks       0 .. T-1    trainers    samples, dense part, tables on devices
                T .. T+S-1  servers     whole tables, or blocks of their columns

A lookup of a table on servers is an all-to-all of all ranks, and so is its gradient. So a step is exact: servers update
their rows in it. With lookahead rows are looked up a step early, and lack the update of the step before. A request
names tables, or lets the plan choose them; the plan has their shards in a part of its own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES, PositiveCount
from neuroshard_api.documents.dense_layout import DensePolicy
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import Link, Topology
from neuroshard_api.sharding.kernels import kernel_problem

if TYPE_CHECKING:
    from neuroshard_api.documents.request import PlanRequest


class ServerPolicy(StrEnum):
    """Whether a plan may choose tables for servers, besides those that are named."""

    NEVER = "never"
    IF_NEEDED = "if_needed"
    """Only as many as do not fit on devices and in their host memory."""
    AUTO = "auto"
    """Whenever that is predicted to be faster."""


class ServerPool(Value):
    """Equal hosts, each with equally many processes that hold tables."""

    count: Annotated[int, Field(ge=1, le=1024)]
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """On each server. Each has a share of the server's memory."""
    memory_bytes: Annotated[int, Field(ge=1, le=MAX_MEMORY_BYTES)]
    """Of each server, for all of its processes."""
    cores: PositiveCount | None = None
    """Of each server, for all of its processes. If unset: one of each process."""
    link: Link | None = None
    """What a server sends to trainers, and receives at the same time. If unset: next to trainers on the CPUs of one
    node its processes are there too, and exchange as these do; elsewhere that between nodes."""
    policy: ServerPolicy = ServerPolicy.NEVER
    """Whether further tables than those that are named may be on servers."""
    tables: tuple[str, ...] = ()
    """Names of the tables that are on servers in any case."""
    lookahead: Annotated[int, Field(ge=1, le=1)] | None = None
    """Steps before that of a batch in which its rows on servers are looked up. If unset: none, so that rows lack no
    update."""

    @property
    def num_processes(self) -> int:
        """Processes of all servers."""
        return self.count * self.processes

    @property
    def bytes_per_process(self) -> int:
        """Memory of each process."""
        return self.memory_bytes // self.processes

    @property
    def cores_per_process(self) -> float:
        """Cores of each process."""
        return 1.0 if self.cores is None else self.cores / self.processes

    def link_to(self, topology: Topology) -> Link | None:
        """Return the link of a server to trainers. None: its processes are on their node, and exchange as they do."""
        is_there = topology.device.is_cpu and topology.num_nodes == 1
        return topology.inter_node if self.link is None and not is_there else self.link

    def used_link(self, topology: Topology) -> Link:
        """Return the link that bytes to a server pass: the trainers' own, where its processes are on their node."""
        return self.link_to(topology) or topology.intra_node

    def process_name(self, process: int) -> str:
        """Return the name of a process for a sentence: that of its server, where it has no other."""
        server, own = divmod(process, self.processes)
        return f"embedding server {server}" if self.processes == 1 else f"process {own} of embedding server {server}"


MOST_LOOKUPS = 4.0
"""Lookups per sample that each server answers at most: above them servers take longer than all else of a step."""
LEAST_BANDWIDTH = 25e9 / 8
"""Bytes per second of a server's link at least."""


def servers_problem(request: "PlanRequest") -> str | None:
    """Return the first reason that the servers of a request cannot serve it, field first. None: they can."""
    pool = request.servers
    if pool is None:
        return None
    tables = {table.name: table for table in request.tables.tables}
    link = pool.link if request.topology.device.is_cpu else pool.link_to(request.topology)
    if link is not None and link.bandwidth_bytes_per_second < LEAST_BANDWIDTH:
        found = 8e-9 * link.bandwidth_bytes_per_second
        return f"servers: have a link of {found:.3g} Gb/s, and need {8e-9 * LEAST_BANDWIDTH:.0f}; hint: leave them out"
    named = _named_problem(request, pool, tables)
    refused = (table_problem(request, tables[name]) for name in pool.tables)
    return named or next(filter(None, refused), None) or _training_problem(request)


def _named_problem(request: "PlanRequest", pool: ServerPool, tables: Mapping[str, Table]) -> str | None:
    """Return the reason that no servers have the tables that are named, together."""
    unknown = next((name for name in pool.tables if name not in tables), None)
    if unknown is not None:
        return f"servers.tables: there is no table {unknown!r} in the set {request.tables.name!r}; hint: check the name"
    if not pool.tables and pool.policy is ServerPolicy.NEVER:
        return "servers.policy: is never, and no table is named; hint: set it to if_needed or auto, or name tables"
    if len(set(pool.tables)) == len(tables):
        return "servers.tables: names all tables, and trainers need one on their devices; hint: leave one out"
    asked = sum(tables[name].pooling_factor for name in pool.tables) / pool.count
    if asked > MOST_LOOKUPS:
        return (
            f"servers.tables: have {asked:g} lookups per sample and server, and a server answers at most "
            f"{MOST_LOOKUPS:g}; hint: leave tables with many lookups out, or give more servers"
        )
    return None


def table_problem(request: "PlanRequest", table: Table) -> str | None:
    """Return the reason that a table cannot be on a request's servers, field first. None: it can be."""
    pool, constraints, name = request.servers, request.constraints, table.name
    assert pool is not None, "the caller looked"
    if table.is_sequence:
        return f"servers.tables: {name!r} has pooling NONE, and servers pool; hint: leave it out"
    problem = kernel_problem("cpu", weight_types={name: table.data_type}, optimizer=request.optimizer_of(table))
    if problem is not None:
        return f"servers.tables: {name!r} would be trained on a CPU: {problem}"
    if name in constraints.tables:
        return f"constraints.tables: {name!r} is on servers, which take no constraints; hint: leave them out"
    if table.colocation_group is not None or any(name in group for group in constraints.colocate):
        return f"servers.tables: {name!r} is co-located with others on a device; hint: leave it out"
    if table.pooling_factor > MOST_LOOKUPS:
        return (
            f"servers.tables: {name!r} has {table.pooling_factor:g} lookups per sample, and a server answers at most "
            f"{MOST_LOOKUPS:g}; hint: leave it out"
        )
    return None


def untrained_servers(request: "PlanRequest") -> str | None:
    """Return the first reason that NeuroShard's trainer cannot train servers that a plan may have. None: it can."""
    if request.servers is None:
        return None
    if request.pipeline.value != "none":
        return f"pipeline: is {request.pipeline.value}, and servers answer one batch after the other; hint: set none"
    return None


def _training_problem(request: "PlanRequest") -> str | None:
    """Return the first setting of the training that servers do not go with."""
    dense = request.dense_choices
    others = {
        "replication": request.replication,
        "communication": request.communication,
        "wire": request.wire,
        "gradient_choices": request.gradient_choices,
        "gradients": request.gradients,
        "deduplicate": request.deduplicate or None,
    }
    other = next((field for field, value in others.items() if value is not None), None)
    if other is not None:
        return f"{other}: does not go with servers; hint: leave one of the two out"
    if dense is not None and dense.policy is DensePolicy.SHARD:
        return "dense_choices.policy: shard does not go with servers; hint: replicate the dense part"
    return None
