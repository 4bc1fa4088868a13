"""Builders of placements of every family, for tables and devices of any number."""

import random
from collections.abc import Iterable, Sequence
from itertools import count

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, row_blocks
from neuroshard_api.sharding.placement_rules import block_order_problem, shard_problem


def given_plan(request: PlanRequest, *tables: TablePlacement) -> GivenPlan:
    """Return a plan without a price."""
    return GivenPlan(algorithm=Algorithm.TORCHREC, tables=tables, request=request)


def by_columns(table: Table, *pieces: tuple[int, int]) -> TablePlacement:
    """Return a table in pieces (device, columns), one behind the other."""
    offsets = [sum(width for _, width in pieces[:position]) for position in range(len(pieces))]
    return TablePlacement(
        name=table.name,
        sharding_type=ShardingType.COLUMN_WISE if len(pieces) > 1 else ShardingType.TABLE_WISE,
        shards=tuple(
            Shard(device=device, num_rows=table.num_embeddings, column_offset=offset, num_columns=width)
            for (device, width), offset in zip(pieces, offsets, strict=True)
        ),
    )


def by_rows(table: Table, topology: Topology) -> TablePlacement:
    """Return a table by rows on all devices."""
    shards = _rows(table, 0, topology.num_devices, 0, table.embedding_dim)
    return TablePlacement(name=table.name, sharding_type=ShardingType.ROW_WISE, shards=tuple(shards))


def on_node(table: Table, node: int, topology: Topology) -> TablePlacement:
    """Return a table by rows on a node's devices."""
    size = topology.devices_per_domain
    shards = _rows(table, node * size, size, 0, table.embedding_dim)
    return TablePlacement(name=table.name, sharding_type=ShardingType.TABLE_ROW_WISE, shards=tuple(shards))


def grid(table: Table, topology: Topology, *blocks: tuple[int, int]) -> TablePlacement:
    """Return a table in blocks of columns (node, columns), each by rows on the node's devices."""
    size, offset = topology.devices_per_domain, 0
    shards: list[Shard] = []
    for node, width in blocks:
        shards += _rows(table, node * size, size, offset, width)
        offset += width
    return TablePlacement(name=table.name, sharding_type=ShardingType.GRID, shards=tuple(shards))


def everywhere(table: Table, topology: Topology) -> TablePlacement:
    """Return a table whole on every device."""
    shards = [
        Shard(device=device, num_rows=table.num_embeddings, num_columns=table.embedding_dim)
        for device in range(topology.num_devices)
    ]
    return TablePlacement(name=table.name, sharding_type=ShardingType.DATA_PARALLEL, shards=tuple(shards))


def on_host(placement: TablePlacement, *, cache_load_factor: float | None = None) -> TablePlacement:
    """Return a placement with its weights in host memory, with a cache where it has a load factor."""
    kernel = ComputeKernel.FUSED_UVM if cache_load_factor is None else ComputeKernel.FUSED_UVM_CACHING
    return placement.model_copy(update={"kernel": kernel, "cache_load_factor": cache_load_factor})


def random_placement(
    rng: random.Random, table: Table, topology: Topology, families: Sequence[ShardingType] = tuple(ShardingType)
) -> TablePlacement:
    """Return a placement of a random family, with random devices, nodes, and widths, that TorchRec can run."""
    size = {"rows": table.num_embeddings, "columns": table.embedding_dim}
    drawn = (_random_placement(rng, table, topology, families) for _ in count())
    return next(
        each
        for each in drawn
        if shard_problem(each, **size, devices=topology, kind="cuda") is None and block_order_problem(each) is None
    )


def _random_placement(
    rng: random.Random, table: Table, topology: Topology, families: Sequence[ShardingType]
) -> TablePlacement:
    devices, nodes = range(topology.num_devices), range(topology.num_domains)
    match rng.choice(families):
        case ShardingType.TABLE_WISE:
            return by_columns(table, (rng.choice(devices), table.embedding_dim))
        case ShardingType.COLUMN_WISE:
            return by_columns(table, *((rng.choice(devices), width) for width in _widths(rng, table, least=2)))
        case ShardingType.ROW_WISE:
            return by_rows(table, topology)
        case ShardingType.TABLE_ROW_WISE:
            return on_node(table, rng.choice(nodes), topology)
        case ShardingType.GRID:
            return grid(table, topology, *((rng.choice(nodes), width) for width in _widths(rng, table, least=1)))
        case ShardingType.DATA_PARALLEL:
            return everywhere(table, topology)


def _rows(table: Table, first_device: int, num_devices: int, column: int, width: int) -> Iterable[Shard]:
    return [
        Shard(device=first_device + part, row_offset=row, num_rows=rows, column_offset=column, num_columns=width)
        for part, (row, rows) in enumerate(row_blocks(table.num_embeddings, num_devices))
        if rows
    ]


def _widths(rng: random.Random, table: Table, *, least: int) -> list[int]:
    """Return random widths, multiples of 4, of at most eight pieces, as the search has them in grids."""
    quads = table.embedding_dim // 4
    pieces = rng.randint(min(least, quads), min(8, quads))
    cuts = sorted(rng.sample(range(1, quads), pieces - 1))
    return [4 * (end - begin) for begin, end in zip([0, *cuts], [*cuts, quads], strict=True)]
