"""Options: the ways in which a unit may be cut, and under which sharding type. Generates them; judges none.

`OptionTable` has all cuts by columns of all units, and a state of the search is one position in it for each unit.
`Forms` has the cuts of all sharding types, and gives each its devices under given loads. Shards of columns choose their
devices. Blocks of rows do not: row_wise and data_parallel tables are on every device, and a block of columns of a
table_row_wise or grid_shard one has a block of rows on each device of a node.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from neuroshard_api.sharding.kinds import Family, ShardingType
from neuroshard_api.sharding.placement_rules import CUT_BY_COLUMNS
from neuroshard_costs.shards import COLUMNS, FAMILIES, NODE_ROWS, FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.sharding_choice import whole_nodes
from neuroshard_planner.problem.units import BoolArray, Unit, even_widths

SHARDS_PER_DEVICE = 2  # more shards of one table than this times the devices only helps to fill gaps in memory


def column_cuts(unit: Unit, num_devices: int) -> Iterator[tuple[ShardSize, ...]]:
    """Yield the unit in one piece, then its even column shards, 2, 3, 4, 6, 8, 12, ... of them, widest first.

    A step grows the number of shards by a third to a half: finer steps are left to local search, which moves
    columns between shards.
    """
    yield (ShardSize(unit.num_rows, unit.num_columns),)
    most = min(unit.max_shards, SHARDS_PER_DEVICE * num_devices)
    count = 2
    while count <= most:
        widths = even_widths(unit.num_columns, count)
        if widths[-1] < unit.min_shard_width:
            return
        size_of = {width: ShardSize(unit.num_rows, width) for width in (widths[0], widths[-1])}
        yield tuple(size_of[width] for width in widths)
        count = count * 3 // 2 if count & (count - 1) == 0 else count * 4 // 3


class OptionTable:
    """All options of all units, with the kinds of their shards in one flat array.

    A state of the search is one option per unit: an array [units] of positions in this table.
    """

    def __init__(self, problem: Problem) -> None:
        """Make all options that the constraints allow."""
        options = [
            (unit, shards)
            for unit, definition in enumerate(problem.units)
            for shards in column_cuts(definition, problem.num_devices)
        ]
        unit = np.array([unit for unit, _ in options], dtype=np.int64)
        count = np.array([len(shards) for _, shards in options], dtype=np.int64)
        sizes = [size for _, shards in options for size in shards]
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

    def first_of(self, usable: BoolArray) -> IndexArray:
        """Return [units] the first option of each unit for which ``usable`` [options] is true, its last if none is."""
        every = np.arange(len(usable))
        first: IndexArray = np.minimum.reduceat(np.where(usable, every, self.last[self.unit]), self.first)
        return first

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


class PlacedOption(NamedTuple):
    """A unit's shards and where they are."""

    unit: int
    kinds: IndexArray
    """[n]"""
    devices: IndexArray
    """[n]"""

    @property
    def placement(self) -> Placement:
        """The unit's shards alone."""
        return Placement(kinds=self.kinds, devices=self.devices)


class Form(NamedTuple):
    """A way to cut a unit, before its devices are chosen."""

    sharding_type: ShardingType
    family: int
    """Position in FAMILIES."""
    pieces: IndexArray
    """[pieces] the kind of the shards of each piece, widest first."""
    num_placed: int
    """Shards of a piece: one of columns, a block on each device of a node, or on all devices."""
    kinds: IndexArray
    """[shards] piece by piece."""
    needed_bytes: int
    """Of the shard with most memory."""

    def with_pieces(self, pieces: IndexArray, *, memory_bytes: IndexArray) -> "Form":
        """Return the same cut into shards of other kinds, which need ``memory_bytes`` [kinds]."""
        kinds = np.repeat(pieces, self.num_placed) if self.num_placed > 1 else pieces
        return self._replace(pieces=pieces, kinds=kinds, needed_bytes=int(memory_bytes[pieces].max()))


class DevicePlaces:
    """Where the shards of one unit may go: devices and nodes by ascending load without the unit."""

    def __init__(self, problem: Problem, unit: int, load: FloatArray, room: FloatArray | IndexArray) -> None:
        """``load`` [devices] are milliseconds and ``room`` [devices] bytes, both without the unit."""
        topology = problem.request.topology
        self._request = problem.request
        self._shape = topology.num_domains, topology.devices_per_domain
        self._load, self._room = load, room
        self._allowed = None if problem.allowed is None else problem.allowed[unit]
        self.least_room_bytes = room.min()
        """Of all devices."""

    @cached_property
    def _devices(self) -> IndexArray:
        order: IndexArray = np.argsort(self._load, kind="stable")
        return order if self._allowed is None else order[self._allowed[order]]

    @cached_property
    def _nodes(self) -> IndexArray:
        order: IndexArray = np.argsort(self._load.reshape(self._shape).max(axis=1), kind="stable")
        if self._allowed is None:
            return order
        return order[np.isin(order, whole_nodes(self._request, self._allowed))]

    def devices(self, needed_bytes: int) -> IndexArray:
        """Return the devices with room, least loaded first."""
        if self.least_room_bytes >= needed_bytes:
            return self._devices
        return self._devices[self._room[self._devices] >= needed_bytes]

    def nodes(self, needed_bytes: int) -> IndexArray:
        """Return the nodes with room on every device, least loaded first."""
        if self.least_room_bytes >= needed_bytes:
            return self._nodes
        room = self._room.reshape(self._shape).min(axis=1)
        fitting: IndexArray = self._nodes[room[self._nodes] >= needed_bytes]
        return fitting


class Forms:
    """The forms of the units of a problem, and the devices that they take under given loads."""

    def __init__(self, problem: Problem, units: Sequence[int] | None = None) -> None:
        """``units`` are those whose forms are asked for. None: all."""
        self._problem = problem
        topology = problem.request.topology
        self._shape = topology.num_domains, topology.devices_per_domain
        self._every: IndexArray = np.arange(problem.num_devices)
        sizes: list[tuple[int, ShardingType, list[ShardSize]]] = [
            (unit, kind, pieces)
            for unit in (range(len(problem.units)) if units is None else units)
            for kind in ShardingType
            if kind in problem.sharding_types[unit]
            for pieces in self._sizes(unit, kind)
        ]
        flat = [(unit, size) for unit, _, pieces in sizes for size in pieces]
        kinds = problem.kinds_of([unit for unit, _ in flat], [size for _, size in flat])
        num_placed = {
            Family.COLUMNS: 1,
            Family.ROWS: problem.num_devices,
            Family.NODE_ROWS: topology.devices_per_domain,
            Family.REPLICATED: problem.num_devices,
        }
        none = kinds[:0]
        of_type = {
            kind: Form(kind, FAMILIES.index(Family.of(kind)), none, num_placed[Family.of(kind)], none, 0)
            for kind in ShardingType
        }
        memory_bytes = problem.kinds.memory_bytes
        self._of_unit: list[list[Form]] = [[] for _ in problem.units]
        start = 0
        for unit, kind, pieces in sizes:
            end = start + len(pieces)
            self._of_unit[unit].append(of_type[kind].with_pieces(kinds[start:end], memory_bytes=memory_bytes))
            start = end

    def of(self, unit: int) -> Sequence[Form]:
        """Return the forms of a unit, in the order of ShardingType and of their pieces."""
        return self._of_unit[unit]

    def mean_sums(self) -> FloatArray:
        """Return [r] the sums of a device that has an even share of each unit in each of its forms.

        It makes the calls of all families, so that a slope at it holds no call.
        """
        problem = self._problem
        representation = problem.kinds.representation
        weight = np.zeros(len(representation))
        for unit in range(len(problem.units)):
            forms = self.of(unit)
            for form in forms:
                np.add.at(weight, form.pieces, form.num_placed / len(forms) / problem.num_devices)
        mean: FloatArray = (weight[:, None] * representation).sum(axis=0)
        return mean

    def placed(self, unit: int, form: Form, load: FloatArray, room: FloatArray | IndexArray) -> Iterator[PlacedOption]:
        """Yield placements of a form that fit.

        Args:
            unit: position in the problem.
            form: of the unit.
            load: [devices] milliseconds without the unit.
            room: [devices] bytes without the unit.
        """
        yield from self._placed(unit, form, DevicePlaces(self._problem, unit, load, room))

    def options(self, unit: int, load: FloatArray, room: FloatArray | IndexArray) -> Iterator[PlacedOption]:
        """Yield the placements of all forms of a unit that fit; see `placed`."""
        places = DevicePlaces(self._problem, unit, load, room)
        for form in self._of_unit[unit]:
            yield from self._placed(unit, form, places)

    def _placed(self, unit: int, form: Form, places: DevicePlaces) -> Iterator[PlacedOption]:
        count, size = len(form.pieces), self._shape[1]
        if form.family == COLUMNS:
            devices = places.devices(form.needed_bytes)
            if len(devices) >= count:
                yield PlacedOption(unit, form.kinds, devices[:count])
        elif form.family == NODE_ROWS:
            nodes = places.nodes(form.needed_bytes)[:count, None]
            if len(nodes) == count:
                yield PlacedOption(unit, form.kinds, (nodes * size + self._every[:size]).ravel())
        elif places.least_room_bytes >= form.needed_bytes:
            yield PlacedOption(unit, form.kinds, self._every)

    def _sizes(self, unit: int, kind: ShardingType) -> Iterator[list[ShardSize]]:
        """Yield the sizes of each form of a type, one for every piece."""
        problem, types = self._problem, self._problem.sharding_types[unit]
        definition, family = problem.units[unit], FAMILIES.index(Family.of(kind))
        num_nodes, _ = self._shape
        counts = [1]
        match kind:
            case ShardingType.COLUMN_WISE:
                counts = _powers_of_two(min(definition.max_shards, problem.num_devices))
            case ShardingType.GRID:
                most = min(definition.max_blocks, num_nodes)
                if most > 1 or ShardingType.TABLE_ROW_WISE in types:  # else what TorchRec makes of one that it leaves
                    counts = _powers_of_two(most)
        for count in counts:
            widths = even_widths(definition.num_columns, count)
            is_too_wide = kind in CUT_BY_COLUMNS and widths[0] > definition.max_shard_width
            if widths[-1] >= definition.min_shard_width and not is_too_wide:
                yield [problem.row_block(unit, family, width) for width in widths]


def _powers_of_two(most: int) -> list[int]:
    """Return 2, 4, 8, and so on, up to ``most``."""
    return [2**power for power in range(1, most.bit_length())]


def families_of(problem: Problem, placement: Placement) -> IndexArray:
    """Return [units] the family of each unit's shards."""
    families: IndexArray = np.zeros(len(problem.units), dtype=np.int64)
    families[problem.kinds.unit[placement.kinds]] = problem.kinds.family[placement.kinds]
    return families


def without_units(problem: Problem, placement: Placement, units: Sequence[int]) -> Placement:
    """Return the placement without the shards of these units."""
    return placement.at(~np.isin(problem.kinds.unit[placement.kinds], units))


def with_options(problem: Problem, placement: Placement, options: Sequence[PlacedOption]) -> Placement:
    """Return the placement with these options in the place of their units' shards."""
    rest = without_units(problem, placement, [option.unit for option in options])
    return Placement.joined(rest, *(option.placement for option in options))
