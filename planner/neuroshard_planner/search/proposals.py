"""Proposals: placements in which many units at once are cut by rows or copied. Descends from none.

For a set of further families, units are ranked by what the cheapest of their forms saves on the mean device, and the
first 1, 2, 3, ... of them are converted: a family pays for its call and its collectives as soon as one table has it,
which no step that converts a single table may earn back. Further proposals leave no shard that alone takes longer than
some time, since all devices would wait for it. A sweep keeps the sums of all devices and changes them by one unit after
another, so that a proposal costs one evaluation of the networks, and no list of shards.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import COLUMNS, FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import whole_nodes
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective
from neuroshard_planner.search.conversion import additive_traits
from neuroshard_planner.search.local_search import MEMORY
from neuroshard_planner.search.placed_options import Form, Forms, PlacedOption, with_options
from neuroshard_planner.search.price_bound import first_least
from neuroshard_planner.search.sharding_options import OptionTable

LONGEST = (4.0, 3.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4)  # times of the longest shard, as shares of a device's mean load
MOST_ABOVE = 1.1  # times the least that a sweep's proposals promise, at which it ends


class Proposal(NamedTuple):
    """A start whose units are converted to options."""

    options: tuple[PlacedOption, ...]
    families: tuple[int, ...]
    """In use, ascending positions in FAMILIES."""
    total_ms: float
    """Infinite where it does not fit."""
    promised_ms: float
    """What it would cost if all levels were as even over devices as its largest shards allow."""


class _Way(NamedTuple):
    """A way to shard a unit."""

    form: Form | None
    """None: by columns."""
    longest_ms: float
    """Of its longest shard, by additive loads."""
    cost_ms: float
    """On all devices together, by price."""

    @property
    def of_form(self) -> Form:
        """The form of a way that is not by columns."""
        assert self.form is not None
        return self.form


class Proposals:
    """Makes proposals from one start of a problem."""

    def __init__(
        self, problem: Problem, forms: Forms, start: Placement, options: OptionTable, *, slopes: FloatArray
    ) -> None:
        """Make them of a start.

        Args:
            problem: what is placed.
            forms: of its units.
            start: whole units and units cut by columns.
            options: cuts of its units by columns.
            slopes: [r, 2] that make loads additive.
        """
        self._problem = problem
        self._bound = bound_to_convert(problem)
        """Units that may not be by columns; every proposal converts all of them."""
        self._forms = forms
        self._start = start
        self._traits = additive_traits(problem, slopes)
        order = np.argsort(problem.kinds.unit[start.kinds], kind="stable")
        self._kinds, self._devices = start.kinds[order], start.devices[order]
        self._ends = np.searchsorted(problem.kinds.unit[self._kinds], np.arange(len(problem.units) + 1))
        prices = reference_prices(problem, forms, self._traits, start)
        self._cost: FloatArray = self._traits @ prices
        """[kinds] what each kind costs on all devices together, by prices where all families are in use."""
        of_load = np.zeros(len(prices))
        for part in (TIMES, TRAFFIC.start + Collective.INDICES):
            of_load[part] = prices[part]
        self._load: FloatArray = self._traits @ of_load
        """[kinds] compute and indices of a device that has such a shard, by price."""
        self._options = options
        self._finest: FloatArray = self._traits[options.largest(options.last), :NUM_LEVELS]
        """[units, levels] of the largest shard of each unit where it is cut by columns as often as may be."""

    def placement(self, proposal: Proposal) -> Placement:
        """Return a proposal's shards."""
        return with_options(self._problem, self._start, proposal.options)

    def of(self, families: Collection[int]) -> Iterator[Proposal]:
        """Yield proposals with further families, positions in FAMILIES."""
        bound = self._bound
        chosen = self._cheapest_forms(families)
        if any(unit not in chosen for unit in bound):
            return
        sweep = self._sweep()
        for unit in bound:
            if not sweep.convert(unit, chosen[unit].of_form, self._own(unit)):
                return
        if bound:
            yield sweep.proposal()
        savings = {unit: self._now(unit) - way.cost_ms for unit, way in chosen.items()}
        ranked = sorted((unit for unit in chosen if unit not in set(bound)), key=lambda unit: -savings[unit])
        counts, least_ms = set(_counts(len(ranked))), np.inf
        leaves_columns = len(ranked) + len(bound) == len(self._problem.units)
        for count, unit in enumerate(ranked, start=1):
            sweep.convert(unit, chosen[unit].of_form, self._own(unit))
            if count in counts:
                proposal = sweep.proposal()
                yield proposal
                least_ms = min(least_ms, proposal.promised_ms)
                if proposal.promised_ms > MOST_ABOVE * least_ms:
                    if not leaves_columns:
                        return
                    counts = {len(ranked)}  # without any table by columns, their call and collectives cost nothing

    def short(self, families: Collection[int]) -> Iterator[Proposal]:
        """Yield proposals in which no shard takes longer than some time, as far as units have ways as short as that.

        Each unit goes by columns or has its cheapest form, whichever costs less by price.
        """
        mean = float(self._load[self._problem.whole].sum()) / self._problem.num_devices
        bound = set(self._bound)
        units = [*self._bound, *(unit for unit in range(len(self._problem.units)) if unit not in bound)]
        of_units = [self._ways(unit, families, is_bound=unit in bound) for unit in units]
        if not all(of_units):
            return
        ways = [way for own in of_units for way in own]
        counts = np.array([len(own) for own in of_units])
        starts: IndexArray = np.cumsum(counts) - counts
        longest_ms, cost_ms = np.array([way.longest_ms for way in ways]), np.array([way.cost_ms for way in ways])
        shortest_ms = np.minimum.reduceat(longest_ms, starts)
        known = set[bytes]()
        for share in LONGEST:
            is_short = longest_ms <= np.repeat(np.maximum(share * mean, shortest_ms), counts)
            chosen = first_least(np.where(is_short, cost_ms, np.inf), starts)
            if chosen.tobytes() in known:
                continue
            known.add(chosen.tobytes())
            sweep = self._sweep()
            for unit, row in zip(units, chosen.tolist(), strict=True):
                form = ways[row].form
                if form is not None:
                    sweep.convert(unit, form, self._own(unit))
            if sweep.has_converted(self._bound):
                yield sweep.proposal()

    def _ways(self, unit: int, families: Collection[int], *, is_bound: bool) -> list[_Way]:
        """Return the cuts of a unit, if it may be by columns, and its forms of these families."""
        ways = self._forms_of(unit, families)
        return ways if is_bound else [*ways, *self._cuts[unit]]

    @cached_property
    def _form_ways(self) -> list[list[_Way]]:
        """[units] all forms."""
        load, cost = self._load, self._cost
        return [
            [
                _Way(form, float(load[form.pieces].max()), float(cost[form.pieces].sum()) * form.num_placed)
                for form in self._forms.of(unit)
            ]
            for unit in range(len(self._problem.units))
        ]

    @cached_property
    def _cuts(self) -> list[list[_Way]]:
        """[units] all cuts by columns."""
        options = self._options
        longest_ms = self._load[options.kinds[options.start]].tolist()
        ways = [
            _Way(None, longest, float(self._cost[options.kinds[start : start + count]].sum()))
            for longest, start, count in zip(longest_ms, options.start.tolist(), options.count.tolist(), strict=True)
        ]
        ends = zip(options.first.tolist(), (options.last + 1).tolist(), strict=True)
        return [ways[first:last] for first, last in ends]

    def choice(self, families: IndexArray) -> Proposal | None:
        """Return the proposal in which each unit is of a family [units].

        Units for which there is no room stay by columns. None: all do, or one does that may not.
        """
        sweep = self._sweep()
        further = np.flatnonzero(families != COLUMNS).tolist()
        for unit in sorted(further, key=lambda unit: unit not in self._bound):
            way = self._cheapest_form(unit, families[[unit]].tolist())
            if way is not None:
                sweep.convert(unit, way.of_form, self._own(unit))
        return sweep.proposal() if sweep.has_converted(self._bound) else None

    def _sweep(self) -> "_Sweep":
        sums, levels = self._begin
        return _Sweep(
            self._problem,
            self._traits,
            self._kinds,
            self._devices,
            self._finest,
            sums=sums.copy(),
            levels=levels.copy(),
        )

    @cached_property
    def _begin(self) -> tuple[FloatArray, FloatArray]:
        """[devices, r] sums and [devices, levels + 1] additive levels of the start."""
        levels = np.zeros((self._problem.num_devices, NUM_LEVELS + 1))
        np.add.at(levels, self._devices, self._traits[self._kinds])
        return self._problem.device_sums(self._kinds, self._devices).astype(np.float64), levels

    def _own(self, unit: int) -> slice:
        """Return the start's shards of a unit."""
        return slice(*self._ends[unit : unit + 2])

    def _cheapest_forms(self, families: Collection[int]) -> dict[int, _Way]:
        """Return, by unit, the form of these families that costs the mean device least; first of equals."""
        found = {unit: self._cheapest_form(unit, families) for unit in range(len(self._problem.units))}
        return {unit: way for unit, way in found.items() if way is not None}

    def _cheapest_form(self, unit: int, families: Collection[int]) -> _Way | None:
        return min(self._forms_of(unit, families), key=lambda way: way.cost_ms, default=None)

    def _forms_of(self, unit: int, families: Collection[int]) -> list[_Way]:
        return [way for way in self._form_ways[unit] if way.of_form.family in families]

    def _now(self, unit: int) -> float:
        return float(self._cost[self._kinds[self._own(unit)]].sum())


class _Sweep:
    """The devices of a start whose units are converted one after another."""

    def __init__(
        self,
        problem: Problem,
        traits: FloatArray,
        kinds: IndexArray,
        devices: IndexArray,
        finest: FloatArray,
        *,
        sums: FloatArray,
        levels: FloatArray,
    ) -> None:
        """Begin with the shards of a start, of these kinds [n] on these devices [n].

        Args:
            problem: what is placed.
            traits: [kinds, levels + 1]
            kinds: of the start.
            devices: of the start.
            finest: [units, levels] that bound from below what some device holds of a unit by columns.
            sums: [devices, r] of the start, which the sweep changes.
            levels: [devices, levels + 1] of the start, which the sweep changes.
        """
        self._problem = problem
        self._traits, self._finest = traits, finest
        self._kinds, self._devices = kinds, devices
        self._sums, self._levels = sums, levels
        topology = problem.request.topology
        self._shape = topology.num_nodes, topology.devices_per_node
        self._every: IndexArray = np.arange(problem.num_devices)
        self._options: list[PlacedOption] = []
        self._families: set[int] = set()

    def has_converted(self, bound: Collection[int]) -> bool:
        """Return whether all bound units were converted, and one at least."""
        return bool(self._options) and set(bound) <= {option.unit for option in self._options}

    def convert(self, unit: int, form: Form, own: slice) -> bool:
        """Convert a unit, whose shards are a slice of the start's; return whether there was room."""
        traits, representation = self._traits, self._problem.kinds.representation
        shards = list(zip(self._kinds[own].tolist(), self._devices[own].tolist(), strict=True))
        for kind, device in shards:
            self._levels[device] -= traits[kind]
            self._sums[device] -= representation[kind]
        places = self._places(unit, form)
        is_placed = places is not None
        if places is None:
            for kind, device in shards:
                self._levels[device] += traits[kind]
                self._sums[device] += representation[kind]
        else:
            for piece, there in zip(form.pieces.tolist(), places, strict=True):
                self._levels[there] += traits[piece]
                self._sums[there] += representation[piece]
            self._options.append(PlacedOption(unit, form.kinds, np.concatenate(places)))
            self._families.add(form.family)
        return is_placed

    def _places(self, unit: int, form: Form) -> list[IndexArray] | None:
        """Return the devices of each piece: all, or those of the least loaded nodes. None: there is no room."""
        problem = self._problem
        room = problem.memory.shard_capacity_bytes - self._levels[:, MEMORY]
        if form.num_placed == problem.num_devices:
            return [self._every] if room.min() >= form.needed_bytes else None
        nodes = self._every[: self._shape[0]]
        if problem.allowed is not None:
            nodes = whole_nodes(problem.request, problem.allowed[unit])
        nodes = nodes[room.reshape(self._shape).min(axis=1)[nodes] >= form.needed_bytes]
        if len(nodes) < len(form.pieces):
            return None
        load = self._levels[:, TIMES].sum(axis=1).reshape(self._shape).max(axis=1)
        chosen = nodes[np.argsort(load[nodes], kind="stable")[: len(form.pieces)]]
        return list(self._every.reshape(self._shape)[chosen])

    def proposal(self) -> Proposal:
        """Return the units converted so far as a proposal."""
        problem = self._problem
        levels = self._levels[:, :NUM_LEVELS].copy()
        sums = np.maximum(self._sums, 0.0)
        levels[:, TIMES] = problem.pass_levels(sums.astype(np.float32), in_bulk=True)
        fits = self._levels[:, MEMORY].max() <= problem.memory.shard_capacity_bytes
        even = levels.mean(axis=0)
        even[TIMES] = problem.pass_levels(sums.mean(axis=0, keepdims=True).astype(np.float32))[0]
        largest = [np.delete(self._finest, [option.unit for option in self._options], axis=0)]
        largest += [self._traits[option.kinds, :NUM_LEVELS] for option in self._options]
        even = np.maximum(even, np.concatenate(largest).max(axis=0))
        total_ms, promised_ms = problem.step_cost.total_ms(np.stack((levels.max(axis=0), even))).tolist()
        by_columns = {COLUMNS} if len(self._options) < len(problem.units) else set()
        families = tuple(sorted(self._families | by_columns))
        return Proposal(tuple(self._options), families, total_ms if fits else np.inf, promised_ms)


def reference_prices(problem: Problem, forms: Forms, traits: FloatArray, start: Placement | None) -> FloatArray:
    """Return [levels + 1] milliseconds of one unit more of each peak where all families are in use.

    Families that the start does not use are taken at half of the traffic that all units would bring them.
    """
    peaks = traits[problem.whole].sum(axis=0)[:NUM_LEVELS] / problem.num_devices
    if start is not None:
        peaks = problem.device_levels([start])[0].max(axis=0)
    most = np.zeros(len(Collective))
    for unit in range(len(problem.units)):
        traffic = [problem.kinds.traffic[form.pieces].sum(axis=0) * form.num_placed for form in forms.of(unit)]
        most += np.max(traffic, axis=0) / problem.num_devices
    peaks[TRAFFIC] = np.where(peaks[TRAFFIC] > 0, peaks[TRAFFIC], most / 2)
    return np.append(problem.step_cost.prices(peaks), 0.0)


def packed_proposal(problem: Problem, forms: Forms, traits: FloatArray, chosen: dict[int, Form]) -> Placement | None:
    """Return all units placed by memory, largest first. None: no room was found.

    Args:
        problem: of which no placement by columns fits.
        forms: of its units.
        traits: [kinds, levels + 1] of its kinds.
        chosen: the forms of some units; the others are by columns, in as few pieces as fit.
    """
    levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
    options: list[PlacedOption] = []
    sizes = problem.kinds.memory_bytes[problem.whole]
    for unit in sorted(range(len(problem.units)), key=lambda unit: (unit not in chosen, -sizes[unit])):
        room = problem.memory.shard_capacity_bytes - levels[:, MEMORY]
        by_columns = (form for form in forms.of(unit) if form.sharding_type.is_by_columns)
        ways = [chosen[unit]] if unit in chosen else by_columns
        option = next((each for form in ways for each in forms.placed(unit, form, levels[:, MEMORY], room)), None)
        if option is None:
            return None
        levels[option.devices] += traits[option.kinds]
        options.append(option)
    return Placement(
        kinds=np.concatenate([each.kinds for each in options]),
        devices=np.concatenate([each.devices for each in options]),
    )


def packings(
    problem: Problem, forms: Forms, traits: FloatArray, families: Collection[int], bound: Sequence[int]
) -> Iterator[Placement]:
    """Yield placements by memory: of further families those that must be, and 0, 1, 2, ... of the largest units."""
    prices = reference_prices(problem, forms, traits, None)
    cost = traits @ prices
    chosen: dict[int, Form] = {}
    for unit in range(len(problem.units)):
        own = [form for form in forms.of(unit) if form.family in families]
        if own:
            chosen[unit] = min(own, key=lambda form: float(cost[form.pieces].sum()) * form.num_placed)
    if any(unit not in chosen for unit in bound):
        return
    sizes = problem.kinds.memory_bytes[problem.whole]
    ranked = sorted((unit for unit in chosen if unit not in set(bound)), key=lambda unit: -sizes[unit])
    for count in (0, *_counts(len(ranked))):
        units = [*bound, *ranked[:count]]
        placement = packed_proposal(problem, forms, traits, {unit: chosen[unit] for unit in units}) if units else None
        if placement is not None:
            yield placement


def bound_to_convert(problem: Problem) -> list[int]:
    """Return the units that may neither be cut by columns nor be whole on a device."""
    return [unit for unit, own in enumerate(problem.sharding_types) if ShardingType.TABLE_WISE not in own]


def _counts(most: int) -> list[int]:
    """Return 1, 2, 3, ... up to and with ``most``, above 16 in steps of an eighth."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count += max(1, count // 8)
    return [*counts, most] if most else []
