"""Packing by memory alone: finds a placement that fits, where greedy placement by load does not.

First a few greedy fills, which may cut a unit into uneven column shards; then a depth-first search with a node limit
over whole units and a few that are cut into what the others leave.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import DIM_MULTIPLE

from neuroshard_planner.constraints import BoolArray, Unit
from neuroshard_planner.costs.shards import IndexArray
from neuroshard_planner.memory import MemoryLedger
from neuroshard_planner.options import even_widths

MAX_NODES = 100_000  # of one depth-first search; a second or two, spent only where everything else failed
MOST_CUT = 5  # units that fill gaps
LATER = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A column shard of a unit on a device."""

    unit: int
    num_columns: int
    device: int


class Packing:
    """The memory side of a problem: bytes of a shard are affine in its columns."""

    def __init__(self, request: PlanRequest, units: Sequence[Unit], allowed: BoolArray | None) -> None:
        ledger = MemoryLedger(request)
        self.units = units
        self.num_devices = request.topology.num_devices
        self.capacity_bytes = ledger.shard_capacity_bytes
        self._allowed = np.ones((len(units), self.num_devices), dtype=np.bool_) if allowed is None else allowed
        tables = request.tables.tables
        index = np.arange(len(tables))
        rows = np.array([table.num_embeddings for table in tables])
        columns = np.array([table.embedding_dim for table in tables])
        whole = ledger.shard_bytes(index, rows, columns)
        per_column = ledger.shard_bytes(index, rows, np.ones_like(columns)) - ledger.shard_bytes(
            index, rows, np.zeros_like(columns)
        )
        self.whole_bytes = [int(sum(whole[table] for table in unit.tables)) for unit in units]
        """Bytes of each unit in one piece."""
        self._bytes_per_column = [int(per_column[unit.tables[0]]) for unit in units]

    def bytes_of(self, unit: int, num_columns: int) -> int:
        """Return the bytes of a shard of a unit."""
        return self.whole_bytes[unit] - (self.units[unit].num_columns - num_columns) * self._bytes_per_column[unit]

    def least_shard_bytes(self, unit: int) -> int:
        """Return the bytes of the widest shard that the unit must have somewhere, split as often as allowed."""
        definition = self.units[unit]
        return self.bytes_of(unit, even_widths(definition.num_columns, definition.max_shards)[0])

    @property
    def num_usable_devices(self) -> int:
        """Devices that may hold any unit."""
        return int(self._allowed.any(axis=0).sum())

    def overfull_device(self) -> tuple[int, int] | None:
        """Return a device and the bytes of the units that may be nowhere else, if they exceed its capacity."""
        pinned = np.flatnonzero(self._allowed.sum(axis=1) == 1)
        needed = np.zeros(self.num_devices, dtype=np.int64)
        np.add.at(needed, self._allowed[pinned].argmax(axis=1), np.array(self.whole_bytes)[pinned])
        fullest = int(needed.argmax())
        return (fullest, int(needed[fullest])) if needed[fullest] > self.capacity_bytes else None

    def pack(self, capacity_bytes: int, *, max_nodes: int = MAX_NODES) -> list[Piece] | None:
        """Return pieces that cover every unit within the capacity, or None if none were found.

        ``max_nodes`` limits each depth-first search, one for every number of units that fill gaps.
        """
        if sum(self.whole_bytes) > capacity_bytes * self.num_usable_devices:
            return None  # a split never needs less
        by_size = sorted(range(len(self.units)), key=lambda unit: -self.whole_bytes[unit])
        by_freedom = sorted(by_size, key=lambda unit: int(self._allowed[unit].sum()))
        for order in (by_freedom, by_size):
            for whole_first in (True, False):
                pieces = self._fill(order, capacity_bytes, whole_first=whole_first)
                if pieces is not None:
                    return pieces
        cuttable = sum(unit.max_shards > 1 for unit in self.units)
        for most_cut in range(min(cuttable, MOST_CUT) + 1):
            pieces = _DepthFirst(
                self, by_freedom, self._allowed, capacity_bytes, most_cut=most_cut, max_nodes=max_nodes
            ).run()
            if pieces is not None:
                return pieces
        return None

    def _fill(self, order: Sequence[int], capacity_bytes: int, *, whole_first: bool) -> list[Piece] | None:
        """Place units in order on the tightest device that holds them; cut what fits nowhere."""
        room = np.full(self.num_devices, capacity_bytes, dtype=np.int64)
        pieces: list[Piece] = []
        for unit in order:
            devices = np.flatnonzero(self._allowed[unit])
            fitting = devices[room[devices] >= self.whole_bytes[unit]]
            if len(fitting):
                choose = np.argmin if whole_first else np.argmax
                new = [
                    Piece(
                        unit=unit, num_columns=self.units[unit].num_columns, device=int(fitting[choose(room[fitting])])
                    )
                ]
            else:
                new = self.cut(unit, devices, room)
            if not new:
                return None
            for piece in new:
                room[piece.device] -= self.bytes_of(unit, piece.num_columns)
            pieces += new
        return pieces

    def widest(self, unit: int, room_bytes: int) -> int:
        """Return the most columns of a unit that fit into some bytes."""
        bytes_per_column = max(1, self._bytes_per_column[unit])
        return max(0, (room_bytes - self.bytes_of(unit, 0)) // bytes_per_column) // DIM_MULTIPLE * DIM_MULTIPLE

    def cut(self, unit: int, devices: IndexArray, room: IndexArray) -> list[Piece]:
        """Return pieces that fill the roomiest devices first; empty if they do not hold the unit."""
        definition = self.units[unit]
        left = definition.num_columns
        pieces: list[Piece] = []
        for device in sorted(devices.tolist(), key=lambda device: -room[device]):
            width = min(left, self.widest(unit, int(room[device])))
            if 0 < left - width < definition.min_shard_width:
                width = left - definition.min_shard_width
            if width < definition.min_shard_width or len(pieces) == definition.max_shards:
                return []
            pieces.append(Piece(unit=unit, num_columns=width, device=device))
            left -= width
            if left == 0:
                return pieces
        return []


class _DepthFirst:
    """Depth-first search: every unit whole on a device, but for a few that fill the gaps when all others have a place.

    Devices with equal room and equal rights are tried once; a branch ends when the rest exceeds all room left.
    """

    def __init__(
        self,
        packing: Packing,
        order: Sequence[int],
        allowed: BoolArray,
        capacity_bytes: int,
        *,
        most_cut: int,
        max_nodes: int,
    ) -> None:
        self._packing = packing
        self._order = order
        self._allowed = allowed
        self._most_cut = most_cut
        self._max_nodes = max_nodes
        self._room: IndexArray = np.full(packing.num_devices, capacity_bytes, dtype=np.int64)
        self._rights = np.unique(allowed, axis=1, return_inverse=True)[1]
        sizes = [packing.whole_bytes[unit] for unit in order]
        self._rest_bytes = [sum(sizes[depth:]) for depth in range(len(sizes) + 1)] if len(sizes) <= max_nodes else []
        self._chosen: list[int] = []
        """Device of each unit so far in order, or LATER."""
        self._nodes = 0

    def run(self) -> list[Piece] | None:
        """Return the first packing found within the node limit."""
        if not self._rest_bytes:
            return None  # more units than nodes: not a small problem
        trail = [self._choices()]
        while trail:
            self._nodes += 1
            if self._nodes > self._max_nodes:
                return None
            device = next(trail[-1], None)
            if device is None:
                trail.pop()
                if self._chosen:
                    self._use(self._chosen.pop(), sign=1)
                continue
            self._use(device, sign=-1)
            self._chosen.append(device)
            if len(self._chosen) == len(self._order):
                pieces = self._complete()
                if pieces is not None:
                    return pieces
                self._use(self._chosen.pop(), sign=1)
            else:
                trail.append(self._choices())
        return None

    def _use(self, device: int, *, sign: int) -> None:
        """Take (-1) or give back (1) the room of the unit at the present depth."""
        if device != LATER:
            depth = len(self._chosen)
            self._room[device] += sign * self._packing.whole_bytes[self._order[depth]]

    def _choices(self) -> Iterator[int]:
        depth = len(self._chosen)
        if self._rest_bytes[depth] + self._later_bytes() > self._room.sum():
            return
        unit = self._order[depth]
        fitting = np.flatnonzero(self._allowed[unit] & (self._room >= self._packing.whole_bytes[unit]))
        tried: set[tuple[int, int]] = set()
        for device in fitting[np.argsort(self._room[fitting], kind="stable")].tolist():
            likeness = (int(self._room[device]), int(self._rights[device]))
            if likeness not in tried:
                tried.add(likeness)
                yield device
        if self._packing.units[unit].max_shards > 1 and self._chosen.count(LATER) < self._most_cut:
            yield LATER

    def _later_bytes(self) -> int:
        return sum(
            self._packing.whole_bytes[unit]
            for unit, device in zip(self._order, self._chosen, strict=False)
            if device == LATER
        )

    def _complete(self) -> list[Piece] | None:
        """Return all pieces, with the units left for later cut into the gaps."""
        placed = list(zip(self._order, self._chosen, strict=True))
        cut = self._cut_all([unit for unit, device in placed if device == LATER], self._room)
        if cut is None:
            return None
        return cut + [
            Piece(unit=unit, num_columns=self._packing.units[unit].num_columns, device=device)
            for unit, device in placed
            if device != LATER
        ]

    def _cut_all(self, units: Sequence[int], room: IndexArray) -> list[Piece] | None:
        """Cut these units into the room: the last greedily, the others in every way within the node limit."""
        self._nodes += 1
        if not units or self._nodes > self._max_nodes:
            return None if units else []
        unit, *others = units
        devices = np.flatnonzero(self._allowed[unit])
        if not others:
            return self._packing.cut(unit, devices, room) or None
        roomiest_first = devices[np.argsort(-room[devices], kind="stable")].tolist()
        definition = self._packing.units[unit]
        for pieces in self._ways(unit, roomiest_first, room, definition.num_columns, definition.max_shards):
            if self._nodes > self._max_nodes:
                return None
            left = room.copy()
            for piece in pieces:
                left[piece.device] -= self._packing.bytes_of(unit, piece.num_columns)
            rest = self._cut_all(others, left)
            if rest is not None:
                return pieces + rest
        return None

    def _ways(
        self, unit: int, devices: Sequence[int], room: IndexArray, num_columns: int, max_shards: int
    ) -> Iterator[list[Piece]]:
        """Yield the ways to cut these columns over some of the devices, the fullest use of the first device first."""
        if num_columns == 0:
            yield []
            return
        least = self._packing.units[unit].min_shard_width
        widest = [min(num_columns, self._packing.widest(unit, int(room[device]))) for device in devices]
        if max_shards == 0 or sum(sorted(widest, reverse=True)[:max_shards]) < num_columns:
            return
        for width in range(widest[0], least - 1, -DIM_MULTIPLE):
            for rest in self._ways(unit, devices[1:], room, num_columns - width, max_shards - 1):
                yield [Piece(unit=unit, num_columns=width, device=devices[0]), *rest]
        yield from self._ways(unit, devices[1:], room, num_columns, max_shards)
