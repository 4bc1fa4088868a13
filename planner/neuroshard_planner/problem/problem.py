"""A request as arrays: units, their shards' representations, memory, and the objective. Holds no plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from neuroshard_api.request import PlanRequest
from neuroshard_api.topology import Topology
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray, IndexArray, ShardArrays
from numpy.typing import NDArray

from neuroshard_planner.problem.memory_ledger import MemoryLedger
from neuroshard_planner.problem.units import Unit, allowed_devices, resolve_units

Float32Array = NDArray[np.float32]

LOOKUPS_PER_EVALUATION = 1024  # greedy look-ups that take as long as one evaluation of a device by the networks
NUM_TRANSFER_KNOTS = 256  # relative interpolation error of a transfer time is below 1e-3


class CostModel(Protocol):
    """What the search asks of a bundle."""

    def represent(self, shards: ShardArrays) -> Float32Array:
        """Return [n, r] non-negative representations, which add up over the shards of a device."""

    def compute_ms(self, sums: Float32Array) -> Float32Array:
        """Return [..., 2] forward and backward times of devices with these [..., r] sums.

        Monotone and convex in the sums up to a monotone rescaling: the lower bound depends on it.
        A device without shards (a zero sum) costs 0.
        """

    def transfer_ms(
        self,
        max_dim_sums: FloatArray,
        *,
        mean_dim_sum: float,
        topology: Topology,
        batch_size_per_device: int,
        bytes_per_element: int,
    ) -> FloatArray:
        """Return [n, 2] forward and backward all-to-all times, without waiting."""


class TransferCost:
    """Forward plus backward all-to-all time as a non-decreasing function of the largest dimension sum.

    The communication networks are read once at knots between the mean and the sum of all columns, made monotone
    by their running maximum and interpolated; hence evaluating a placement costs nothing, and the value at the
    mean bounds every placement from below.
    """

    def __init__(self, request: PlanRequest, costs: CostModel) -> None:
        total = sum(table.embedding_dim for table in request.tables.tables)
        mean = total / request.topology.num_devices
        self._knots: FloatArray = np.geomspace(mean, max(total, mean + 1), NUM_TRANSFER_KNOTS)
        times = costs.transfer_ms(
            self._knots,
            mean_dim_sum=mean,
            topology=request.topology,
            batch_size_per_device=request.batch_size_per_device,
            bytes_per_element=BYTES_PER_ELEMENT[request.memory.output_data_type],
        )
        self._forward, self._backward = np.maximum.accumulate(times, axis=0).T
        self._total = self._forward + self._backward

    def total_ms(self, max_dim_sum: FloatArray | float) -> FloatArray:
        """Return forward plus backward time."""
        times: FloatArray = np.interp(max_dim_sum, self._knots, self._total)
        return times

    def directions_ms(self, max_dim_sum: float) -> tuple[float, float]:
        """Return the forward and the backward time."""
        return (
            float(np.interp(max_dim_sum, self._knots, self._forward)),
            float(np.interp(max_dim_sum, self._knots, self._backward)),
        )

    @property
    def least_ms(self) -> float:
        """The time of perfectly even dimension sums."""
        return float(self._total[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """n shards on devices: one row each."""

    kinds: IndexArray
    devices: IndexArray


class ShardSize(NamedTuple):
    """A rectangle of a unit; two shards of one unit and size are alike."""

    num_rows: int
    num_columns: int


class ShardKinds:
    """Distinct shards as columns of numbers, one row per kind; only ever grows."""

    def __init__(self, num_representation: int) -> None:
        self._size = 0
        self._unit: IndexArray = np.empty(64, dtype=np.int64)
        self._num_rows = np.empty_like(self._unit)
        self._num_columns = np.empty_like(self._unit)
        self._memory_bytes = np.empty_like(self._unit)
        self._representation: Float32Array = np.empty((64, num_representation), dtype=np.float32)

    def __len__(self) -> int:
        return self._size

    @property
    def unit(self) -> IndexArray:
        """[k] position of the unit in the problem."""
        return self._unit[: self._size]

    @property
    def num_rows(self) -> IndexArray:
        """[k] rows of the shard."""
        return self._num_rows[: self._size]

    @property
    def num_columns(self) -> IndexArray:
        """[k] columns; what the shard adds to its device's all-to-all."""
        return self._num_columns[: self._size]

    @property
    def memory_bytes(self) -> IndexArray:
        """[k] all that the shard needs on its device."""
        return self._memory_bytes[: self._size]

    @property
    def representation(self) -> Float32Array:
        """[k, r] what the shard adds to its device's sum."""
        return self._representation[: self._size]

    def append(
        self,
        *,
        unit: IndexArray,
        sizes: Sequence[ShardSize],
        memory_bytes: IndexArray,
        representation: Float32Array,
    ) -> None:
        """Add kinds; room grows by doubling, so that adding few at a time stays cheap."""
        end = self._size + len(sizes)
        if end > len(self._unit):
            room = max(end, 2 * len(self._unit))
            for name in ("_unit", "_num_rows", "_num_columns", "_memory_bytes", "_representation"):
                old = getattr(self, name)
                grown = np.empty((room, *old.shape[1:]), dtype=old.dtype)
                grown[: self._size] = old[: self._size]
                setattr(self, name, grown)
        new = slice(self._size, end)
        self._unit[new] = unit
        self._num_rows[new] = [size.num_rows for size in sizes]
        self._num_columns[new] = [size.num_columns for size in sizes]
        self._memory_bytes[new] = memory_bytes
        self._representation[new] = representation
        self._size = end


class Problem:
    """Everything that decides a placement's cost and whether it fits."""

    def __init__(self, request: PlanRequest, costs: CostModel) -> None:
        self.request = request
        self.costs = costs
        self.num_devices = request.topology.num_devices
        self.units: tuple[Unit, ...] = resolve_units(request)
        self.num_rows: IndexArray = np.array([unit.num_rows for unit in self.units], dtype=np.int64)
        """[units]"""
        self.min_shard_width: IndexArray = np.array([unit.min_shard_width for unit in self.units], dtype=np.int64)
        """[units]"""
        self.max_shards: IndexArray = np.array([unit.max_shards for unit in self.units], dtype=np.int64)
        """[units]"""
        self.allowed = allowed_devices(request, self.units)
        self.memory = MemoryLedger(request)
        self.transfer = TransferCost(request, costs)
        self.evaluations = 0
        """Devices whose cost the networks evaluated so far."""
        self.lookups = 0
        """Devices that greedy placement looked at so far."""
        self._tables = shard_arrays(
            request.tables, global_batch_size=request.global_batch_size, optimizer=request.optimizer
        )
        self._kind_of: dict[tuple[int, ShardSize], int] = {}
        first = self._tables.take(np.zeros(1, dtype=np.int64))
        self.kinds = ShardKinds(num_representation=costs.represent(first).shape[1])
        self.whole: IndexArray = self.kinds_of(
            range(len(self.units)), [ShardSize(unit.num_rows, unit.num_columns) for unit in self.units]
        )
        """[units] the kind of each unit in one piece."""

    @property
    def work(self) -> int:
        """Work so far in device evaluations; see LOOKUPS_PER_EVALUATION."""
        return self.evaluations + self.lookups // LOOKUPS_PER_EVALUATION

    def kinds_of(self, units: Sequence[int], sizes: Sequence[ShardSize]) -> IndexArray:
        """Return the kinds of shards of these sizes, [n]; new ones are represented in one batch."""
        keys = list(zip(units, sizes, strict=True))
        known = self._kind_of
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            self._add_kinds(new)
        return np.array([known[key] for key in keys], dtype=np.int64)

    def _add_kinds(self, keys: Sequence[tuple[int, ShardSize]]) -> None:
        first = len(self._kind_of)
        self._kind_of.update((key, first + row) for row, key in enumerate(keys))
        shards, kind, tables = self._cut(keys)
        each = self.costs.represent(shards)
        representation = np.zeros((len(keys), each.shape[1]), dtype=np.float32)
        np.add.at(representation, kind, each)
        memory_bytes = np.zeros(len(keys), dtype=np.int64)
        rows, columns = shards.num_rows.astype(np.int64), shards.num_columns.astype(np.int64)
        np.add.at(memory_bytes, kind, self.memory.shard_bytes(tables, rows, columns))
        self.kinds.append(
            unit=np.array([unit for unit, _ in keys], dtype=np.int64),
            sizes=[size for _, size in keys],
            memory_bytes=memory_bytes,
            representation=representation,
        )

    def shards_of(self, kinds: IndexArray) -> tuple[ShardArrays, IndexArray]:
        """Return the table shards that n kinds consist of, and for each the position of its kind in ``kinds``."""
        units, rows, columns = (
            values[kinds].tolist() for values in (self.kinds.unit, self.kinds.num_rows, self.kinds.num_columns)
        )
        keys = list(zip(units, map(ShardSize, rows, columns), strict=True))
        shards, position, _ = self._cut(keys)
        return shards, position

    def _cut(self, keys: Sequence[tuple[int, ShardSize]]) -> tuple[ShardArrays, IndexArray, IndexArray]:
        """Return the table shards of units cut to sizes, the position of each one's key, and its table."""
        members = [(row, table) for row, (unit, _) in enumerate(keys) for table in self.units[unit].tables]
        row = np.array([row for row, _ in members], dtype=np.int64)
        tables = np.array([table for _, table in members], dtype=np.int64)
        units = [self.units[unit] for unit, _ in keys]
        # A group is never cut, so that its members keep their own rows and columns: both shares are 1.
        row_share = np.array([size.num_rows / unit.num_rows for unit, (_, size) in zip(units, keys, strict=True)])[row]
        column_share = np.array(
            [size.num_columns / unit.num_columns for unit, (_, size) in zip(units, keys, strict=True)]
        )[row]
        whole = self._tables.take(tables)
        shards = replace(
            whole,
            num_rows=np.ceil(whole.num_rows * row_share),
            num_columns=np.rint(whole.num_columns * column_share),
            pooling_factor=whole.pooling_factor * row_share,
            unique_rows=whole.unique_rows * row_share,
        )
        return shards, row, tables

    def compute_ms(self, sums: Float32Array) -> Float32Array:
        """Return [..., 2] forward and backward times, counted as evaluations."""
        self.evaluations += sums.size // sums.shape[-1]
        return self.costs.compute_ms(sums)

    def device_sums(self, kinds: IndexArray, devices: IndexArray) -> Float32Array:
        """Return [devices, r] sums of a placement of n shards."""
        return self._sums(kinds, devices, self.num_devices)

    def total_ms(self, placements: Sequence[Placement]) -> FloatArray:
        """Return [p] the cost of each placement: the largest compute of either direction plus the all-to-alls."""
        return self.cost_ms(*self.device_levels(placements))

    def cost_ms(self, times: FloatArray, columns: FloatArray) -> FloatArray:
        """Return [p] the cost of placements with these [p, devices, 2] times and [p, devices] columns."""
        total: FloatArray = times.max(axis=1).sum(axis=1) + self.transfer.total_ms(columns.max(axis=1))
        return total

    def device_levels(self, placements: Sequence[Placement]) -> tuple[FloatArray, FloatArray]:
        """Return [p, devices, 2] forward and backward times, and [p, devices] columns, of each placement's devices."""
        shape = (len(placements), self.num_devices)
        if not placements:
            return np.empty((*shape, 2)), np.empty(shape)
        kinds = np.concatenate([each.kinds for each in placements])
        slots = np.concatenate([each.devices + row * self.num_devices for row, each in enumerate(placements)])
        num_slots = len(placements) * self.num_devices
        times: FloatArray = self.compute_ms(self._sums(kinds, slots, num_slots)).astype(np.float64)
        weights = self.kinds.num_columns[kinds].astype(np.float64)
        columns: FloatArray = np.bincount(slots, weights=weights, minlength=num_slots).astype(np.float64, copy=False)
        return times.reshape(*shape, 2), columns.reshape(shape)

    def _sums(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> Float32Array:
        """Return [slots, r] sums of the representations of the shards in each slot."""
        order = np.argsort(slots, kind="stable")
        rows = self.kinds.representation[kinds[order]]
        counts = np.bincount(slots, minlength=num_slots)
        occupied = np.flatnonzero(counts)
        sums = np.zeros((num_slots, rows.shape[1]), dtype=np.float32)
        sums[occupied] = np.add.reduceat(rows, (np.cumsum(counts) - counts)[occupied], axis=0)
        return sums
