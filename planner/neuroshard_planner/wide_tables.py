"""Tables wider than a shard may be: the search sees blocks of their columns, each as a table of its own.

A block is within the limit, so no proposal, move, or baseline makes a shard that is. Blocks are cut by columns
alone; in the plan their shards are column_wise shards of the table again, several on a device where that has room.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from neuroshard_api.documents.dense_profile import features_sha256
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.documents.tables import Table
from neuroshard_api.sharding.kernels import widest_shard
from neuroshard_api.sharding.kinds import ShardingType, kernels_of

from neuroshard_planner.errors import RequestError
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.units import even_widths, most_shards

_NAME_CHARACTERS = 100
"""Of a table's name in that of its blocks."""


def column_blocks(request: PlanRequest) -> "ColumnBlocks | None":
    """Return the blocks of a request's tables that are wider than their shards may be. None: no table is.

    Raises:
        RequestError: such a table may not be cut, or not into that many shards or that narrow ones.
    """
    widths = {}
    for position, table in enumerate(request.tables.tables):
        most = request.widest_shard(table)
        if most is None or table.embedding_dim <= most:
            continue
        obstacle = _cut_obstacle(table, request, most)
        if obstacle is None:
            widths[position] = even_widths(table.embedding_dim, -(-table.embedding_dim // most))
        elif _must_be_cut(table, request):
            raise RequestError(
                f"table {table.name!r} has {table.embedding_dim:,} columns, a shard may have {_limit(request)}, "
                f"and {obstacle}"
            )
    return ColumnBlocks(request, widths) if widths else None


class ColumnBlocks:
    """A request whose wide tables are blocks, and the way back to the tables."""

    def __init__(self, request: PlanRequest, widths: Mapping[int, tuple[int, ...]]) -> None:
        """``widths`` are those of the blocks, by the table's position."""
        self._request = request
        taken = Counter(table.name for table in request.tables.tables)
        self._blocks = {
            position: _named(table.name, widths[position], taken)
            for position, table in enumerate(request.tables.tables)
            if position in widths
        }
        """Widths of the blocks of a table by their names, in the order of their columns."""

    @cached_property
    def request(self) -> PlanRequest:
        """The request, with blocks in the place of wide tables."""
        request = self._request
        tables: list[Table] = []
        own = dict(request.constraints.tables)
        for position, table in enumerate(request.tables.tables):
            if position not in self._blocks:
                tables.append(table)
                continue
            blocks = self._blocks[position]
            tables += [
                table.model_copy(update={"name": name, "embedding_dim": width, "feature_names": table.features})
                for name, width in blocks.items()
            ]
            limits = self._limits(table.name, len(blocks), own.pop(table.name, TableConstraints()))
            own.update(dict.fromkeys(blocks, limits))
        dense = request.dense
        if dense is not None:
            dense = dense.model_copy(update={"features_sha256": features_sha256(tables)})
        return request.model_copy(
            update={
                "tables": request.tables.model_copy(update={"tables": tuple(tables)}),
                "constraints": request.constraints.model_copy(update={"tables": own}),
                "dense": dense,
            }
        )

    def incumbent(self, found: Incumbent) -> Incumbent:
        """Return the plan in force with its shards cut at the edges of the blocks."""
        tables: list[TablePlacement] = []
        for position, placement in enumerate(found.tables):
            blocks = self._blocks.get(position)
            if blocks is None:
                tables.append(placement)
                continue
            start = 0
            for name, width in blocks.items():
                tables.append(_block_of(placement, name, start, width))
                start += width
        return replace(found, tables=tuple(tables))

    def joined(self, tables: Sequence[TablePlacement]) -> tuple[TablePlacement, ...]:
        """Return the placements of the request's tables, each with as few shards on a device as the limit allows.

        Args:
            tables: of ``request``.
        """
        of_block = {placement.name: placement for placement in tables}
        placed = []
        for position, table in enumerate(self._request.tables.tables):
            blocks = self._blocks.get(position)
            if blocks is None:
                placed.append(of_block[table.name])
                continue
            parts = [of_block[name] for name in blocks]
            widths = self._joined_widths(table, [shard for part in parts for shard in part.shards])
            shards = _dealt(widths, table.num_embeddings)
            placed.append(
                TablePlacement(
                    name=table.name,
                    sharding_type=ShardingType.COLUMN_WISE,
                    kernel=parts[0].kernel,
                    cache_load_factor=min(filter(None, (each.cache_load_factor for each in parts)), default=None),
                    shards=shards,
                )
            )
        return tuple(placed)

    def _joined_widths(self, table: Table, shards: Sequence[Shard]) -> dict[int, list[int]]:
        """Return the widths of a table's shards by device, narrowest first."""
        own = self._request.constraints.tables.get(table.name, TableConstraints())
        least = own.min_shard_width or self._request.constraints.min_shard_width
        most = self._request.widest_shard(table) or table.embedding_dim
        found: dict[int, list[int]] = {}
        for shard in shards:
            found.setdefault(shard.device, []).append(shard.num_columns)
        joined = {}
        for device, widths in sorted(found.items()):
            fewest = even_widths(sum(widths), -(-sum(widths) // most))
            joined[device] = sorted(fewest if fewest[-1] >= least and fewest[0] <= most else widths)
        return joined

    def _limits(self, name: str, num_blocks: int, own: TableConstraints) -> TableConstraints:
        """Return the constraints of each block of a table."""
        constraints = self._request.constraints
        most = most_shards(constraints, name)
        kernels = constraints.compute_kernels_of(name)
        # The blocks of a table run with one kernel, that of device memory where it is allowed.
        one = (
            None if kernels is None else next(each for each in kernels_of(ShardingType.COLUMN_WISE) if each in kernels)
        )
        return own.model_copy(
            update={
                "sharding_types": BY_COLUMNS,
                "compute_kernels": None if one is None else (one,),
                "max_shards": None if most is None else most // num_blocks,
            }
        )


def _limit(request: PlanRequest) -> str:
    if request.constraints.max_shard_width is not None:
        return f"{request.constraints.max_shard_width:,} (constraints.max_shard_width)"
    most = widest_shard(request.topology.device.kind, has_pooling=False)
    return f"{most:,} (FBGEMM's CUDA kernels take no more)"


def _must_be_cut(table: Table, request: PlanRequest) -> bool:
    """Return whether no release's kernels take the whole table, or the constraints do not."""
    most = widest_shard(request.topology.device.kind, has_pooling=False)
    return request.constraints.max_shard_width is not None or (most is not None and table.embedding_dim > most)


def _cut_obstacle(table: Table, request: PlanRequest, width: int) -> str | None:
    """Return the obstacle to shards of up to ``width`` columns, with a hint. None: there is none."""
    constraints = request.constraints
    if table.is_sequence:
        return "a sequence is never cut by columns; hint: look it up as two tables of fewer columns"
    if table.colocation_group is not None or any(table.name in group for group in constraints.colocate):
        return "a co-located table is never cut; hint: take it out of its group"
    types = request.placed_types_of(table.name)
    excluded = constraints.excluded_sharding_types or ()
    if ShardingType.COLUMN_WISE in excluded if types is None else ShardingType.COLUMN_WISE not in types:
        allowed = f"it may only be {', '.join(types)}" if types else "column_wise is excluded"
        return f"{allowed}; hint: allow column_wise, which cuts it"
    count, most = -(-table.embedding_dim // width), most_shards(constraints, table.name)
    if most is not None and most < count:
        return f"it may have {most} shards; hint: allow {count} (max_shards)"
    least = constraints.tables.get(table.name, TableConstraints()).min_shard_width or constraints.min_shard_width
    if even_widths(table.embedding_dim, count)[-1] < least:
        return f"shards of it have {least:,} columns or more; hint: lower min_shard_width"
    return None


def _named(name: str, widths: Sequence[int], taken: Counter[str]) -> Mapping[str, int]:
    """Return a table's blocks by names that no other table has: its own, and the first and last column."""
    named, start = {}, 0
    for width in widths:
        block = f"{name[:_NAME_CHARACTERS]}:{start}-{start + width - 1}"
        while block in taken:
            block += "_"
        taken[block] += 1
        named[block] = width
        start += width
    return named


def _block_of(placement: TablePlacement, name: str, start: int, width: int) -> TablePlacement:
    """Return the part of a table's placement that a block of its columns is."""
    if not placement.sharding_type.is_by_columns:
        shards = tuple(
            shard.model_copy(update={"column_offset": 0, "num_columns": width})
            for shard in placement.shards
            if shard.column_offset == placement.shards[0].column_offset
        )
        return placement.model_copy(update={"name": name, "shards": shards})
    columns: Counter[int] = Counter()
    for shard in placement.shards:
        first, end = shard.column_offset, shard.column_offset + shard.num_columns
        columns[shard.device] += max(0, min(end, start + width) - max(first, start))
    widths = {device: [count] for device, count in sorted(columns.items()) if count}
    kind = ShardingType.TABLE_WISE if len(widths) == 1 else ShardingType.COLUMN_WISE
    shards = _dealt(widths, placement.shards[0].num_rows)
    return placement.model_copy(update={"name": name, "sharding_type": kind, "shards": shards})


def _dealt(widths: Mapping[int, Sequence[int]], num_rows: int) -> tuple[Shard, ...]:
    """Return shards of these widths by device, by ascending column."""
    shards, start = [], 0
    for device, own in widths.items():
        for width in own:
            shards.append(Shard(device=device, row_offset=0, num_rows=num_rows, column_offset=start, num_columns=width))
            start += width
    return tuple(shards)
