"""What other shards of a table move: weights and optimizer state that devices get and did not have, and its price."""

from collections.abc import Sequence

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import MovedTable, Shard, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table

from neuroshard_costs.shards import BYTES_PER_ELEMENT, state_row_bytes

GIB = 2**30


def moved_bytes(
    before: Sequence[TablePlacement], after: Sequence[TablePlacement], request: PlanRequest
) -> tuple[int, ...]:
    """Return for each table the bytes that devices hold after a move and did not hold before, copies included.

    Optimizer state counts by the share of a shard's cells that moved, also where each row of a shard has one state.
    Both placements and the request's tables are in one order.
    """
    return tuple(
        round(sum(_moved(shard, old.shards, table, request) for shard in new.shards))
        for table, old, new in zip(request.tables.tables, before, after, strict=True)
    )


def moved_tables(
    before: Sequence[TablePlacement], after: Sequence[TablePlacement], request: PlanRequest
) -> tuple[MovedTable, ...]:
    """Return the tables that move, with their `moved_bytes`."""
    sizes = zip(request.tables.tables, moved_bytes(before, after, request), strict=True)
    return tuple(MovedTable(name=table.name, num_bytes=num_bytes) for table, num_bytes in sizes if num_bytes)


def received_bytes(
    before: TablePlacement | None, after: TablePlacement, table: Table, *, request: PlanRequest
) -> dict[int, float]:
    """Return the bytes of one table that each device holds after a move and did not hold before, as `moved_bytes`.

    Args:
        before: where the table was. None: nowhere.
        after: where it is then.
        table: in both places.
        request: of the plan after the move.
    """
    found: dict[int, float] = {}
    for shard in after.shards:
        num_bytes = _moved(shard, () if before is None else before.shards, table, request)
        found[shard.device] = found.get(shard.device, 0.0) + num_bytes
    return found


def move_price_ms(num_bytes: float, *, price_ms_per_gib: float) -> float:
    """Return the milliseconds of a step that bytes which move count as."""
    return price_ms_per_gib * num_bytes / GIB


def priced_ms(plan: Plan) -> float:
    """Return the objective of a search: the cost of the plan's step, and the price of what it moves of an incumbent."""
    before, cost_ms = plan.incumbent, plan.predicted.total_ms
    if before is None:
        return cost_ms
    return cost_ms + move_price_ms(before.moved_bytes, price_ms_per_gib=before.price_ms_per_gib)


def _moved(shard: Shard, before: Sequence[Shard], table: Table, request: PlanRequest) -> float:
    cells = shard.num_rows * shard.num_columns
    kept = sum(_shared_cells(shard, own) for own in before if own.device == shard.device)
    state_bytes = state_row_bytes(request.optimizer_of(table), shard.num_columns)
    row_bytes = shard.num_columns * BYTES_PER_ELEMENT[table.data_type] + state_bytes
    return shard.num_rows * row_bytes * (cells - kept) / cells


def _shared_cells(first: Shard, second: Shard) -> int:
    rows = _shared(first.row_offset, first.num_rows, second.row_offset, second.num_rows)
    return rows * _shared(first.column_offset, first.num_columns, second.column_offset, second.num_columns)


def _shared(first: int, first_size: int, second: int, second_size: int) -> int:
    return max(min(first + first_size, second + second_size) - max(first, second), 0)
