"""From a placement to the tables of a plan document. Decides nothing."""

import numpy as np
from neuroshard_api.plan import DeviceMemory, Shard, ShardingType, TablePlacement

from neuroshard_planner.problem import Placement, Problem


def table_placements(problem: Problem, placement: Placement) -> tuple[TablePlacement, ...]:
    """Return the shards of every table in the request's order; columns are dealt out by ascending device."""
    tables = problem.request.tables.tables
    kinds = problem.kinds
    unit = kinds.unit[placement.kinds]
    order = np.lexsort((placement.devices, unit))
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


def placement_memory(problem: Problem, placement: Placement) -> tuple[DeviceMemory, ...]:
    """Return the ledger of every device."""
    position = {table.name: index for index, table in enumerate(problem.request.tables.tables)}
    shards = [
        (position[table.name], shard.num_rows, shard.num_columns, shard.device)
        for table in table_placements(problem, placement)
        for shard in table.shards
    ]
    tables, num_rows, num_columns, devices = np.array(shards, dtype=np.int64).T
    return tuple(problem.memory.devices(tables, num_rows, num_columns, devices))
