"""The search with tables in host memory: which of them, in which way, and all others as if they were alone.

A price per byte of device memory decides which tables leave it: each takes the form, on the device or on the host, that
costs least with its bytes at that price. Higher prices free more memory, at more time on the host link. A limit on the
time of a shard spreads tables over devices. For each price, limit, and size of caches the tables on the host are placed
first; the search of the others runs in what is left of the fullest device. The cheapest plans by additive loads are
tried first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.reuse.cached_rows import KEPT_BATCHES
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.host_tables import CACHED
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective
from neuroshard_planner.search.conversion import additive_traits
from neuroshard_planner.search.greedy_placement import tangent
from neuroshard_planner.search.iterated import Found
from neuroshard_planner.search.local_search import MEMORY, LocalSearch
from neuroshard_planner.search.placed_options import Form, Forms, PlacedOption
from neuroshard_planner.search.residual import completed, units_alone

MOST_TRIED = 4  # assignments that the tables in device memory are searched for
MOST_TRIED_WHERE_ALL_FITS = 2  # where host memory is not needed, and rarely helps
MOST_ATTEMPTS = 12  # assignments that may turn out not to fit
PRICES = np.concatenate(([0.0], np.geomspace(1 / 64, 4096, 25)))
"""Price of all device memory, as multiples of the mean cost of a device: from that at which only tables leave that are
hardly looked up, to that at which time hardly counts."""
MOST_ALONE = np.array([1.0, 1.5, 2.0, 4.0, 8.0, np.inf])
"""Limits on the time of a shard, as multiples of the mean cost of a device: a shard above it makes all others wait."""
DESCENT_SHARE = 0.2  # of the work, for steps of the whole after each search

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
    most = MOST_TRIED if in_memory is None else MOST_TRIED_WHERE_ALL_FITS
    best, best_ms = in_memory, np.inf if in_memory is None else float(problem.total_ms([in_memory.placement])[0])
    tried = 0
    for attempt, assignment in enumerate(search.assignments()):
        if tried == most or attempt == MOST_ATTEMPTS:
            break
        found = search.around(assignment)
        if found is None:
            continue
        tried += 1
        until = problem.work + int(DESCENT_SHARE * work_budget / most)
        local = LocalSearch(problem, slopes=search.slopes, work_budget=until)
        found = replace(found, placement=local.improve(found.placement))
        found_ms = float(problem.total_ms([found.placement])[0])
        if found_ms < best_ms:
            best, best_ms = replace(found, improvements=found.improvements + local.improvements), found_ms
    return best


class _HostSearch:
    """Assignments of one problem's units to device and host memory, and placements of them."""

    def __init__(self, problem: Problem, solve: Solve) -> None:
        self._problem = problem
        self._solve = solve
        topology = problem.request.topology
        self._nodes: IndexArray = np.arange(problem.num_devices) // topology.devices_per_node
        self._forms = Forms(problem)
        self.slopes: FloatArray = tangent(problem, self._forms.mean_sums())
        self._known_traits: FloatArray = np.empty((0, NUM_LEVELS + 1))
        self._prices = self._reference_prices()

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
        fixed = self._placed(assignment.forms)
        return None if fixed is None else self._completed(fixed)

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
        for limit_ms in (even_ms * MOST_ALONE).tolist():
            is_short = alone <= np.maximum(limit_ms, alone.min(axis=1, keepdims=True))
            allowed = np.where(is_short, cost, np.inf)
            for price in (PRICES * even_ms * num_devices / room_bytes).tolist():
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
            else [self._variant(form, is_on_host=False) for form in self._forms.of(unit)]
            for unit in range(len(problem.units))
        ]
        may_cache = any(CACHED in choice.kernels for choice in problem.host_choices)
        for size in range(len(KEPT_BATCHES) if may_cache else 1):
            on_host = [self._on_host(unit, size) for unit in range(len(problem.units))]
            variants = [own + others for own, others in zip(on_device, on_host, strict=True)]
            if all(variants):
                yield variants

    def _on_host(self, unit: int, cache_size: int) -> list[Variant]:
        """Return the variants of a unit in host memory, its caches of this position in KEPT_BATCHES."""
        problem = self._problem
        assert problem.host_tables is not None
        variants = []
        for kernel in problem.host_choices[unit].kernels:
            factor = 0.0
            if kernel == CACHED:
                factor = float(problem.host_tables.caches.load_factors(cache_size)[problem.units[unit].tables[0]])
            for form in self._forms.of(unit):
                if form.sharding_type is not ShardingType.DATA_PARALLEL:
                    moved = self._with_kernel(unit, form, kernel, factor)
                    variants.append(self._variant(moved, is_on_host=True))
        return variants

    def _with_kernel(self, unit: int, form: Form, kernel: int, load_factor: float) -> Form:
        problem = self._problem
        sizes = [size._replace(kernel=kernel, cache_load_factor=load_factor) for size in problem.sizes_of(form.pieces)]
        pieces = problem.kinds_of([unit] * len(sizes), sizes)
        return form.with_pieces(pieces, memory_bytes=problem.kinds.memory_bytes)

    def _variant(self, form: Form, *, is_on_host: bool) -> Variant:
        kinds = form.kinds
        traits = self._traits(kinds)
        return Variant(
            form=form,
            is_on_host=is_on_host,
            cost_ms=float((traits @ self._prices).sum()),
            alone_ms=float(traits[:, TIMES].sum(axis=1).max()),
            memory_bytes=int(self._problem.kinds.memory_bytes[kinds].sum()),
            host_bytes=int(self._problem.kinds.host_bytes[kinds].sum()),
        )

    def _traits(self, kinds: IndexArray) -> FloatArray:
        """Return [n, levels + 1] what shards of these kinds add to their devices, to first order."""
        if len(self._known_traits) < len(self._problem.kinds):
            self._known_traits = additive_traits(self._problem, self.slopes)
        return self._known_traits[kinds]

    def _reference_prices(self) -> FloatArray:
        """Return [levels + 1] milliseconds of one unit more of each peak, where half of all traffic is in each family.

        Memory costs nothing here: its price is what the search varies.
        """
        problem = self._problem
        peaks = self._traits(problem.whole).sum(axis=0)[:NUM_LEVELS] / problem.num_devices
        most = np.zeros(len(Collective))
        for unit in range(len(problem.units)):
            traffic = [problem.kinds.traffic[form.kinds].sum(axis=0) for form in self._forms.of(unit)]
            most += np.max(traffic, axis=0) / problem.num_devices
        peaks[TRAFFIC] = np.where(peaks[TRAFFIC] > 0, peaks[TRAFFIC], most / 2)
        return np.append(problem.step_cost.prices(peaks), 0.0)

    def _placed(self, forms: dict[int, Form]) -> Placement | None:
        """Return units in host memory on the least loaded devices that have room, largest first. None: no room."""
        problem = self._problem
        levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
        host_room = np.full(problem.request.topology.num_nodes, problem.memory.host_capacity_bytes)
        chosen: list[PlacedOption] = []
        host_bytes = {unit: int(problem.kinds.host_bytes[form.kinds].sum()) for unit, form in forms.items()}
        for unit in sorted(forms, key=lambda unit: (-host_bytes[unit], unit)):
            form = forms[unit]
            option = next((each for each in self._options(unit, form, levels, host_room)), None)
            if option is None:
                return None
            np.add.at(levels, option.devices, self._traits(option.kinds))
            np.subtract.at(host_room, self._nodes[option.devices], problem.kinds.host_bytes[option.kinds])
            chosen.append(option)
        return Placement(
            kinds=np.concatenate([each.kinds for each in chosen]),
            devices=np.concatenate([each.devices for each in chosen]),
        )

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
        found = completed(
            problem, fixed, request_of=lambda units: _in_device_memory(problem, units), search=self._solve
        )
        return found if found is not None and problem.fits(found.placement) else None


def _in_device_memory(problem: Problem, units: Sequence[int]) -> PlanRequest:
    """Return the request for some units alone, without host memory."""
    constraints = problem.request.constraints

    def restricted(own: TableConstraints, name: str, _unit: int) -> TableConstraints:
        kernels = constraints.compute_kernels_of(name)
        left = None if kernels is None else tuple(kernel for kernel in kernels if not kernel.is_on_host)
        return own.model_copy(update={"compute_kernels": left})

    part = units_alone(problem, units, restricted)
    return part.model_copy(
        update={
            "topology": part.topology.model_copy(update={"host_memory": None}),
            "constraints": part.constraints.model_copy(update={"compute_kernels": None}),
        }
    )
