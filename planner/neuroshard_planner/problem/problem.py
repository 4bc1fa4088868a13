"""A request as arrays: units, their shards' representations, memory, and the objective. Holds no plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.sharding.kinds import ShardingType, num_row_parts
from neuroshard_costs.cuts import Cuts
from neuroshard_costs.deduplication import looked_up
from neuroshard_costs.host_tables import ON_DEVICE, HostTables
from neuroshard_costs.networks import on_grid
from neuroshard_costs.shards import COLUMNS, FAMILIES, REPLICATED, ROWS, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective, StepCost

from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.shard_kinds import ShardKinds, ShardSize
from neuroshard_planner.problem.sharding_choice import default_types, host_choices, sharding_types
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.problem.units import (
    BoolArray,
    Unit,
    allowed_devices,
    num_usable_devices,
    placed_units,
    resolve_units,
)

PROBES_PER_EVALUATION = 1024  # of greedy placement, which take as long as one evaluation of a device by the networks
KINDS_AT_ONCE = 2048  # keeps the arrays of their features within the processor's cache
DEFAULT = SearchTuning()
BULK_PER_EVALUATION = 8  # evaluations of many devices at once that take as long as one in a local step
LANES_PER_EVALUATION = 3  # the same, in local steps of several placements side by side
_UNKNOWN = -1

_Key = tuple[int, int, int, int, int, float]
"""A unit, and the size of a shard of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """n shards on devices: one row each."""

    kinds: IndexArray
    devices: IndexArray

    def at(self, rows: IndexArray | BoolArray) -> "Placement":
        """Return the shards at these positions, or for which ``rows`` [n] is true."""
        return Placement(kinds=self.kinds[rows], devices=self.devices[rows])

    @classmethod
    def joined(cls, *parts: "Placement") -> "Placement":
        """Return the shards of all parts, one at least, in their order."""
        kinds, devices = zip(*((each.kinds, each.devices) for each in parts), strict=True)
        return cls(kinds=np.concatenate(kinds), devices=np.concatenate(devices))


class Problem:
    """Everything that decides a placement's cost and whether it fits."""

    def __init__(self, request: PlanRequest, costs: CostModel, *, tuning: SearchTuning | None = None) -> None:
        """``tuning`` is of the searches of the problem; if unset: the default."""
        self.request = request
        self.costs = costs
        self.tuning = tuning or DEFAULT
        self.num_devices = request.topology.num_devices
        units = resolve_units(request)
        self.allowed = allowed_devices(request, units)
        self.num_allowed: IndexArray = (
            np.full(len(units), self.num_devices) if self.allowed is None else self.allowed.sum(axis=1)
        )
        """[units] devices that may hold shards of the unit."""
        self.units: tuple[Unit, ...] = placed_units(units, self.allowed, self.num_devices)
        self.num_rows: IndexArray = np.array([unit.num_rows for unit in self.units], dtype=np.int64)
        """[units]"""
        self._num_columns: IndexArray = np.array([unit.num_columns for unit in self.units], dtype=np.int64)
        self._members: IndexArray = np.array(list(chain.from_iterable(unit.tables for unit in self.units)), np.int64)
        self._num_members: IndexArray = np.array([len(unit.tables) for unit in self.units], dtype=np.int64)
        self._first_member: IndexArray = np.cumsum(self._num_members) - self._num_members
        self.min_shard_width: IndexArray = np.array([unit.min_shard_width for unit in self.units], dtype=np.int64)
        """[units]"""
        self.max_shards: IndexArray = np.array([unit.max_shards for unit in self.units], dtype=np.int64)
        """[units]"""
        self.host_choices = host_choices(request, self.units)
        """[units] whether each may be, or must be, in host memory."""
        self.memory = memory_ledger(request)
        host = request.topology.host_memory
        self.host_tables = None if host is None else HostTables(request, host)
        """If unset: no table may be in host memory."""
        self.priced = looked_up(request)
        """The request without the lookups of repeated lists, which cost nothing."""
        self.step_cost = StepCost(self.priced, costs)
        self.watched: Callable[[Problem, Sequence[Placement], FloatArray], None] | None = None
        """Is called with all placements that are priced as a whole, and their costs. If unset: nobody looks."""
        self.evaluations = 0
        """Devices whose cost the networks evaluated so far."""
        self._spared = 0
        self.greedy_probes = 0
        """Devices that greedy placement tried shards on so far."""
        self._cuts = Cuts(self.priced)
        self._num_row_parts = [num_row_parts(family, request.topology) for family in FAMILIES]
        self._kind_of: dict[_Key, int] = {}
        num_widths = self._num_columns // DIM_MULTIPLE
        self._widths_before: IndexArray = np.cumsum(num_widths) - num_widths - 1
        self._kind_of_width: IndexArray = np.full(int(num_widths.sum()), _UNKNOWN)
        self._num_networks = costs.represent(self._cuts.any_table).shape[1]
        self._num_added = 0 if self.host_tables is None else 2
        self.kinds = ShardKinds(num_representation=self._num_networks + self._num_added)
        self.whole: IndexArray = self.kinds_of(
            range(len(self.units)), [ShardSize(unit.num_rows, unit.num_columns) for unit in self.units]
        )
        """[units] the kind of each unit in one piece."""

    @cached_property
    def sharding_types(self) -> tuple[frozenset[ShardingType], ...]:
        """[units] ways in which each unit may be sharded. Raises RequestError where one has none."""
        default = default_types(self.request, self.costs.manifest)
        return sharding_types(self.request, self.units, self.allowed, default)

    @property
    def num_usable_devices(self) -> int:
        """Devices that may hold any unit."""
        return num_usable_devices(self.allowed, self.num_devices)

    @property
    def is_large(self) -> bool:
        """Whether there are that many units that descents take long."""
        return len(self.units) > self.tuning.most_small_units

    @property
    def has_further_types(self) -> bool:
        """Whether some unit may be cut by rows or copied."""
        return any(not kind.is_by_columns for types in self.sharding_types for kind in types)

    @property
    def work(self) -> int:
        """Work so far in device evaluations; see PROBES_PER_EVALUATION and BULK_PER_EVALUATION."""
        return self.evaluations - self._spared + self.greedy_probes // PROBES_PER_EVALUATION

    def forced_placement(self) -> Placement | None:
        """Return the only placement there is, whether or not it fits. None: some unit has a choice."""
        if self.num_allowed.max() > 1 or any(unit.must_be_cut for unit in self.units):
            return None
        devices = np.zeros(len(self.units), dtype=np.int64) if self.allowed is None else self.allowed.argmax(axis=1)
        kinds = self.whole.copy()
        copied = [unit for unit, types in enumerate(self.sharding_types) if types == {ShardingType.DATA_PARALLEL}]
        if copied:
            sizes = [self.row_block(unit, REPLICATED, self.units[unit].num_columns) for unit in copied]
            kinds[copied] = self.kinds_of(copied, sizes)
        return Placement(kinds=kinds, devices=devices)

    def is_cut_by_columns(self, placement: Placement) -> BoolArray:
        """Return [n] whether each shard has all rows of its columns in device memory.

        Such shards choose their devices one by one; those in host memory stay where they were put.
        """
        kinds, known = placement.kinds, self.kinds
        movable: BoolArray = (known.family[kinds] == COLUMNS) & (known.kernel[kinds] == ON_DEVICE)
        return movable

    def used_bytes(self, placement: Placement) -> IndexArray:
        """Return [devices] the memory that a placement takes."""
        used = np.zeros(self.num_devices, dtype=np.int64)
        np.add.at(used, placement.devices, self.kinds.memory_bytes[placement.kinds])
        return used

    def fits(self, placement: Placement) -> bool:
        """Return whether every device, and every node's host, has memory for its shards."""
        if self.host_tables is not None and self.host_bytes(placement).max() > self.memory.host_capacity_bytes:
            return False
        return bool(self.used_bytes(placement).max() <= self.memory.shard_capacity_bytes)

    def host_bytes(self, placement: Placement) -> IndexArray:
        """Return [nodes] what a placement has in host memory."""
        topology = self.request.topology
        used = np.zeros(topology.num_nodes, dtype=np.int64)
        np.add.at(used, placement.devices // topology.devices_per_node, self.kinds.host_bytes[placement.kinds])
        return used

    def kinds_of(self, units: Sequence[int], sizes: Sequence[ShardSize]) -> IndexArray:
        """Return the kinds of shards of these sizes, [n]; new ones are represented in batches."""
        keys: list[_Key] = list(zip(units, *zip(*sizes, strict=True), strict=True))
        known = self._kind_of
        kinds = list(map(known.get, keys))
        if None in kinds:
            new = list(dict.fromkeys(key for key, kind in zip(keys, kinds, strict=True) if kind is None))
            for first in range(0, len(new), KINDS_AT_ONCE):
                self._add_kinds(new[first : first + KINDS_AT_ONCE])
            kinds = list(map(known.get, keys))
        return np.array(kinds, dtype=np.int64)

    def kinds_by_columns(self, units: IndexArray, num_columns: IndexArray) -> IndexArray:
        """Return the kinds [n] of shards of units [n] in device memory, with all rows and this many columns [n].

        The first one of a unit brings those of all widths, unless these are too many at once.
        """
        known, place = self._kind_of_width, self._widths_before[units] + num_columns // DIM_MULTIPLE
        (new,) = (known[place] == _UNKNOWN).nonzero()
        if len(new):
            found, columns = units[new], num_columns[new]
            of_units = np.flatnonzero(np.bincount(found))
            num_widths = self._num_columns[of_units] // DIM_MULTIPLE
            if num_widths.sum() <= KINDS_AT_ONCE:
                found = of_units.repeat(num_widths)
                columns = DIM_MULTIPLE * np.concatenate([np.arange(1, count + 1) for count in num_widths.tolist()])
            sizes = list(map(ShardSize, self.num_rows[found].tolist(), columns.tolist()))
            known[self._widths_before[found] + columns // DIM_MULTIPLE] = self.kinds_of(found.tolist(), sizes)
        kinds: IndexArray = known[place]
        return kinds

    def _add_kinds(self, keys: Sequence[_Key]) -> None:
        first = len(self._kind_of)
        self._kind_of.update(zip(keys, range(first, first + len(keys)), strict=True))
        *whole, load_factor = zip(*keys, strict=True)
        units, num_rows, num_columns, family, kernel = (np.array(values, dtype=np.int64) for values in whole)
        load_factors = np.array(load_factor)
        shards, kind, tables = self._cut(units, num_rows, num_columns, family)
        each = self._represented(shards, tables, kernel[kind], load_factors[kind])
        representation = np.zeros((len(keys), each.shape[1]))
        np.add.at(representation, kind, each)
        memory_bytes = np.zeros(len(keys), dtype=np.int64)
        rows, columns = shards.num_rows.astype(np.int64), shards.num_columns.astype(np.int64)
        spared, on_host = self.memory.on_host(tables, rows, columns, kernel[kind], load_factors[kind])
        np.add.at(memory_bytes, kind, self.memory.shard_bytes(tables, rows, columns, shards.family) - spared)
        host_bytes = np.zeros(len(keys), dtype=np.int64)
        np.add.at(host_bytes, kind, on_host)
        traffic = np.zeros((len(keys), len(Collective)))
        np.add.at(traffic, kind, self._cuts.traffic(tables, shards))
        self.kinds.append(
            unit=units,
            num_rows=num_rows,
            num_columns=num_columns,
            family=family,
            kernel=kernel,
            load_factor=load_factors,
            memory_bytes=memory_bytes,
            host_bytes=host_bytes,
            traffic=traffic,
            representation=representation,
        )

    def _represented(
        self, shards: ShardArrays, tables: IndexArray, kernels: IndexArray, load_factors: FloatArray
    ) -> FloatArray:
        """Return [n, r] what shards of tables [n] add to their devices' sums, time for host memory in the last two."""
        networks = self.costs.represent(shards)
        if self.host_tables is None:
            return networks
        added = self.host_tables.added_ms(tables, shards, kernels, load_factors)
        return np.concatenate((networks, on_grid(added)), axis=1)

    def sizes_of(self, kinds: IndexArray) -> list[ShardSize]:
        """Return the sizes of n kinds."""
        known = self.kinds
        columns = (known.num_rows, known.num_columns, known.family, known.kernel, known.load_factor)
        return list(map(ShardSize, *(values[kinds].tolist() for values in columns)))

    def row_block(self, unit: int, family: int, num_columns: int) -> ShardSize:
        """Return the size of the blocks that the rows of a unit are cut into; whole where the family cuts none."""
        return ShardSize(-(-self.units[unit].num_rows // self._num_row_parts[family]), num_columns, family)

    def shards_of(self, kinds: IndexArray) -> tuple[ShardArrays, IndexArray]:
        """Return the table shards that n kinds consist of, and for each the position of its kind in ``kinds``."""
        shards, position, _ = self._cut_kinds(kinds)
        return shards, position

    def _cut_kinds(self, kinds: IndexArray) -> tuple[ShardArrays, IndexArray, IndexArray]:
        known = self.kinds
        return self._cut(known.unit[kinds], known.num_rows[kinds], known.num_columns[kinds], known.family[kinds])

    def _cut(
        self, units: IndexArray, num_rows: IndexArray, num_columns: IndexArray, family: IndexArray
    ) -> tuple[ShardArrays, IndexArray, IndexArray]:
        """Return the table shards of units [n] cut to sizes [n], the position of each one's unit, and its table."""
        counts = self._num_members[units]
        row = np.repeat(np.arange(len(units)), counts)
        within = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        tables = self._members[self._first_member[units[row]] + within]
        # A group is never cut, so that its members keep their own rows and columns.
        column_share = num_columns / self._num_columns[units]
        shards = self._cuts.shards(
            tables, family=family[row], num_rows=num_rows[row].astype(np.float64), column_share=column_share[row]
        )
        return shards, row, tables

    def compute_ms(self, sums: FloatArray, *, per_work: int = 1) -> FloatArray:
        """Return [..., 2] forward and backward times, counted as evaluations, ``per_work`` of them as one of work."""
        count = sums.size // sums.shape[-1]
        self.evaluations += count
        self._spared += count - -(-count // per_work)
        times = self.costs.compute_ms(sums[..., : self._num_networks], pipeline=self.request.pipeline)
        return times if self.host_tables is None else times + self.host_ms(sums)

    def host_ms(self, sums: FloatArray) -> FloatArray:
        """Return [..., 2] what tables in host memory add to the times of devices with these [..., r] sums."""
        return np.zeros((*sums.shape[:-1], 2)) if self.host_tables is None else sums[..., self._num_networks :]

    def lanes(self, kinds: IndexArray) -> FloatArray:
        """Return [n] lanes that a shard of each kind gives all others on its device (see CostModel)."""
        return self.costs.lanes(self.kinds.representation[kinds][:, : self._num_networks])

    def least_demands(self, kinds: IndexArray, *, lanes: float = 0.0) -> FloatArray:
        """Return [n, q] the least that shards of n kinds bring a device (see CostModel), host memory as it is."""
        networks, added = np.split(self.kinds.representation[kinds], [self._num_networks], axis=1)
        return np.concatenate((self.costs.least_demands(networks, lanes=lanes), added), axis=1)

    def least_ms(self, sums: FloatArray) -> FloatArray:
        """Return [..., 2] times that no device with these sums of least demands goes below, counted as evaluations.

        Without what host memory adds: with it they might not be convex up to a rescaling.
        """
        self.evaluations += sums.size // sums.shape[-1]
        num_least = sums.shape[-1] - self._num_added
        return self.costs.least_ms(sums[..., :num_least], pipeline=self.request.pipeline)

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> tuple[FloatArray, FloatArray] | None:
        """Return the cost model's tangent at these [q] sums (see CostModel); without what host memory adds."""
        found = self.costs.tangent_ms(sums[: len(sums) - self._num_added], num_calls=num_calls)
        if found is None or not self._num_added:
            return found
        times, slopes = found
        return times, np.pad(slopes, ((0, 0), (0, self._num_added)))

    def pass_levels(self, sums: FloatArray, *, per_work: int = 1) -> FloatArray:
        """Return [..., 2] the compute levels of devices with these [..., r] sums, counted as compute_ms counts."""
        return self.step_cost.passes(self.compute_ms(sums, per_work=per_work))

    def device_sums(self, kinds: IndexArray, devices: IndexArray) -> FloatArray:
        """Return [devices, r] sums of a placement of n shards."""
        return self.slot_sums(kinds, devices, self.num_devices)

    def total_ms(self, placements: Sequence[Placement]) -> FloatArray:
        """Return [p] the cost of each placement."""
        totals_ms = self.step_cost.total_ms(self.device_levels(placements).max(axis=1))
        if self.watched is not None:
            self.watched(self, placements, totals_ms)
        return totals_ms

    def cheapest(self, placements: Sequence[Placement]) -> Placement:
        """Return the placement that costs least, of one at least; the first of equals."""
        return placements[int(self.total_ms(placements).argmin())]

    def device_levels(self, placements: Sequence[Placement]) -> FloatArray:
        """Return [p, devices, levels] of the devices of each placement."""
        shape = (len(placements), self.num_devices)
        if not placements:
            return np.empty((*shape, NUM_LEVELS))
        kinds = np.concatenate([each.kinds for each in placements])
        slots = np.concatenate([each.devices + row * self.num_devices for row, each in enumerate(placements)])
        num_slots = len(placements) * self.num_devices
        levels = np.empty((num_slots, NUM_LEVELS))
        levels[:, TIMES] = self.pass_levels(self.slot_sums(kinds, slots, num_slots))
        levels[:, TRAFFIC] = self.traffic(kinds, slots, num_slots)
        return levels.reshape(*shape, NUM_LEVELS)

    def traffic(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> FloatArray:
        """Return [slots, collectives] the traffic of n shards in slots; see `_over_slots`."""
        return self._over_slots(kinds, slots, num_slots, self._traffic)

    def _traffic(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> FloatArray:
        weights = self.kinds.traffic.take(kinds, axis=0).T
        traffic: FloatArray = np.zeros((num_slots, len(weights)))
        for collective in np.flatnonzero(weights.any(axis=1)).tolist():
            traffic[:, collective] = np.bincount(slots, weights=weights[collective], minlength=num_slots)
        return traffic

    def pooled_columns(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> FloatArray:
        """Return [slots] columns of all vectors of n shards by columns in slots, repeats of grouped tables included."""
        if not self.request.grouped:
            return self.traffic(kinds, slots, num_slots)[:, Collective.POOLED_EMBEDDINGS]
        shards, row, tables = self._cut_kinds(kinds)
        vectors = np.array([table.num_vectors for table in self.request.tables.tables])[tables]
        weights = np.where(shards.family == COLUMNS, vectors * shards.num_columns, 0.0)
        columns: FloatArray = np.zeros(num_slots)
        columns += np.bincount(slots[row], weights=weights, minlength=num_slots)
        return columns

    def slot_sums(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> FloatArray:
        """Return [slots, r] sums of the representations of n shards in slots; see `_over_slots`."""
        return self._over_slots(kinds, slots, num_slots, self._representation)

    def _over_slots(
        self,
        kinds: IndexArray,
        slots: IndexArray,
        num_slots: int,
        summed: Callable[[IndexArray, IndexArray, int], FloatArray],
    ) -> FloatArray:
        """Return [slots, v] sums of n shards in slots, each a device of a placement.

        What is in equal shards on all devices of a placement is summed once: of many tables on many devices that is
        nearly everything.
        """
        family = self.kinds.family.take(kinds)
        is_shared = (family == ROWS) | (family == REPLICATED)
        num_shared = np.count_nonzero(is_shared)
        if not num_shared:
            return summed(kinds, slots, num_slots)
        placements = slots // self.num_devices
        once = is_shared & (slots == placements * self.num_devices)  # a remainder takes four times as long
        if self.num_devices * np.count_nonzero(once) != num_shared:
            return summed(kinds, slots, num_slots)
        shared = summed(kinds[once], placements[once], num_slots // self.num_devices)
        own = summed(kinds[~is_shared], slots[~is_shared], num_slots)
        own.reshape(len(shared), self.num_devices, -1)[:] += shared[:, None]
        return own

    def _representation(self, kinds: IndexArray, slots: IndexArray, num_slots: int) -> FloatArray:
        sums = np.zeros((num_slots, self.kinds.representation.shape[1]))
        if not len(kinds):
            return sums
        order = np.argsort(slots, kind="stable")
        rows = self.kinds.representation.take(kinds[order], axis=0)
        counts = np.bincount(slots, minlength=num_slots)
        occupied = np.flatnonzero(counts)
        sums[occupied] = np.add.reduceat(rows, (np.cumsum(counts) - counts)[occupied], axis=0)
        return sums
