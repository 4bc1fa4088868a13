"""The search with tables in host memory: which of them, in which way, and all others as if they were alone.

A price per byte of device memory decides which tables leave it: each takes the form, on the device or on the host, that
costs least with its bytes at that price. Higher prices free more memory, at more time on the host link. A limit on the
time of a shard spreads tables over devices. For each price, limit, and size of caches the tables on the host are placed
first; the search of the others runs in what is left of the fullest device. The cheapest plans by additive loads are
tried first.

Additive loads do not see which device waits, so that the best of these plans is not the best of its neighbors: a table
back on the devices, one more on the host, both at once, or one in another form. Neighbors are judged by the exact
price, until none is cheaper. Where a table does not come back because others are in its way, these are searched again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.host_tables import CACHED
from neuroshard_costs.reuse.cached_rows import KEPT_BATCHES
from neuroshard_costs.shards import COLUMNS, FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES

from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.by_columns import Found
from neuroshard_planner.search.estimator import MEMORY, Traits, reference_prices, tangent
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.options import Form, Forms, PlacedOption, without_units

Solve = Callable[[Problem], Found | None]
"""Searches plans of a problem in device memory alone."""


class Variant(NamedTuple):
    """A form of a unit on one kind of memory, with what its shards add over all devices."""

    form: Form
    is_on_host: bool
    cost_ms: float
    alone_ms: float
    """Time of its longest shard on a device of its own."""
    memory_bytes: int
    host_bytes: int


class HostAssignment(NamedTuple):
    """The units in host memory with their forms, and what all units cost by additive loads.

    That is the mean device's cost, or the longest shard's time where that is more: the others wait for it.
    """

    forms: dict[int, Form]
    cost_ms: float


def hosted(problem: Problem, in_memory: Found | None, *, solve: Solve, work_budget: int) -> Found | None:
    """Return the best placement with tables in host memory, or the given one where that is cheaper. None: none fits.

    Args:
        problem: some unit of which may be in host memory.
        in_memory: the search's result where no unit is. None: nothing fits, or some unit must be in host memory.
        solve: searches the units that stay in device memory.
        work_budget: device evaluations and their like for steps of the whole plan.
    """
    search = _HostSearch(problem, solve)
    most = problem.tuning.most_tried if in_memory is None else problem.tuning.most_tried // 2
    share = int(problem.tuning.opening_share * work_budget / most)
    best: Found | None = None
    tried = 0
    for attempt, assignment in enumerate(search.assignments()):
        if tried == most or attempt == 3 * problem.tuning.most_tried:
            break
        found = search.around(assignment)
        if found is not None:
            tried += 1
            best = search.cheaper(best, search.descended(found, share))
    if best is not None:
        best = search.settled(best, share)
        for found in search.returns(best):
            best = search.cheaper(best, search.settled(search.descended(found, share), share))
    return search.cheaper(in_memory, best)


class _HostSearch:
    """Assignments of one problem's units to device and host memory, and placements of them."""

    def __init__(self, problem: Problem, solve: Solve) -> None:
        self._problem = problem
        self._solve = solve
        topology = problem.request.topology
        self._nodes: IndexArray = np.arange(problem.num_devices) // topology.devices_per_node
        self._forms = Forms(problem)
        self._traits = Traits(problem, tangent(problem, self._forms.mean_sums()))
        self._prices = reference_prices(problem, self._forms, self._traits(), None)

    def assignments(self) -> Iterator[HostAssignment]:
        """Yield assignments that fit in the mean, the cheapest first."""
        found: dict[tuple[tuple[int, bytes], ...], HostAssignment] = {}
        for variants in self._variants():
            for assignment in self._priced(variants):
                key = tuple((unit, form.kinds.tobytes()) for unit, form in assignment.forms.items())
                found.setdefault(key, assignment)
        yield from sorted(found.values(), key=lambda each: each.cost_ms)

    def around(self, assignment: HostAssignment) -> Found | None:
        """Return a placement with these units in host memory and all others in device memory. None: none was found."""
        nodes = self._problem.request.topology.num_nodes
        levels = np.zeros((self._problem.num_devices, NUM_LEVELS + 1))
        fixed = self._placed(assignment.forms, levels, np.full(nodes, self._problem.memory.host_capacity_bytes))
        return None if fixed is None else self._completed(fixed)

    def cheaper(self, first: Found | None, second: Found | None) -> Found | None:
        """Return the cheaper of both; the first where both cost the same."""
        if first is None or second is None:
            return second if first is None else first
        first_ms, second_ms = self._problem.total_ms([first.placement, second.placement]).tolist()
        return second if second_ms < first_ms else first

    def descended(self, found: Found, work: int) -> Found:
        """Return a plan after steps of the whole that cost this much work."""
        local = LocalSearch(self._problem, traits=self._traits, work_budget=self._problem.work + work)
        placement = local.improve(found.placement)
        return replace(found, placement=placement, improvements=found.improvements + local.improvements)

    def settled(self, found: Found, work: int) -> Found:
        """Return a plan of which no neighbor is cheaper, or that was improved in the last round that is permitted."""
        problem = self._problem
        for _ in range(problem.tuning.most_rounds):
            neighbors = [each for each in self._neighbors(found.placement) if problem.fits(each)]
            costs = problem.total_ms([found.placement, *neighbors])
            least = int(costs.argmin())
            if least == 0:
                break
            found = self.descended(replace(found, placement=neighbors[least - 1]), work)
        return found

    def returns(self, found: Found) -> Iterator[Found]:
        """Yield plans with one unit fewer in host memory, and a new search of all that are not there."""
        placement, kinds = found.placement, self._problem.kinds
        on_host = np.unique(kinds.unit[placement.kinds][kinds.host_bytes[placement.kinds] > 0])
        bound = [unit for unit in on_host.tolist() if self._problem.host_choices[unit].is_bound]
        free = sorted(set(on_host.tolist()) - set(bound), key=lambda unit: (self._host_bytes(unit, placement), unit))
        for unit in free[: self._problem.tuning.most_tried // 2]:
            stays = np.isin(kinds.unit[placement.kinds], [each for each in on_host if each != unit])
            again = self._completed(placement.at(stays))
            if again is not None:
                yield again

    def _host_bytes(self, unit: int, placement: Placement) -> int:
        kinds = self._problem.kinds
        return int(kinds.host_bytes[placement.kinds][kinds.unit[placement.kinds] == unit].sum())

    def _neighbors(self, placement: Placement) -> Iterator[Placement]:
        """Yield placements with one unit moved between memories or cut otherwise, or two units that change places."""
        problem, kinds = self._problem, self._problem.kinds
        units = kinds.unit[placement.kinds]
        on_host = np.unique(units[kinds.host_bytes[placement.kinds] > 0]).tolist()
        sizes = self._cache_sizes(placement)
        leaving = [
            unit for unit in range(len(problem.units)) if problem.host_choices[unit].kernels and unit not in on_host
        ]
        device_bytes = np.bincount(units, weights=kinds.memory_bytes[placement.kinds], minlength=len(problem.units))
        leaving = sorted(leaving, key=lambda unit: (-device_bytes[unit], unit))[: problem.tuning.most_leaving]
        host_forms = {unit: self._host_forms(unit, sizes) for unit in (*on_host, *leaving)}
        device_forms = {unit: [] if problem.host_choices[unit].is_bound else self._forms.of(unit) for unit in on_host}
        for unit in (*on_host, *leaving):
            for form in (*host_forms[unit], *device_forms.get(unit, ())):
                yield from self._with_forms(placement, {unit: form})
        yield from self._resized(placement)
        yield from self._exchanged(placement, on_host, [*on_host, *leaving])
        for back in on_host:
            for form in device_forms[back]:
                for unit in leaving:
                    for other in self._few_of_each_kernel(host_forms[unit]):
                        yield from self._with_forms(placement, {back: form, unit: other})

    def _host_forms(self, unit: int, cache_sizes: Sequence[int]) -> list[Form]:
        """Return the distinct forms of a unit in host memory, the cheapest by additive loads first."""
        variants = [each for size in cache_sizes for each in self._on_host(unit, size)]
        distinct = {each.form.kinds.tobytes(): each for each in variants}  # without a cache its size changes nothing
        return [each.form for each in sorted(distinct.values(), key=lambda each: each.cost_ms)]

    def _few_of_each_kernel(self, forms: Sequence[Form]) -> list[Form]:
        """Return the first forms of each kernel: additive loads may order all of one before those of another."""
        kernels = [int(self._problem.kinds.kernel[form.kinds[0]]) for form in forms]
        return [
            form
            for at, form in enumerate(forms)
            if kernels[:at].count(kernels[at]) < self._problem.tuning.most_leaving // 4
        ]

    def _resized(self, placement: Placement) -> Iterator[Placement]:
        """Yield the placement with caches of each other size, of the tables that have one or of all in host memory."""
        problem, kinds = self._problem, self._problem.kinds
        assert problem.host_tables is not None
        is_cached = kinds.kernel[placement.kinds] == CACHED
        is_on_host = kinds.host_bytes[placement.kinds] > 0
        may_cache = np.array([CACHED in choice.kernels for choice in problem.host_choices])[kinds.unit[placement.kinds]]
        for chosen in {each.tobytes(): each for each in (is_cached, is_on_host & may_cache)}.values():
            units = kinds.unit[placement.kinds[chosen]].tolist()
            tables = [problem.units[unit].tables[0] for unit in units]
            for size in range(len(KEPT_BATCHES) if units else 0):
                factors = problem.host_tables.load_factors(size)[tables].tolist()
                own = problem.sizes_of(placement.kinds[chosen])
                resized = [
                    each._replace(kernel=CACHED, cache_load_factor=factor)
                    for each, factor in zip(own, factors, strict=True)
                ]
                cached = placement.kinds.copy()
                cached[chosen] = problem.kinds_of(units, resized)
                yield replace(placement, kinds=cached)

    def _exchanged(self, placement: Placement, on_host: Sequence[int], others: Sequence[int]) -> Iterator[Placement]:
        """Yield the placement with a shard in host memory on each other device, or in the place of another unit's."""
        problem = self._problem
        units = problem.kinds.unit[placement.kinds]
        movable = problem.kinds.family[placement.kinds] == COLUMNS
        ours, theirs = (np.flatnonzero(np.isin(units, each) & movable).tolist() for each in (on_host, others))
        for shard in ours:
            taken = set(placement.devices[units == units[shard]].tolist())
            for device in sorted(set(range(problem.num_devices)) - taken)[: problem.tuning.most_leaving]:
                if not self._may(int(units[shard]), device):
                    continue
                devices = placement.devices.copy()
                devices[shard] = device
                yield replace(placement, devices=devices)
            for other in theirs:
                first, second = int(placement.devices[shard]), int(placement.devices[other])
                others_devices = placement.devices[units == units[other]].tolist()
                may = self._may(int(units[shard]), second) and self._may(int(units[other]), first)
                if may and second not in taken and first not in others_devices:
                    devices = placement.devices.copy()
                    devices[[shard, other]] = second, first
                    yield replace(placement, devices=devices)

    def _may(self, unit: int, device: int) -> bool:
        """Return whether constraints allow a unit on a device."""
        allowed = self._problem.allowed
        return allowed is None or bool(allowed[unit][device])

    def _cache_sizes(self, placement: Placement) -> Sequence[int]:
        """Return the position in KEPT_BATCHES of a placement's caches, which all have one size; without any: all."""
        assert self._problem.host_tables is not None
        kinds = self._problem.kinds
        host_tables = self._problem.host_tables
        cached = placement.kinds[kinds.kernel[placement.kinds] == CACHED]
        tables = np.array([self._problem.units[unit].tables[0] for unit in kinds.unit[cached].tolist()], dtype=np.int64)
        chosen = np.flatnonzero(~host_tables.has_own_factor[tables])
        if len(chosen) == 0:
            may_cache = any(CACHED in choice.kernels for choice in self._problem.host_choices)
            return range(len(KEPT_BATCHES) if may_cache else 1)
        first, table = cached[chosen[0]], tables[chosen[0]]
        known = np.array([host_tables.load_factors(size)[table] for size in range(len(KEPT_BATCHES))])
        return (int(np.abs(known - kinds.load_factor[first]).argmin()),)

    def _with_forms(self, placement: Placement, forms: dict[int, Form]) -> Iterator[Placement]:
        """Yield the placement with some units in other forms, on the least loaded devices that have room."""
        problem = self._problem
        rest = without_units(problem, placement, list(forms))
        levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
        np.add.at(levels, rest.devices, self._traits()[rest.kinds])
        host_room = problem.memory.host_capacity_bytes - problem.host_bytes(rest)
        placed = self._placed(forms, levels, host_room)
        if placed is not None:
            yield Placement.joined(rest, placed)

    def _priced(self, variants: Sequence[Sequence[Variant]]) -> Iterator[HostAssignment]:
        """Yield the units' choices at each price of memory and each limit on a shard, where they fit in the mean."""
        problem, ledger = self._problem, self._problem.memory
        num_devices = problem.num_devices
        most = max(map(len, variants))
        cost, alone = (
            np.array([[getattr(each, field) for each in own] + [np.inf] * (most - len(own)) for own in variants])
            for field in ("cost_ms", "alone_ms")
        )
        size = np.array([[float(each.memory_bytes) for each in own] + [0.0] * (most - len(own)) for own in variants])
        rows = np.arange(len(variants))
        room_bytes = float(num_devices * ledger.shard_capacity_bytes)
        host_room = problem.request.topology.num_nodes * ledger.host_capacity_bytes
        even_ms = float(cost.min(axis=1).sum()) / num_devices
        for limit_ms in (even_ms * np.array(problem.tuning.most_alone)).tolist():
            is_short = alone <= np.maximum(limit_ms, alone.min(axis=1, keepdims=True))
            allowed = np.where(is_short, cost, np.inf)
            for price in (np.array(problem.tuning.memory_price_steps) * even_ms * num_devices / room_bytes).tolist():
                picks = (allowed + price * size).argmin(axis=1)
                chosen = [own[pick] for own, pick in zip(variants, picks.tolist(), strict=True)]
                on_host = {unit: each.form for unit, each in enumerate(chosen) if each.is_on_host}
                host_bytes = sum(each.host_bytes for each in chosen if each.is_on_host)
                if on_host and size[rows, picks].sum() <= room_bytes and host_bytes <= host_room:
                    yield HostAssignment(on_host, max(cost[rows, picks].sum() / num_devices, alone[rows, picks].max()))

    def _variants(self) -> Iterator[list[list[Variant]]]:
        """Yield the variants of all units for each size of caches; one where no table may be cached."""
        problem = self._problem
        on_device = [
            []
            if problem.host_choices[unit].is_bound
            else [self._variant(form, is_on_host=False) for form in self._forms.of(unit) if self._may_fit(form)]
            for unit in range(len(problem.units))
        ]
        may_cache = any(CACHED in choice.kernels for choice in problem.host_choices)
        for size in range(len(KEPT_BATCHES) if may_cache else 1):
            wanted = [
                (unit, size_on_host)
                for unit in range(len(problem.units))
                for _, sizes in self._host_sizes(unit, size)
                for size_on_host in sizes
            ]
            problem.kinds_of([unit for unit, _ in wanted], [each for _, each in wanted])  # all in one batch
            on_host = [self._on_host(unit, size) for unit in range(len(problem.units))]
            variants = [own + others for own, others in zip(on_device, on_host, strict=True)]
            if all(variants):
                yield variants

    def _on_host(self, unit: int, cache_size: int) -> list[Variant]:
        """Return the variants of a unit in host memory, its caches of this position in KEPT_BATCHES."""
        problem = self._problem
        moved = (
            form.with_pieces(problem.kinds_of([unit] * len(sizes), sizes), memory_bytes=problem.kinds.memory_bytes)
            for form, sizes in self._host_sizes(unit, cache_size)
        )
        return [self._variant(form, is_on_host=True) for form in moved if self._may_fit(form)]

    def _host_sizes(self, unit: int, cache_size: int) -> Iterator[tuple[Form, list[ShardSize]]]:
        """Yield the forms of a unit with the sizes of their pieces in host memory, for each of its kernels."""
        problem = self._problem
        assert problem.host_tables is not None
        for kernel in problem.host_choices[unit].kernels:
            factor = 0.0
            if kernel == CACHED:
                factor = float(problem.host_tables.load_factors(cache_size)[problem.units[unit].tables[0]])
            for form in self._forms.of(unit):
                if form.sharding_type is not ShardingType.DATA_PARALLEL:
                    sizes = problem.sizes_of(form.pieces)
                    yield form, [size._replace(kernel=kernel, cache_load_factor=factor) for size in sizes]

    def _may_fit(self, form: Form) -> bool:
        """Return whether an empty device has room for each shard: the mean room of all devices hides that none has."""
        largest = int(self._problem.kinds.memory_bytes[form.kinds].max())
        return largest <= self._problem.memory.shard_capacity_bytes

    def _variant(self, form: Form, *, is_on_host: bool) -> Variant:
        kinds = form.kinds
        traits = self._traits()[kinds]
        return Variant(
            form=form,
            is_on_host=is_on_host,
            cost_ms=float(weighted_sum(traits, self._prices).sum()),
            alone_ms=float(traits[:, TIMES].sum(axis=1).max()),
            memory_bytes=int(self._problem.kinds.memory_bytes[kinds].sum()),
            host_bytes=int(self._problem.kinds.host_bytes[kinds].sum()),
        )

    def _placed(self, forms: dict[int, Form], levels: FloatArray, host_room: IndexArray) -> Placement | None:
        """Return units on the least loaded devices that have room, those with most in host memory first. None: no room.

        Args:
            forms: of each unit.
            levels: [devices, levels + 1] what the devices have; the units are added to it.
            host_room: [nodes] bytes that are left; the units are taken from it.
        """
        problem = self._problem
        chosen: list[PlacedOption] = []
        host_bytes = {unit: int(problem.kinds.host_bytes[form.kinds].sum()) for unit, form in forms.items()}
        for unit in sorted(forms, key=lambda unit: (-host_bytes[unit], unit)):
            form = forms[unit]
            option = next((each for each in self._options(unit, form, levels, host_room)), None)
            if option is None:
                return None
            np.add.at(levels, option.devices, self._traits()[option.kinds])
            np.subtract.at(host_room, self._nodes[option.devices], problem.kinds.host_bytes[option.kinds])
            chosen.append(option)
        return Placement.joined(*(each.placement for each in chosen))

    def _options(self, unit: int, form: Form, levels: FloatArray, host_room: IndexArray) -> Iterator[PlacedOption]:
        """Yield placements of a form on devices and nodes that have room for it."""
        problem = self._problem
        kinds = form.kinds
        room = problem.memory.shard_capacity_bytes - levels[:, MEMORY]
        room[host_room[self._nodes] < problem.kinds.host_bytes[kinds].max()] = -1
        load = levels[:, TIMES].sum(axis=1)
        for option in self._forms.placed(unit, form, load, room):
            used = np.bincount(
                self._nodes[option.devices], weights=problem.kinds.host_bytes[option.kinds], minlength=len(host_room)
            )
            if (used <= host_room).all():
                yield option

    def _completed(self, fixed: Placement) -> Found | None:
        """Return the fixed shards and a searched placement of all other units. None: nothing was found that fits."""
        problem = self._problem
        left = np.setdiff1d(np.arange(len(problem.units)), problem.kinds.unit[fixed.kinds])
        if not len(left):
            return Found(placement=fixed) if problem.fits(fixed) else None
        room_bytes = problem.memory.shard_capacity_bytes - int(problem.used_bytes(fixed).max())
        if room_bytes <= 0:
            return None
        request = _with_room(_in_device_memory(problem, left.tolist()), room_bytes)
        part = Problem(request, problem.costs, tuning=problem.tuning)
        before = part.work
        found = self._solve(part)
        problem.evaluations += part.work - before
        if found is None:
            return None
        placed = found.placement
        kinds = problem.kinds_of(left[part.kinds.unit[placed.kinds]].tolist(), part.sizes_of(placed.kinds))
        whole = Placement.joined(fixed, Placement(kinds=kinds, devices=placed.devices))
        return replace(found, placement=whole) if problem.fits(whole) else None


def _in_device_memory(problem: Problem, units: Sequence[int]) -> PlanRequest:
    """Return the request for some units alone, without host memory."""
    request, constraints = problem.request, problem.request.constraints
    owner = {table: unit for unit in units for table in problem.units[unit].tables}
    tables = {table: request.tables.tables[table] for table in sorted(owner)}
    own: dict[str, TableConstraints] = {}
    for index, table in tables.items():
        kernels = constraints.compute_kernels_of(table.name)
        left = None if kernels is None else tuple(kernel for kernel in kernels if not kernel.is_on_host)
        restricted = constraints.tables.get(table.name, TableConstraints()).model_copy(update={"compute_kernels": left})
        own[table.name] = _by_columns_still(restricted, problem, owner[index])
    colocate = tuple(group for group in constraints.colocate if own.keys() >= set(group))
    limits = {"tables": own, "colocate": colocate, "compute_kernels": None}
    return request.model_copy(
        update={
            "tables": request.tables.model_copy(update={"tables": tuple(tables.values())}),
            "topology": request.topology.model_copy(update={"host_memory": None}),
            "constraints": constraints.model_copy(update=limits),
        }
    )


def _by_columns_still(constraints: TableConstraints, problem: Problem, unit: int) -> TableConstraints:
    """Return the constraints of a table that stays by columns, also without those of its collection that keep it so."""
    types = problem.sharding_types[unit]
    if not types <= set(BY_COLUMNS):
        return constraints
    return constraints.model_copy(update={"sharding_types": tuple(kind for kind in BY_COLUMNS if kind in types)})


def _with_room(part: PlanRequest, room_bytes: int) -> PlanRequest:
    """Return the request on devices with so much room for its shards, in bytes.

    A reserve takes what other purposes need less of than in the whole request.
    """
    spare_bytes = memory_ledger(part).shard_capacity_bytes - room_bytes
    reserve = part.memory.model_copy(update={"reserve_bytes": part.memory.reserve_bytes + spare_bytes})
    return part.model_copy(update={"memory": reserve})
