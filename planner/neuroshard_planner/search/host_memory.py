"""The search with tables in host memory: which of them, in which way, and all others as if they were alone.

A price per byte of device memory decides which tables leave it: each takes the form, on the device or on the host, that
costs least with its bytes at that price. Higher prices free more memory, at more time on the host link. A limit on the
time of a shard spreads tables over devices. For each price, limit, and size of caches the tables on the host are placed
first; the search of the others runs in what is left of the fullest device. The cheapest choices by additive loads are
tried. Where few of them fit, the one with least in device memory is too: from it tables return one by one.

Additive loads do not see which device waits, so that the best of these plans is not the best of its neighbors: a table
back on the devices, one more on the host, both at once, or one in another form, as with a larger cache. Neighbors are
judged by the exact price, until none is cheaper. Where a table does not come back because others are in its way, these
are searched again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.host_tables import CACHED
from neuroshard_costs.reuse.cached_rows import KEPT_BATCHES
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES

from neuroshard_planner.memory.infeasible import has_room
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
    cost_ms: float
    alone_ms: float
    """Time of its longest shard on a device of its own."""
    memory_bytes: int
    load_factor: float
    """Of its caches; 0: it has none."""
    host_bytes: int
    """0: it is in device memory."""


class HostAssignment(NamedTuple):
    """The units in host memory with their forms, and what all units cost by additive loads.

    That is the mean device's cost, or the longest shard's time where that is more: the others wait for it.
    """

    forms: dict[int, Form]
    cost_ms: float
    memory_bytes: int


def hosted(problem: Problem, in_memory: Found | None, *, solve: Solve, work_budget: int) -> Found | None:
    """Return the best placement with tables in host memory, or the given one where that is cheaper. None: none fits.

    Args:
        problem: some unit of which may be in host memory.
        in_memory: the search's result where no unit is. None: nothing fits, or some unit must be in host memory.
        solve: searches the units that stay in device memory.
        work_budget: device evaluations and their like for steps of the whole plan.
    """
    search = _HostSearch(problem, solve, work=int(problem.tuning.phase_share * work_budget / problem.tuning.num_best))
    assignments = sorted(search.assignments(), key=lambda each: each.cost_ms)
    cheap, num_failed = search.placed(assignments, count=problem.tuning.num_best)
    starts = [search.cheapest(cheap)] if cheap else []
    if in_memory is None and num_failed > len(cheap):
        starts += search.placed(sorted(assignments, key=lambda each: each.memory_bytes), count=1)[0]
    found = [search.settled(each) for each in starts]
    if found:
        found += [search.settled(each) for each in search.returns(search.cheapest(found))]
    if in_memory is not None:
        found.insert(0, in_memory)
    return search.cheapest(found) if found else None


class _HostSearch:
    """Assignments of one problem's units to device and host memory, and placements of them."""

    def __init__(self, problem: Problem, solve: Solve, *, work: int) -> None:
        """``work`` is that of steps of a whole plan, each time they are made."""
        self._problem = problem
        self._solve = solve
        self._work = work
        topology = problem.request.topology
        self._nodes: IndexArray = np.arange(problem.num_devices) // topology.devices_per_node
        self._forms = Forms(problem)
        self._traits = Traits(problem, tangent(problem, self._forms.mean_sums()))
        self._prices = reference_prices(problem, self._forms, self._traits(), None)
        sizes = [(unit, size) for unit in range(len(problem.units)) for _, own in self._on_host(unit) for size in own]
        problem.kinds_of([unit for unit, _ in sizes], [size for _, size in sizes])  # all in one batch
        self._variants = [self._variants_of(unit) for unit in range(len(problem.units))]
        """[units] cheapest by additive loads first."""

    def assignments(self) -> list[HostAssignment]:
        """Return assignments that fit in the mean, each once."""
        found: dict[tuple[tuple[int, bytes], ...], HostAssignment] = {}
        for assignment in self._priced() if all(self._variants) else ():
            key = tuple((unit, form.kinds.tobytes()) for unit, form in assignment.forms.items())
            found.setdefault(key, assignment)
        return list(found.values())

    def placed(self, assignments: Iterable[HostAssignment], *, count: int) -> tuple[list[Found], int]:
        """Return plans of the first of these assignments that fit, after steps, and how many did not fit before."""
        found, num_failed = list[Found](), 0
        nodes = self._problem.request.topology.num_nodes
        for assignment in assignments:
            levels = np.zeros((self._problem.num_devices, NUM_LEVELS + 1))
            host_room = np.full(nodes, self._problem.memory.host_capacity_bytes)
            fixed = self._placed(assignment.forms, levels, host_room)
            whole = None if fixed is None else self._completed(fixed)
            if whole is None:
                num_failed += 1
            else:
                found.append(self._descended(whole))
            if len(found) == count or num_failed == self._problem.tuning.num_judged:
                break
        return found, num_failed

    def cheapest(self, found: Sequence[Found]) -> Found:
        """Return the cheapest; the first of those that cost the same."""
        return found[int(self._problem.total_ms([each.placement for each in found]).argmin())]

    def settled(self, found: Found) -> Found:
        """Return a plan of which no neighbor is cheaper, or that was improved in the last round that is permitted.

        A round takes the cheapest neighbor, and then as many of the changes to others as still lower the cost.
        """
        problem = self._problem
        for _ in range(problem.tuning.most_rounds):
            placement = found.placement
            tried = [(each, self._changed(placement, each)) for each in self._changes(placement)]
            fitting = [(change, each) for change, each in tried if each is not None and problem.fits(each)]
            least_ms, *costs = problem.total_ms([placement, *(each for _, each in fitting)]).tolist()
            ranked = [row for row in np.argsort(costs, kind="stable").tolist() if costs[row] < least_ms]
            for row in ranked[: problem.tuning.num_judged]:
                option = self._changed(placement, fitting[row][0])
                if option is not None and problem.fits(option):
                    (option_ms,) = problem.total_ms([option]).tolist()
                    if option_ms < least_ms:
                        placement, least_ms = option, option_ms
            if not ranked:
                break
            found = self._descended(replace(found, placement=placement))
        return found

    def returns(self, found: Found) -> Iterator[Found]:
        """Yield plans with one unit fewer in host memory, and a new search of all that are not there."""
        placement, kinds = found.placement, self._problem.kinds
        host_bytes = np.bincount(
            kinds.unit[placement.kinds], weights=kinds.host_bytes[placement.kinds], minlength=len(self._problem.units)
        )
        on_host = np.flatnonzero(host_bytes)
        free = [unit for unit in on_host.tolist() if not self._problem.host_choices[unit].is_bound]
        for unit in sorted(free, key=lambda unit: (host_bytes[unit], unit))[: self._problem.tuning.num_best]:
            again = self._completed(placement.at(np.isin(kinds.unit[placement.kinds], on_host[on_host != unit])))
            if again is not None:
                yield self._descended(again)

    def _descended(self, found: Found) -> Found:
        local = LocalSearch(self._problem, traits=self._traits, work_budget=self._problem.work + self._work)
        placement = local.improve(found.placement)
        return replace(found, placement=placement, improvements=found.improvements + local.improvements)

    def _changes(self, placement: Placement) -> Iterator[Mapping[int, Form]]:
        """Yield forms of one unit that is moved between memories or cut otherwise, or of two that change places."""
        problem, kinds, count = self._problem, self._problem.kinds, self._problem.tuning.num_candidates
        units = kinds.unit[placement.kinds]
        on_host = np.unique(units[kinds.host_bytes[placement.kinds] > 0]).tolist()
        device_bytes = np.bincount(units, weights=kinds.memory_bytes[placement.kinds], minlength=len(problem.units))
        device_bytes[[*on_host, *(unit for unit, own in enumerate(problem.host_choices) if not own.kernels)]] = -1
        leaving = np.argsort(-device_bytes, kind="stable")[: min(count, int((device_bytes >= 0).sum()))].tolist()
        for unit in (*on_host, *leaving):
            for variant in self._variants[unit]:
                if variant.host_bytes or unit in on_host:
                    yield {unit: variant.form}
        for back in on_host:
            for variant in self._variants[back]:
                if variant.host_bytes:
                    continue
                for unit in leaving:
                    yield from ({back: variant.form, unit: other} for other in self._few_of_each_kernel(unit))

    def _few_of_each_kernel(self, unit: int) -> Iterator[Form]:
        """Yield the first forms of each kernel: additive loads may order all of one before those of another."""
        of_kernels: dict[int, list[Form]] = {}
        for variant in self._variants[unit]:
            if variant.host_bytes:
                of_kernels.setdefault(int(self._problem.kinds.kernel[variant.form.kinds[0]]), []).append(variant.form)
        for forms in of_kernels.values():
            yield from forms[: self._problem.tuning.num_best]

    def _changed(self, placement: Placement, forms: Mapping[int, Form]) -> Placement | None:
        """Return the placement with some units in other forms, on the least loaded devices with room. None: no room."""
        problem = self._problem
        rest = without_units(problem, placement, list(forms))
        levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
        np.add.at(levels, rest.devices, self._traits()[rest.kinds])
        host_room = problem.memory.host_capacity_bytes - problem.host_bytes(rest)
        placed = self._placed(forms, levels, host_room)
        return None if placed is None else Placement.joined(rest, placed)

    def _priced(self) -> Iterator[HostAssignment]:
        """Yield the units' choices for each size of caches, price of memory, and limit on a shard.

        They fit in the mean. Neighbors may have caches of several sizes.
        """
        problem, ledger, variants = self._problem, self._problem.memory, self._variants
        assert problem.host_tables is not None
        num_devices, most = problem.num_devices, max(map(len, variants))
        cost, alone, size, factor = (
            np.array([[float(getattr(each, field)) for each in own] + [none] * (most - len(own)) for own in variants])
            for field, none in zip(Variant._fields[1:5], (np.inf, np.inf, 0.0, 0.0), strict=True)
        )
        rows, tables = np.arange(len(variants)), [unit.tables[0] for unit in problem.units]
        room_bytes = float(num_devices * ledger.shard_capacity_bytes)
        host_room = problem.request.topology.num_nodes * ledger.host_capacity_bytes
        sizes = range(len(KEPT_BATCHES) if factor.any() else 1)
        for cache_size, most_alone in product(sizes, problem.tuning.most_alone):
            of_size = (factor == 0) | (factor == problem.host_tables.load_factors(cache_size)[tables][:, None])
            of_size_ms = np.where(of_size, cost, np.inf)
            even_ms = float(of_size_ms.min(axis=1).sum()) / num_devices
            if not np.isfinite(even_ms):  # some unit has no room for caches of this size
                continue
            shortest = np.where(of_size, alone, np.inf).min(axis=1, keepdims=True)
            allowed = np.where(alone <= np.maximum(most_alone * even_ms, shortest), of_size_ms, np.inf)
            for price in (np.array(problem.tuning.memory_price_steps) * even_ms * num_devices / room_bytes).tolist():
                picks = (allowed + price * size).argmin(axis=1)
                chosen = [own[pick] for own, pick in zip(variants, picks.tolist(), strict=True)]
                on_host = {unit: each.form for unit, each in enumerate(chosen) if each.host_bytes}
                memory_bytes = int(size[rows, picks].sum())
                if on_host and memory_bytes <= room_bytes and sum(each.host_bytes for each in chosen) <= host_room:
                    cost_ms = max(cost[rows, picks].sum() / num_devices, alone[rows, picks].max())
                    yield HostAssignment(on_host, cost_ms, memory_bytes)

    def _variants_of(self, unit: int) -> list[Variant]:
        """Return the distinct variants of a unit whose shards an empty device has room for."""
        problem = self._problem
        kinds, forms = problem.kinds, [] if problem.host_choices[unit].is_bound else list(self._forms.of(unit))
        for form, sizes in self._on_host(unit):
            moved = problem.kinds_of([unit] * len(sizes), sizes)
            forms.append(form.with_pieces(moved, memory_bytes=kinds.memory_bytes))
        found: list[Variant] = []
        for form in {each.kinds.tobytes(): each for each in forms}.values():
            if form.needed_bytes <= problem.memory.shard_capacity_bytes:
                traits = self._traits()[form.kinds]
                found.append(
                    Variant(
                        form=form,
                        cost_ms=float(weighted_sum(traits, self._prices).sum()),
                        alone_ms=float(traits[:, TIMES].sum(axis=1).max()),
                        memory_bytes=int(kinds.memory_bytes[form.kinds].sum()),
                        host_bytes=int(kinds.host_bytes[form.kinds].sum()),
                        load_factor=float(kinds.load_factor[form.kinds[0]]),
                    )
                )
        return sorted(found, key=lambda each: each.cost_ms)

    def _on_host(self, unit: int) -> Iterator[tuple[Form, list[ShardSize]]]:
        """Yield a form and the sizes of their pieces in host memory, for each kernel and size of cache."""
        problem = self._problem
        assert problem.host_tables is not None
        table = problem.units[unit].tables[0]
        for kernel in problem.host_choices[unit].kernels:
            factors = [0.0]
            if kernel == CACHED:
                factors = [float(problem.host_tables.load_factors(size)[table]) for size in range(len(KEPT_BATCHES))]
            for form in self._forms.of(unit):
                if form.sharding_type is not ShardingType.DATA_PARALLEL:
                    for factor in factors:
                        own = problem.sizes_of(form.pieces)
                        yield form, [size._replace(kernel=kernel, cache_load_factor=factor) for size in own]

    def _placed(self, forms: Mapping[int, Form], levels: FloatArray, host_room: IndexArray) -> Placement | None:
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
        if not has_room(request):
            return None
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
