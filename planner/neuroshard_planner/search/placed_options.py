"""Placed options: a unit's shards under one sharding type, with their devices. Generates them; judges none.

Shards of columns choose their devices. Blocks of rows do not: row_wise and data_parallel tables are on every device,
and a block of columns of a table_row_wise or grid_shard one has a block of rows on each device of a node.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from neuroshard_api.sharding import Family, ShardingType
from neuroshard_costs.shards import FAMILIES, GRADIENT_BYTES, FloatArray, IndexArray

from neuroshard_planner.problem.problem import Float32Array, Placement, Problem, ShardSize
from neuroshard_planner.problem.sharding_choice import whole_nodes
from neuroshard_planner.search.sharding_options import even_widths

MOST_REPLICATED_BYTES = 64 * 2**20
"""Largest gradient of a data_parallel table that is tried: every device sends and receives twice as much in a step."""
GRID_BLOCKS = (2, 4)
COLUMN_SHARDS = (2, 4, 8)
NUM_NODES_TRIED = 2
"""Least loaded nodes that a table_row_wise table is tried on."""


class PlacedOption(NamedTuple):
    """A unit's shards and where they are."""

    unit: int
    kinds: IndexArray
    """[n]"""
    devices: IndexArray
    """[n]"""


class Form(NamedTuple):
    """A way to cut a unit, before its devices are chosen."""

    sharding_type: ShardingType
    pieces: tuple[IndexArray, ...]
    """Kinds of each piece: one shard of columns, a block on the devices of a node, or on all devices. Widest first."""


class Forms:
    """The forms of the units of a problem, and the devices that they take under given loads."""

    def __init__(self, problem: Problem, units: Sequence[int] | None = None) -> None:
        """``units`` are those whose forms are asked for. None: all."""
        self._problem = problem
        topology = problem.request.topology
        self._shape = topology.num_nodes, topology.devices_per_node
        sizes: list[tuple[int, ShardingType, list[list[ShardSize]]]] = [
            (unit, kind, pieces)
            for unit in (range(len(problem.units)) if units is None else units)
            for kind in sorted(problem.sharding_types[unit], key=list(ShardingType).index)
            for pieces in self._sizes(unit, kind)
        ]
        flat = [(unit, size) for unit, _, pieces in sizes for piece in pieces for size in piece]
        kinds = problem.kinds_of([unit for unit, _ in flat], [size for _, size in flat])
        self._forms: list[list[Form]] = [[] for _ in problem.units]
        start = 0
        for unit, kind, pieces in sizes:
            ends = start + np.cumsum([len(piece) for piece in pieces])
            self._forms[unit].append(Form(kind, tuple(np.split(kinds[start : ends[-1]], ends[:-1] - start))))
            start = int(ends[-1])

    def of(self, unit: int) -> Sequence[Form]:
        """Return the forms of a unit, in the order of ShardingType and of their pieces."""
        return self._forms[unit]

    def mean_sums(self) -> Float32Array:
        """Return [r] the sums of a device that has an even share of each unit in each of its forms.

        It makes the calls of all families, so that a slope at it holds no call.
        """
        problem = self._problem
        sums = np.zeros(problem.kinds.representation.shape[1])
        for unit in range(len(problem.units)):
            forms = self.of(unit)
            kinds = np.concatenate([piece for form in forms for piece in form.pieces])
            sums += problem.kinds.representation[kinds].sum(axis=0, dtype=np.float64) / len(forms)
        return (sums / problem.num_devices).astype(np.float32)

    def placed(self, unit: int, form: Form, load: FloatArray, room: FloatArray | IndexArray) -> Iterator[PlacedOption]:
        """Yield placements of a form that fit.

        Args:
            unit: position in the problem.
            form: of the unit.
            load: [devices] milliseconds without the unit.
            room: [devices] bytes without the unit.
        """
        problem = self._problem
        bytes_of = problem.kinds.memory_bytes
        allowed = np.ones(problem.num_devices, dtype=np.bool_) if problem.allowed is None else problem.allowed[unit]
        family = Family.of(form.sharding_type)
        if family in {Family.ROWS, Family.REPLICATED}:
            (kinds,) = form.pieces
            if (bytes_of[kinds] <= room).all():
                yield PlacedOption(unit, kinds, np.arange(problem.num_devices))
            return
        if family is Family.COLUMNS:
            kinds = np.concatenate(form.pieces)
            usable = np.flatnonzero(allowed & (bytes_of[kinds].max() <= room))
            if len(usable) >= len(kinds):
                chosen = usable[np.argsort(load[usable], kind="stable")[: len(kinds)]]
                yield PlacedOption(unit, kinds, chosen)
            return
        nodes = whole_nodes(problem.request, allowed)
        fits = (bytes_of[form.pieces[0]] <= room.reshape(self._shape)[nodes]).all(axis=1)
        nodes = nodes[fits]
        nodes = nodes[np.argsort(load.reshape(self._shape).max(axis=1)[nodes], kind="stable")]
        count, size = len(form.pieces), self._shape[1]
        if len(nodes) < count:
            return
        for first in range(min(NUM_NODES_TRIED, len(nodes) - count + 1)):
            chosen = nodes[first : first + count]
            devices = (chosen[:, None] * size + np.arange(size)).ravel()
            yield PlacedOption(unit, np.concatenate(form.pieces), devices)

    def _sizes(self, unit: int, kind: ShardingType) -> Iterator[list[list[ShardSize]]]:
        """Yield the sizes of each form of a type, a list for every piece."""
        problem, types = self._problem, self._problem.sharding_types[unit]
        definition, family = problem.units[unit], FAMILIES.index(Family.of(kind))
        num_nodes, per_node = self._shape
        counts: tuple[int, ...]
        match kind:
            case ShardingType.TABLE_WISE:
                counts, most, num_placed = (1,), 1, 1
            case ShardingType.COLUMN_WISE:
                counts, most, num_placed = COLUMN_SHARDS, min(definition.max_shards, problem.num_devices), 1
            case ShardingType.TABLE_ROW_WISE:
                counts, most, num_placed = (1,), 1, per_node
            case ShardingType.GRID:
                counts, most, num_placed = GRID_BLOCKS, min(definition.max_blocks, num_nodes), per_node
            case ShardingType.ROW_WISE | ShardingType.DATA_PARALLEL:
                counts, most, num_placed = (1,), 1, problem.num_devices
        gradient_bytes = GRADIENT_BYTES * definition.num_rows * definition.num_columns
        if kind is ShardingType.DATA_PARALLEL and len(types) > 1 and gradient_bytes > MOST_REPLICATED_BYTES:
            return
        for widths in self._widths(unit, counts, most):
            yield [[problem.row_block(unit, family, width)] * num_placed for width in widths]

    def _widths(self, unit: int, counts: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
        """Yield the widths of each number of even pieces, up to ``most``, that the constraints allow."""
        definition = self._problem.units[unit]
        for count in counts:
            if count <= most:
                widths = even_widths(definition.num_columns, count)
                if widths[-1] >= definition.min_shard_width:
                    yield widths


def without_units(problem: Problem, placement: Placement, units: Sequence[int]) -> Placement:
    """Return the placement without the shards of these units."""
    stays = ~np.isin(problem.kinds.unit[placement.kinds], units)
    return Placement(kinds=placement.kinds[stays], devices=placement.devices[stays])


def with_options(problem: Problem, placement: Placement, options: Sequence[PlacedOption]) -> Placement:
    """Return the placement with these options in the place of their units' shards."""
    rest = without_units(problem, placement, [option.unit for option in options])
    return Placement(
        kinds=np.concatenate([rest.kinds, *(option.kinds for option in options)]),
        devices=np.concatenate([rest.devices, *(option.devices for option in options)]),
    )
