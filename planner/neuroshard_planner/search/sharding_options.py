"""Sharding options: the ways in which one unit may be cut. Each kind of sharding is one generator here."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.units import BoolArray, Unit

SHARDS_PER_DEVICE = 2  # more shards of one table than this times the devices only helps to fill gaps in memory


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardingOption:
    """One way to cut a unit: the sizes of its shards, largest first. Memory and cost follow from the sizes."""

    sharding_type: ShardingType
    shards: tuple[ShardSize, ...]


OptionGenerator = Callable[[Unit, int], Iterator[ShardingOption]]
"""Takes a unit and the number of devices; gives its options, fewest shards first."""


def table_wise(unit: Unit, num_devices: int) -> Iterator[ShardingOption]:  # noqa: ARG001 - a generator's signature
    """Give the whole unit on one device."""
    yield ShardingOption(sharding_type=ShardingType.TABLE_WISE, shards=(ShardSize(unit.num_rows, unit.num_columns),))


def column_wise(unit: Unit, num_devices: int) -> Iterator[ShardingOption]:
    """Give even column splits into 2, 3, 4, 6, 8, 12, ... shards.

    A step grows the number of shards by a third to a half: finer steps are left to local search, which moves
    columns between shards.
    """
    most = min(unit.max_shards, SHARDS_PER_DEVICE * num_devices)
    count = 2
    while count <= most:
        widths = even_widths(unit.num_columns, count)
        if widths[-1] < unit.min_shard_width:
            return
        size_of = {width: ShardSize(unit.num_rows, width) for width in (widths[0], widths[-1])}
        shards = tuple(size_of[width] for width in widths)
        yield ShardingOption(sharding_type=ShardingType.COLUMN_WISE, shards=shards)
        count = count * 3 // 2 if count & (count - 1) == 0 else count * 4 // 3


GENERATORS: Sequence[OptionGenerator] = (table_wise, column_wise)


def even_widths(num_columns: int, count: int) -> tuple[int, ...]:
    """Return ``count`` widths that are multiples of 4, differ by at most 4 and add up; 128 in 3 is (44, 44, 40)."""
    quads, rest = divmod(num_columns // DIM_MULTIPLE, count)
    return (DIM_MULTIPLE * (quads + 1),) * rest + (DIM_MULTIPLE * quads,) * (count - rest)


class OptionTable:
    """All options of all units, with the kinds of their shards in one flat array.

    A state of the search is one option per unit: an array [units] of positions in this table.
    """

    def __init__(self, problem: Problem) -> None:
        """Make all options that the constraints allow."""
        options = [
            (unit, option)
            for unit, definition in enumerate(problem.units)
            for generate in GENERATORS
            for option in generate(definition, problem.num_devices)
        ]
        unit = np.array([unit for unit, _ in options], dtype=np.int64)
        count = np.array([len(option.shards) for _, option in options], dtype=np.int64)
        sizes = [size for _, option in options for size in option.shards]
        self._hold(unit, count, problem.kinds_of(np.repeat(unit, count).tolist(), sizes))

    def _hold(self, unit: IndexArray, count: IndexArray, kinds: IndexArray) -> None:
        self.unit = unit
        """[options] ascending."""
        self.count = count
        """[options] shards of the option; of a unit, ascending."""
        self.start: IndexArray = np.cumsum(count) - count
        """[options] position of its first shard in ``kinds``."""
        self.kinds = kinds
        """[shards] largest shard of each option first."""
        units = np.arange(unit[-1] + 1)
        self.first: IndexArray = np.searchsorted(unit, units)
        """[units] the option with the fewest shards."""
        self.last: IndexArray = np.searchsorted(unit, units, side="right") - 1
        """[units] the option with the most shards."""

    def capped(self, max_shards: int) -> Self:
        """Return the options of up to ``max_shards`` shards, which is 1 at least."""
        return self._kept(self.count <= max_shards, self.unit)

    def positions(self, units: IndexArray) -> IndexArray:
        """Return [options] the position of each option of some units in the table of these units alone."""
        positions: IndexArray = np.cumsum(np.isin(self.unit, units)) - 1
        return positions

    def only(self, units: IndexArray) -> Self:
        """Return the options of some units, ascending; states of it are of these units alone."""
        return self._kept(np.isin(self.unit, units), np.searchsorted(units, self.unit))

    def _kept(self, kept: BoolArray, unit: IndexArray) -> Self:
        """Return some options [options], of these units [options]."""
        table = copy(self)
        table._hold(unit[kept], self.count[kept], self.kinds[np.repeat(kept, self.count)])  # noqa: SLF001 - a table
        return table

    def largest(self, state: IndexArray) -> IndexArray:
        """Return [units] the kind of the largest shard of each unit."""
        largest: IndexArray = self.kinds[self.start[state]]
        return largest

    def shards_of(self, option: int) -> IndexArray:
        """Return [n] the kinds of the shards of one option, largest first."""
        start = int(self.start[option])
        return self.kinds[start : start + int(self.count[option])]

    def shards(self, state: IndexArray) -> IndexArray:
        """Return [n] the kinds of all shards of a state."""
        counts = self.count[state]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        kinds: IndexArray = self.kinds[np.repeat(self.start[state], counts) + within]
        return kinds
