"""Packing by memory alone: finds a placement that fits, where greedy placement by load does not.

First a few greedy fills, which may cut a unit into uneven column shards; then a depth-first search over whole units
and even splits with a node limit, complete on small problems.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import DIM_MULTIPLE

from neuroshard_planner.constraints import BoolArray, Unit
from neuroshard_planner.costs.shards import IndexArray
from neuroshard_planner.memory import MemoryLedger
from neuroshard_planner.options import even_widths

MAX_NODES = 20_000  # of the depth-first search; about a tenth of a second


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

    def pack(self, capacity_bytes: int) -> list[Piece] | None:
        """Return pieces that cover every unit within the capacity, or None if none were found."""
        if sum(self.whole_bytes) > capacity_bytes * self.num_usable_devices:
            return None  # a split never needs less
        by_size = sorted(range(len(self.units)), key=lambda unit: -self.whole_bytes[unit])
        by_freedom = sorted(by_size, key=lambda unit: int(self._allowed[unit].sum()))
        for order in (by_freedom, by_size):
            for whole_first in (True, False):
                pieces = self._fill(order, capacity_bytes, whole_first=whole_first)
                if pieces is not None:
                    return pieces
        return _DepthFirst(self, by_freedom, self._allowed, capacity_bytes).run()

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
                new = self._cut(unit, devices, room)
            if not new:
                return None
            for piece in new:
                room[piece.device] -= self.bytes_of(unit, piece.num_columns)
            pieces += new
        return pieces

    def _cut(self, unit: int, devices: IndexArray, room: IndexArray) -> list[Piece]:
        """Return pieces that fill the roomiest devices first; empty if they do not hold the unit."""
        definition = self.units[unit]
        left = definition.num_columns
        pieces: list[Piece] = []
        fixed = self.bytes_of(unit, 0)
        for device in sorted(devices.tolist(), key=lambda device: -room[device]):
            widest = int((room[device] - fixed) // max(1, self._bytes_per_column[unit])) // DIM_MULTIPLE * DIM_MULTIPLE
            width = min(left, widest)
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
    """Depth-first search over whole units and even splits; devices with equal room are tried once."""

    def __init__(self, packing: Packing, order: Sequence[int], allowed: BoolArray, capacity_bytes: int) -> None:
        self._packing = packing
        self._order = order
        self._allowed = allowed
        self._room = [capacity_bytes] * packing.num_devices
        self._kind_of_device: list[int] = np.unique(allowed, axis=1, return_inverse=True)[1].reshape(-1).tolist()
        self._nodes = 0

    def run(self) -> list[Piece] | None:
        """Return the first packing found within the node limit."""
        trail: list[Iterator[list[Piece]]] = [self._choices(0)]
        taken: list[list[Piece]] = []
        while trail:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                return None
            chosen = next(trail[-1], None)
            if chosen is None:
                trail.pop()
                if taken:
                    self._use(taken.pop(), sign=1)
                continue
            self._use(chosen, sign=-1)
            taken.append(chosen)
            if len(taken) == len(self._order):
                return [piece for pieces in taken for piece in pieces]
            trail.append(self._choices(len(taken)))
        return None

    def _use(self, pieces: Sequence[Piece], *, sign: int) -> None:
        for piece in pieces:
            self._room[piece.device] += sign * self._packing.bytes_of(piece.unit, piece.num_columns)

    def _choices(self, depth: int) -> Iterator[list[Piece]]:
        unit = self._order[depth]
        definition = self._packing.units[unit]
        for count in range(1, min(definition.max_shards, self._packing.num_devices) + 1):
            widths = even_widths(definition.num_columns, count)
            if count > 1 and widths[-1] < definition.min_shard_width:
                return
            needed = self._packing.bytes_of(unit, widths[0])
            roomy = [
                device
                for device in range(self._packing.num_devices)
                if self._allowed[unit, device] and self._room[device] >= needed
            ]
            tried: set[tuple[tuple[int, int], ...]] = set()
            for devices in combinations(roomy, count):
                self._nodes += 1  # like devices alone can make more combinations than there is time for
                if self._nodes > MAX_NODES:
                    return
                likeness = tuple((self._room[device], self._kind_of_device[device]) for device in devices)
                if likeness not in tried:
                    tried.add(likeness)
                    yield [
                        Piece(unit=unit, num_columns=width, device=device)
                        for width, device in zip(widths, devices, strict=True)
                    ]
