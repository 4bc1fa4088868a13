"""The table-to-device map: one lane per device, one block per shard, aggregated where there are too many to see."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import Shard
from neuroshard_api.documents.tables import Table
from neuroshard_costs.shards import BYTES_PER_ELEMENT

from neuroshard_report.quantities import format_bytes
from neuroshard_report.summary import DeviceView, PlacedTable

MAX_BLOCKS = 48  # blocks of a lane; more are thinner than a finger on a common screen
NUM_HEATS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One shard in its device's lane, or the sum of the shards that are too many to draw."""

    label: str
    title: str
    num_columns: int
    heat: int
    """0 (fewest bytes read) to NUM_HEATS - 1 (most)."""
    is_part: bool
    """Whether other shards of the table lie elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One device and its blocks, most bytes read first."""

    device: DeviceView
    blocks: tuple[Block, ...]
    free_columns: int
    """Columns that the lane lacks of the widest lane: what is left blank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _DrawnLane:
    placed: PlacedTable
    shard: Shard
    read_bytes: float


def read_bytes_per_sample(table: Table, num_columns: int) -> float:
    """Return the bytes that one sample reads from a slice of a table: lookups times columns times bytes."""
    return table.pooling_factor * num_columns * BYTES_PER_ELEMENT[table.data_type]


def device_lanes(tables: Sequence[PlacedTable], devices: Sequence[DeviceView]) -> tuple[Lane, ...]:
    """Return one lane for each of these devices, in their order."""
    by_device: dict[int, list[_DrawnLane]] = defaultdict(list)
    for placed in tables:
        for shard in placed.placement.shards:
            reads = read_bytes_per_sample(placed.table, shard.num_columns) * shard.num_rows
            drawn = _DrawnLane(placed=placed, shard=shard, read_bytes=reads / placed.table.num_embeddings)
            by_device[shard.device].append(drawn)
    every = [drawn.read_bytes for drawns in by_device.values() for drawn in drawns]
    heat_of = _HeatScale(low=min(every), high=max(every))
    widest = max(device.cost.embedding_dim_sum for device in devices)
    return tuple(
        Lane(
            device=device,
            blocks=_blocks(by_device[device.index], heat_of),
            free_columns=widest - device.cost.embedding_dim_sum,
        )
        for device in devices
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _HeatScale:
    """A logarithmic scale from the least to the most bytes read."""

    low: float
    high: float

    def __call__(self, read_bytes: float) -> int:
        if self.high <= self.low:
            return NUM_HEATS // 2
        position = math.log(read_bytes / self.low) / math.log(self.high / self.low)
        return min(NUM_HEATS - 1, max(0, int(position * NUM_HEATS)))


def _blocks(drawn: Sequence[_DrawnLane], heat_of: _HeatScale) -> tuple[Block, ...]:
    ordered = sorted(drawn, key=lambda each: -each.read_bytes)
    blocks = [_block(each, heat_of(each.read_bytes)) for each in ordered[:MAX_BLOCKS]]
    rest = ordered[MAX_BLOCKS:]
    if rest:
        reads = sum(each.read_bytes for each in rest)
        columns = sum(each.shard.num_columns for each in rest)
        title = f"{len(rest)} more shards: {columns} columns, {format_bytes(reads)} read per sample"
        blocks.append(Block(label=f"+{len(rest)}", title=title, num_columns=columns, heat=0, is_part=False))
    return tuple(blocks)


def _block(drawn: _DrawnLane, heat: int) -> Block:
    shard, table = drawn.shard, drawn.placed.table
    first, last = shard.column_offset, shard.column_offset + shard.num_columns - 1
    weights = shard.num_rows * shard.num_columns * BYTES_PER_ELEMENT[table.data_type]
    title = (
        f"{table.name}: columns {first} to {last} of {table.embedding_dim}, {shard.num_rows:,} rows, "
        f"{format_bytes(weights)} of weights, {format_bytes(drawn.read_bytes)} read per sample"
    )
    return Block(label=table.name, title=title, num_columns=shard.num_columns, heat=heat, is_part=drawn.placed.is_split)
