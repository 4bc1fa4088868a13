"""Published sharding strategies as placements that TorchRec can run, for comparison with the search. Judges none.

- All row-wise, and all table-row-wise with the tables dealt out to the nodes in turn (HugeCTR's uniform plan).
- Copies of the smallest tables and table-row-wise ones for the rest (HugeCTR's hybrid plan), for several numbers of
  copies.
- EMBark's rule (RecSys 2024): copies of the smallest tables; the others cost hotness x columns for memory and
  ratio x columns for the network, the costliest are halved, and all pieces are placed greedily, on devices or on
  nodes. HugeCTR may put halves by rows on any devices, which TorchRec cannot: here pieces are halved by columns, and
  those on nodes are cut by the rows of the node's devices.

A table that may not be sharded as a strategy says is copied, or whole on the next device where it may not be copied.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.sharding.kinds import Family, ShardingType
from neuroshard_costs.shards import COLUMNS, FAMILIES, GRADIENT_BYTES
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize

NETWORK_RATIO = 60.0
"""Memory over network bandwidth in EMBark's cost: that of a DGX H100."""
COPIED_SHARES = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Of the tables, smallest first, that are copied."""
MOST_COPIED_BYTES = 2**30
"""Of a copied table's gradient."""
HALVINGS = (0, 0.5, 1, 2, 4)
"""Of EMBark's costliest pieces, per place for them."""
ROWS, NODE_ROWS, REPLICATED = (FAMILIES.index(each) for each in (Family.ROWS, Family.NODE_ROWS, Family.REPLICATED))


def all_row_wise(problem: Problem) -> Iterator[Placement]:
    """Yield the placement with every table by rows on all devices."""
    deal = _Deal(problem)
    for unit in range(len(problem.units)):
        deal.everywhere(unit, ROWS)
    yield from deal.placement()


def all_table_row_wise(problem: Problem) -> Iterator[Placement]:
    """Yield the placement with every table by rows on one node, the nodes in turn; none on a single node."""
    if problem.request.topology.num_nodes > 1:
        yield from _copied_and_by_node(problem, 0)


def copies_and_table_row_wise(problem: Problem) -> Iterator[Placement]:
    """Yield placements with the smallest tables copied and the others by rows on one node, the nodes in turn.

    On a single node the others are by rows on all devices, which is the same.
    """
    for count in _numbers_copied(problem):
        yield from _copied_and_by_node(problem, count)


def embark(problem: Problem) -> Iterator[Placement]:
    """Yield EMBark's placements, for several numbers of copies and of halvings, on devices and on nodes."""
    topology = problem.request.topology
    for count in _numbers_copied(problem):
        for num_places in sorted({topology.num_devices, topology.num_nodes} - {1}):
            for halvings in HALVINGS:
                yield from _embark(problem, count, num_places, int(halvings * num_places))


def _copied_and_by_node(problem: Problem, num_copied: int) -> Iterator[Placement]:
    num_nodes = problem.request.topology.num_nodes
    deal, by_size = _Deal(problem), _by_size(problem)
    for unit in by_size[:num_copied]:
        deal.everywhere(unit, REPLICATED)
    for position, unit in enumerate(sorted(by_size[num_copied:])):
        if num_nodes == 1:
            deal.everywhere(unit, ROWS)
        else:
            deal.on_node(unit, position % num_nodes, problem.units[unit].num_columns)
    yield from deal.placement()


def _embark(problem: Problem, num_copied: int, num_places: int, num_halvings: int) -> Iterator[Placement]:
    deal, by_size = _Deal(problem), _by_size(problem)
    for unit in by_size[:num_copied]:
        deal.everywhere(unit, REPLICATED)
    pieces = [(unit, problem.units[unit].num_columns) for unit in sorted(by_size[num_copied:])]

    def cost(piece: tuple[int, int]) -> float:
        unit, columns = piece
        return (deal.pooling_factor(unit) + NETWORK_RATIO) * columns

    on_nodes = num_places != problem.num_devices
    kind = ShardingType.GRID if on_nodes else ShardingType.COLUMN_WISE
    may_be_cut = {unit for unit, types in enumerate(problem.sharding_types) if kind in types}
    for _ in range(num_halvings):
        pieces.sort(key=cost, reverse=True)
        cut = (each for each in pieces if each[0] in may_be_cut)
        chosen = next((each for each in cut if _may_be_halved(problem, each, pieces, num_places)), None)
        if chosen is None:
            break
        unit, columns = chosen
        left = columns // 2 // DIM_MULTIPLE * DIM_MULTIPLE
        pieces.remove(chosen)
        pieces += [(unit, left), (unit, columns - left)]
    loads = np.zeros(num_places)
    taken: set[tuple[int, int]] = set()
    for unit, columns in sorted(pieces, key=cost, reverse=True):
        for place in np.argsort(loads, kind="stable").tolist():
            if (unit, place) in taken:
                continue
            fits = deal.on_node(unit, place, columns) if on_nodes else deal.on_device(unit, place, columns)
            if fits:
                loads[place] += cost((unit, columns))
                taken.add((unit, place))
                break
    yield from deal.placement()


def _may_be_halved(problem: Problem, piece: tuple[int, int], pieces: Sequence[tuple[int, int]], most: int) -> bool:
    unit, columns = piece
    count = sum(each == unit for each, _ in pieces)
    return columns >= 2 * max(DIM_MULTIPLE, problem.units[unit].min_shard_width) and count < most


def _by_size(problem: Problem) -> list[int]:
    sizes = [unit.num_rows * unit.num_columns for unit in problem.units]
    return sorted(range(len(sizes)), key=sizes.__getitem__)


def _numbers_copied(problem: Problem) -> list[int]:
    """Return numbers of the smallest tables that are copied, up to all whose gradients are small enough."""
    sizes = sorted(unit.num_rows * unit.num_columns * GRADIENT_BYTES for unit in problem.units)
    small = int(np.searchsorted(sizes, MOST_COPIED_BYTES, side="right"))
    return sorted({int(share * small) for share in COPIED_SHARES})


class _Deal:
    """Shards of one placement, dealt out unit by unit."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._units: list[int] = []
        self._sizes: list[ShardSize] = []
        self._devices: list[int] = []
        self._used = np.zeros(problem.num_devices, dtype=np.int64)
        self._next = 0
        self._dealt_columns = np.zeros(len(problem.units), dtype=np.int64)
        """[units] columns that are somewhere, those on several devices once."""

    def placement(self) -> Iterator[Placement]:
        """Yield the shards dealt out, unless some had room nowhere."""
        if any(dealt != unit.num_columns for dealt, unit in zip(self._dealt_columns, self._problem.units, strict=True)):
            return
        kinds = self._problem.kinds_of(self._units, self._sizes)
        yield Placement(kinds=kinds, devices=np.array(self._devices, dtype=np.int64))

    def pooling_factor(self, unit: int) -> float:
        """Return the lookups per sample of a unit."""
        tables = self._problem.request.tables.tables
        return sum(tables[index].pooling_factor for index in self._problem.units[unit].tables)

    def everywhere(self, unit: int, family: int) -> None:
        """Put a unit by rows or as copies on all devices, or as it may be."""
        kinds = {ROWS: ShardingType.ROW_WISE, REPLICATED: ShardingType.DATA_PARALLEL}
        if kinds[family] not in self._problem.sharding_types[unit]:
            self._otherwise(unit, family)
            return
        size = self._problem.row_block(unit, family, self._problem.units[unit].num_columns)
        self._put(unit, size, range(self._problem.num_devices))

    def on_node(self, unit: int, node: int, num_columns: int) -> bool:
        """Put a block of columns by rows on the devices of a node; return whether there was room."""
        problem, per_node = self._problem, self._problem.request.topology.devices_per_node
        if ShardingType.TABLE_ROW_WISE not in problem.sharding_types[unit]:
            self._otherwise(unit, NODE_ROWS)
            return True
        devices = range(node * per_node, (node + 1) * per_node)
        return self._put(unit, problem.row_block(unit, NODE_ROWS, num_columns), devices)

    def on_device(self, unit: int, device: int, num_columns: int) -> bool:
        """Put columns of a unit on a device; return whether there was room."""
        size = self._problem.row_block(unit, COLUMNS, num_columns)
        return self._put(unit, size, range(device, device + 1))

    def _otherwise(self, unit: int, family: int) -> None:
        """Put a unit that may not be of a family on all devices as copies, or whole on the next device."""
        copied = ShardingType.DATA_PARALLEL in self._problem.sharding_types[unit]
        if copied and family != REPLICATED:
            self.everywhere(unit, REPLICATED)
            return
        self.on_device(unit, self._next % self._problem.num_devices, self._problem.units[unit].num_columns)
        self._next += 1

    def _put(self, unit: int, size: ShardSize, devices: range) -> bool:
        (kind,) = self._problem.kinds_of([unit], [size])
        needed = self._used[devices.start : devices.stop] + self._problem.kinds.memory_bytes[kind]
        if needed.max() > self._problem.memory.shard_capacity_bytes:
            return False
        self._used[devices.start : devices.stop] = needed
        self._units += [unit] * len(devices)
        self._sizes += [size] * len(devices)
        self._devices += devices
        self._dealt_columns[unit] += size.num_columns
        return True
