"""Packing by memory alone: finds a placement that fits, where greedy placement by load does not.

First a few greedy fills, which may cut a unit into uneven column shards; then an integer program.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.units import (
    allowed_devices,
    even_widths,
    num_usable_devices,
    placed_units,
    resolve_units,
)

MAX_NODES = 5_000  # of the integer program; random tight cases of 8 tables on 4 devices take up to 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A column shard of a unit on a device."""

    unit: int
    num_columns: int
    device: int


class Packing:
    """The memory side of a request: bytes of a shard are affine in its columns.

    Raises:
        RequestError: the request contradicts itself.
    """

    def __init__(self, request: PlanRequest) -> None:
        ledger, units = memory_ledger(request), resolve_units(request)
        allowed = allowed_devices(request, units)
        self.num_devices = request.topology.num_devices
        self.num_usable_devices = num_usable_devices(allowed, self.num_devices)
        self.units = placed_units(units, allowed, self.num_devices)
        self.capacity_bytes = ledger.shard_capacity_bytes
        self._allowed = np.ones((len(units), self.num_devices), dtype=np.bool_) if allowed is None else allowed
        index, rows, columns = ledger.whole
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

    def overfull_device(self) -> tuple[int, int] | None:
        """Return a device and the bytes of the units that may be nowhere else, if they exceed its capacity."""
        pinned = np.flatnonzero(self._allowed.sum(axis=1) == 1)
        needed = np.zeros(self.num_devices, dtype=np.int64)
        np.add.at(needed, self._allowed[pinned].argmax(axis=1), np.array(self.whole_bytes)[pinned])
        fullest = int(needed.argmax())
        return (fullest, int(needed[fullest])) if needed[fullest] > self.capacity_bytes else None

    def pack(self, capacity_bytes: int, *, max_nodes: int = MAX_NODES) -> list[Piece] | None:
        """Return pieces that cover every unit within the capacity, or None if none were found.

        ``max_nodes`` limits the integer program.
        """
        if sum(self.whole_bytes) > capacity_bytes * self.num_usable_devices:
            return None  # a split never needs less
        return next(self.fills(capacity_bytes), None) or self._pack_exactly(capacity_bytes, max_nodes)

    def fills(self, capacity_bytes: int) -> Iterator[list[Piece]]:
        """Yield pieces that cover every unit within the capacity, of each greedy fill that finds room."""
        by_size = sorted(range(len(self.units)), key=lambda unit: -self.whole_bytes[unit])
        by_freedom = sorted(by_size, key=lambda unit: int(self._allowed[unit].sum()))
        for order, whole_first in product(dict.fromkeys(map(tuple, (by_freedom, by_size))), (True, False)):
            pieces = self._fill(order, capacity_bytes, whole_first=whole_first)
            if pieces is not None:
                yield pieces

    def _pack_exactly(self, capacity_bytes: int, max_nodes: int) -> list[Piece] | None:
        # Where greedy filling does, nobody waits for scipy.
        from neuroshard_planner.memory.exact_packing import PackingProblem, pack_exactly  # noqa: PLC0415

        columns = np.array([unit.num_columns for unit in self.units], dtype=np.int64)
        whole_bytes, column_bytes = np.array(self.whole_bytes), np.array(self._bytes_per_column)
        problem = PackingProblem(
            quads=columns // DIM_MULTIPLE,
            min_quads=np.array([unit.min_shard_width for unit in self.units]) // DIM_MULTIPLE,
            max_shards=np.array([unit.max_shards for unit in self.units]),
            shard_bytes=whole_bytes - columns * column_bytes,
            quad_bytes=DIM_MULTIPLE * column_bytes,
            allowed=self._allowed,
            capacity_bytes=capacity_bytes,
        )
        quads = pack_exactly(problem, max_nodes=max_nodes)
        if quads is None:
            return None
        return [
            Piece(unit=unit, num_columns=DIM_MULTIPLE * int(quads[unit, device]), device=device)
            for unit, device in np.argwhere(quads).tolist()
        ]

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
