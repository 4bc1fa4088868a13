"""The table-to-device map: one lane per device, one block per shard, aggregated where there are too many to see.

Copies of a table enter no exchange of embeddings, and every device has them: they are one block of all devices.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan_parts import Shard
from neuroshard_api.documents.tables import Table
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import BYTES_PER_ELEMENT

from neuroshard_report.summary import DeviceView, PlacedTable

MAX_BLOCKS = 48  # blocks of a lane; more are thinner than a finger on a common screen
NUM_HEATS = 6
LEAST_PREFIX = 4
"""Characters; a shorter common prefix of names stays."""


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


def is_copied(placed: PlacedTable) -> bool:
    """Return whether every device, or every device of a group, has a copy of a table."""
    return placed.placement.sharding_type is ShardingType.DATA_PARALLEL


def common_prefix(tables: Sequence[PlacedTable]) -> str:
    """Return the common beginning of all names, up to their numbers; empty where that is short."""
    names = [placed.table.name for placed in tables]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    prefix = "".join(letters[0] for letters in alike).rstrip("0123456789")
    return "" if len(prefix) < LEAST_PREFIX or prefix in names else prefix


def copies_block(tables: Sequence[PlacedTable]) -> Block | None:
    """Return one block for all copied tables. None: there are none."""
    copied = [placed.table for placed in tables if is_copied(placed)]
    if not copied:
        return None
    columns = sum(table.embedding_dim for table in copied)
    reads = sum(read_bytes_per_sample(table, table.embedding_dim) for table in copied)
    title = f"{columns:,} columns on each device, {format_bytes(reads)} read per sample"
    label = f"{len(copied):,} copied {'table' if len(copied) == 1 else 'tables'}: {title}"
    return Block(
        label=label, title=", ".join(table.name for table in copied), num_columns=columns, heat=0, is_part=False
    )


def device_lanes(tables: Sequence[PlacedTable], devices: Sequence[DeviceView]) -> tuple[Lane, ...]:
    """Return one lane for each of these devices, in their order, with all shards but copies."""
    by_device: dict[int, list[_DrawnLane]] = defaultdict(list)
    drawn_tables = [placed for placed in tables if not is_copied(placed)]
    prefix = common_prefix(drawn_tables)
    for placed in drawn_tables:
        for shard in placed.placement.shards:
            reads = read_bytes_per_sample(placed.table, shard.num_columns) * shard.num_rows
            drawn = _DrawnLane(placed=placed, shard=shard, read_bytes=reads / placed.table.num_embeddings)
            by_device[shard.device].append(drawn)
    every = [drawn.read_bytes for drawns in by_device.values() for drawn in drawns]
    heat_of = _HeatScale(low=min(every, default=0.0), high=max(every, default=0.0))
    widths = [sum(drawn.shard.num_columns for drawn in by_device[device.index]) for device in devices]
    return tuple(
        Lane(
            device=device,
            blocks=_blocks(by_device[device.index], heat_of, prefix),
            free_columns=max(widths) - width,
        )
        for device, width in zip(devices, widths, strict=True)
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


def _blocks(drawn: Sequence[_DrawnLane], heat_of: _HeatScale, prefix: str) -> tuple[Block, ...]:
    ordered = sorted(drawn, key=lambda each: -each.read_bytes)
    blocks = [_block(each, heat_of(each.read_bytes), prefix) for each in ordered[:MAX_BLOCKS]]
    rest = ordered[MAX_BLOCKS:]
    if rest:
        reads = sum(each.read_bytes for each in rest)
        columns = sum(each.shard.num_columns for each in rest)
        title = f"{len(rest)} more shards: {columns} columns, {format_bytes(reads)} read per sample"
        blocks.append(Block(label=f"+{len(rest)}", title=title, num_columns=columns, heat=0, is_part=False))
    return tuple(blocks)


def _block(drawn: _DrawnLane, heat: int, prefix: str) -> Block:
    shard, table = drawn.shard, drawn.placed.table
    first, last = shard.column_offset, shard.column_offset + shard.num_columns - 1
    weights = shard.num_rows * shard.num_columns * BYTES_PER_ELEMENT[table.data_type]
    title = (
        f"{table.name}: columns {first} to {last} of {table.embedding_dim}, {shard.num_rows:,} rows, "
        f"{format_bytes(weights)} of weights, {format_bytes(drawn.read_bytes)} read per sample"
    )
    label = table.name.removeprefix(prefix)
    return Block(label=label, title=title, num_columns=shard.num_columns, heat=heat, is_part=drawn.placed.is_split)
