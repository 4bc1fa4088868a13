"""From a placement to the tables of a plan document and back. Decides nothing."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.sharding.kinds import Family, ShardingType, num_row_parts, row_blocks
from neuroshard_costs.host_tables import KERNELS, ON_DEVICE, kernel_code
from neuroshard_costs.shards import FAMILIES

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize


def table_placements(problem: Problem, placement: Placement) -> tuple[TablePlacement, ...]:
    """Return the shards of every table in the request's order.

    Columns are dealt out by ascending device, and on a device to its narrowest shard first, as TorchRec registers them.
    Tables that are cut by the rows of a node are all table_row_wise or all grid_shard: TorchRec makes a call of each.
    """
    tables, topology, kinds = problem.request.tables.tables, problem.request.topology, problem.kinds
    unit = kinds.unit[placement.kinds]
    order = np.lexsort((kinds.num_columns[placement.kinds], placement.devices, unit))
    pieces: dict[int, list[_Piece]] = {}
    size_of: dict[int, ShardSize] = {}  # of any shard: those of a unit run with one kernel
    sizes = problem.sizes_of(placement.kinds[order])
    for owner, device, size in zip(unit[order].tolist(), placement.devices[order].tolist(), sizes, strict=True):
        pieces.setdefault(owner, []).append((device, size.num_columns, FAMILIES[size.family]))
        size_of[owner] = size
    types = {index: _sharding_type(own, topology.devices_per_domain) for index, own in pieces.items()}
    if ShardingType.GRID in types.values():
        types = {
            index: ShardingType.GRID if kind is ShardingType.TABLE_ROW_WISE else kind for index, kind in types.items()
        }
    placed: dict[int, TablePlacement] = {}
    for index, definition in enumerate(problem.units):
        for table in definition.tables:
            name, rows, columns = tables[table].name, tables[table].num_embeddings, tables[table].embedding_dim
            own = pieces[index]
            if len(definition.tables) > 1:
                own = [(device, columns, family) for device, _, family in own]
            blocks = row_blocks(rows, num_row_parts(Family.of(types[index]), topology))
            shards = tuple(_shards(own, blocks, topology.devices_per_domain))
            kernel = size_of[index].kernel
            placed[table] = TablePlacement(
                name=name,
                sharding_type=types[index],
                kernel=None if kernel == ON_DEVICE else KERNELS[kernel],
                cache_load_factor=size_of[index].cache_load_factor or None,
                shards=shards,
            )
    return tuple(placed[table] for table in range(len(tables)))


_Piece = tuple[int, int, Family]
"""Device, columns and family of a placed shard."""


def _sharding_type(pieces: Sequence[_Piece], devices_per_node: int) -> ShardingType:
    """Return the type of a unit with these pieces, of one family."""
    match pieces[0][2]:
        case Family.COLUMNS:
            return ShardingType.TABLE_WISE if len(pieces) == 1 else ShardingType.COLUMN_WISE
        case Family.ROWS:
            return ShardingType.ROW_WISE
        case Family.NODE_ROWS:
            return ShardingType.TABLE_ROW_WISE if len(pieces) == devices_per_node else ShardingType.GRID
        case Family.REPLICATED:
            return ShardingType.DATA_PARALLEL


def _shards(pieces: Sequence[_Piece], blocks: Sequence[tuple[int, int]], devices_per_node: int) -> Iterator[Shard]:
    """Yield the shards of a table by ascending column and device.

    Args:
        pieces: by ascending device.
        blocks: first row and rows of every block of rows.
        devices_per_node: each block of columns of a table that is cut by the rows of a node is on all of these.
    """
    family = pieces[0][2]
    if family is Family.NODE_ROWS:
        pieces = _by_column_blocks(pieces, devices_per_node)
    offset = 0
    for position, (device, num_columns, _) in enumerate(pieces):
        block = position % len(blocks)
        first_row, num_rows = blocks[block]
        yield Shard(
            device=device, row_offset=first_row, num_rows=num_rows, column_offset=offset, num_columns=num_columns
        )
        if block == len(blocks) - 1 and family is not Family.REPLICATED:
            offset += num_columns


def _by_column_blocks(pieces: Sequence[_Piece], devices_per_node: int) -> Sequence[_Piece]:
    """Return the pieces node by node, of each node by ascending width of the blocks of columns that it has."""
    by_device = groupby(sorted(pieces, key=lambda piece: piece[:2]), key=lambda piece: piece[0])
    ranked = [(rank, piece) for _, own in by_device for rank, piece in enumerate(own)]
    return [
        piece for _, piece in sorted(ranked, key=lambda each: (each[1][0] // devices_per_node, each[0], each[1][0]))
    ]


def placement_of(tables: Sequence[TablePlacement], problem: Problem) -> Placement:
    """Return the placement that these tables describe; shards stay as they are cut, in the order of the units.

    Args:
        tables: without problems (see checks.py) for the problem's request.
        problem: takes up the kinds of the shards.
    """
    found: dict[tuple[int, int], ShardSize] = {}
    shards: list[tuple[int, int]] = []
    devices: list[int] = []
    for index, unit in enumerate(problem.units):
        table = tables[unit.tables[0]]
        is_group = len(unit.tables) > 1
        own = table.shards[:1] if is_group else table.shards
        widths = [unit.num_columns] if is_group else [shard.num_columns for shard in own]
        block = problem.row_block(index, FAMILIES.index(Family.of(table.sharding_type)), unit.num_columns)
        block = block._replace(kernel=kernel_code(table), cache_load_factor=table.cache_load_factor or 0.0)
        found.update({(index, width): block._replace(num_columns=width) for width in dict.fromkeys(widths)})
        shards += [(index, width) for width in widths]
        devices += [shard.device for shard in own]
    kinds = problem.kinds_of([index for index, _ in found], list(found.values())).tolist()
    kind_of = dict(zip(found, kinds, strict=True))
    return Placement(
        kinds=np.array([kind_of[shard] for shard in shards], dtype=np.int64), devices=np.array(devices, dtype=np.int64)
    )


def is_searched(tables: Sequence[TablePlacement], problem: Problem) -> bool:
    """Return whether the search of the problem may cut its tables so: its lower bound is of such plans alone."""
    for unit, types in zip(problem.units, problem.sharding_types, strict=True):
        table = tables[unit.tables[0]]
        most = unit.max_blocks if table.sharding_type.is_by_node else unit.max_shards
        if table.sharding_type not in types or table.num_column_blocks > most:
            return False
    return True
