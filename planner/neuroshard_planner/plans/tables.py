"""From a placement to the tables of a plan document and back. Decides nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.plan import DeviceMemory, Shard, TablePlacement, unpriced
from neuroshard_api.sharding import ShardingType

from neuroshard_planner.errors import PlanError
from neuroshard_planner.problem.memory_ledger import MemoryLedger
from neuroshard_planner.problem.problem import Placement, Problem, ShardSize


def table_placements(problem: Problem, placement: Placement) -> tuple[TablePlacement, ...]:
    """Return the shards of every table in the request's order.

    Columns are dealt out by ascending device, and on a device to its narrowest shard first, as TorchRec registers them.
    """
    tables = problem.request.tables.tables
    kinds = problem.kinds
    unit = kinds.unit[placement.kinds]
    order = np.lexsort((kinds.num_columns[placement.kinds], placement.devices, unit))
    shards: dict[int, list[tuple[int, int]]] = {}
    for position in order.tolist():
        pair = (int(placement.devices[position]), int(kinds.num_columns[placement.kinds[position]]))
        shards.setdefault(int(unit[position]), []).append(pair)
    placed: dict[int, TablePlacement] = {}
    for index, definition in enumerate(problem.units):
        for table in definition.tables:
            alone = len(definition.tables) == 1
            pairs = shards[index] if alone else [(shards[index][0][0], tables[table].embedding_dim)]
            placed[table] = _placement(tables[table].name, tables[table].num_embeddings, pairs)
    return tuple(placed[table] for table in range(len(tables)))


def _placement(name: str, num_rows: int, pairs: list[tuple[int, int]]) -> TablePlacement:
    shards = []
    offset = 0
    for device, num_columns in pairs:
        shards.append(Shard(device=device, num_rows=num_rows, column_offset=offset, num_columns=num_columns))
        offset += num_columns
    kind = ShardingType.TABLE_WISE if len(shards) == 1 else ShardingType.COLUMN_WISE
    return TablePlacement(name=name, sharding_type=kind, shards=tuple(shards))


def tables_memory(ledger: MemoryLedger, tables: Sequence[TablePlacement]) -> tuple[DeviceMemory, ...]:
    """Return the ledger of every device under these tables, which stand in the request's order."""
    shards = [
        (position, shard.num_rows, shard.num_columns, shard.device)
        for position, table in enumerate(tables)
        for shard in table.shards
    ]
    position, num_rows, num_columns, devices = np.array(shards, dtype=np.int64).T
    return tuple(ledger.devices(position, num_rows, num_columns, devices))


def placement_of(tables: Sequence[TablePlacement], problem: Problem) -> Placement:
    """Return the placement that these tables describe; shards stay as they are cut, in the order of the units.

    Args:
        tables: without problems (see checks.py) for the problem's request.
        problem: takes up the kinds of the shards.

    Raises:
        PlanError: a table is sharded in a way that the cost models cannot score.
    """
    no_price = unpriced(tables)
    if no_price is not None:
        raise PlanError(f"the plan has no price{no_price}; shard these tables otherwise, or take it without a price")
    shards: list[tuple[int, ShardSize, int]] = []
    for index, unit in enumerate(problem.units):
        table = tables[unit.tables[0]]
        if len(unit.tables) > 1:
            shards.append((index, ShardSize(unit.num_rows, unit.num_columns), table.shards[0].device))
        else:
            shards += [(index, ShardSize(shard.num_rows, shard.num_columns), shard.device) for shard in table.shards]
    kinds = problem.kinds_of([index for index, _, _ in shards], [size for _, size, _ in shards])
    return Placement(kinds=kinds, devices=np.array([device for _, _, device in shards], dtype=np.int64))
