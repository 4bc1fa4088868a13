"""Assignments: a way to shard each unit, before any device is chosen.

A family pays for its call and its collectives as soon as one table has it, which no step that converts a single table
may earn back. So a placement by columns is changed by whole assignments.

An assignment promises the cost of its mean device, where the shards that go to some devices are as uneven as their
longest make them: the power mean of their sum and of every unit's longest shard. With a high power only the longest
counts, and no change of one of several long units seems to help; a low one sees that, and shortens more than it must.
So assignments are descended with several. A descent goes from unit to unit and takes for each the way that promises
least next to those of all others.

Columns of a device come in steps, so that the all-to-all is shorter only where every device has a step less. That takes
as many more copies at once as make room on all devices: no change of a single table gains anything. So fills are
proposed too: units by columns fill all devices to one number of columns, next to copies of all others.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.host_tables import ON_DEVICE
from neuroshard_costs.shards import COLUMNS, REPLICATED, FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective
from numpy.typing import NDArray

from neuroshard_planner.bound.choices import Families, first_least
from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.search.estimator import MEMORY
from neuroshard_planner.search.options import Form, Forms, OptionTable, families_of

POOLED = Collective.POOLED_EMBEDDINGS
PARTS_OF_PEAK = (1, 2, 3, 4)
"""Shards that a device is filled with."""


class Assignment(NamedTuple):
    """A way for each unit."""

    forms: tuple[Form | None, ...]
    """[units] None: cut by columns."""
    cuts: IndexArray
    """[units] the option by columns of each unit that has no form."""
    promised_ms: float
    """With the highest power."""

    @property
    def by_unit(self) -> dict[int, Form]:
        """The forms of the units that are not cut by columns."""
        return {unit: form for unit, form in enumerate(self.forms) if form is not None}


class Assignments:
    """Chooses ways for the units of one problem."""

    def __init__(
        self,
        problem: Problem,
        forms: Forms | None,
        options: OptionTable,
        *,
        traits: FloatArray,
        prices: FloatArray,
        bound: Sequence[int],
    ) -> None:
        """Make the table of w ways, in ascending order of units.

        Args:
            problem: whose units are sharded.
            forms: of its units. None: they are by columns alone.
            options: cuts of its units by columns.
            traits: [kinds, levels + 1] additive times, traffic, and memory.
            prices: [levels + 1] milliseconds of one unit more of each peak.
            bound: units that may not be by columns.
        """
        self._problem, self._traits = problem, traits
        self._powers = problem.tuning.powers
        ways: list[tuple[int, Form | None, IndexArray, int]] = []
        of_ways: list[int] = []
        for unit in range(len(problem.units)):
            if unit not in bound:
                cuts = range(int(options.first[unit]), int(options.last[unit]) + 1)
                ways += [(unit, None, options.shards_of(cut), 1) for cut in cuts]
                of_ways += cuts
            further = [] if forms is None else [form for form in forms.of(unit) if form.family != COLUMNS]
            ways += [(unit, form, form.pieces, form.num_placed) for form in further]
            of_ways += [-1] * len(further)
        self._option: IndexArray = np.array(of_ways, dtype=np.int64)
        self._forms = [form for _, form, _, _ in ways]
        self._unit: IndexArray = np.array([unit for unit, _, _, _ in ways], dtype=np.int64)
        self._family: IndexArray = np.array(
            [COLUMNS if form is None else form.family for form in self._forms], dtype=np.int64
        )
        self._content: IndexArray = np.where(self._family == COLUMNS, -1, np.arange(len(ways)))
        """[w] equal for all cuts by columns."""
        self._starts: IndexArray = np.flatnonzero(np.diff(self._unit, prepend=-1))
        self._ends: IndexArray = np.append(self._starts[1:], len(ways))
        counts = np.array([len(pieces) for _, _, pieces, _ in ways])
        first = np.cumsum(counts) - counts
        kinds = np.concatenate([pieces for _, _, pieces, _ in ways])
        num_placed = np.array([count for _, _, _, count in ways])[:, None]
        share = num_placed / problem.num_devices
        is_uneven = num_placed < problem.num_devices
        self._sums: FloatArray = np.add.reduceat(problem.kinds.representation[kinds], first, axis=0) * share
        """[w, r] of the mean device."""
        self._levels: FloatArray = np.add.reduceat(traits[kinds], first, axis=0) * share
        """[w, levels + 1] of the mean device, to first order."""
        self._uneven: FloatArray = self._levels * is_uneven
        """[w, levels + 1] the same of shards that are not on all devices."""
        self._longest: FloatArray = np.maximum.reduceat(traits[kinds], first, axis=0) * is_uneven
        """[w, levels + 1] of the largest of such shards."""
        self._scale = np.maximum(self._levels.sum(axis=0), 1e-30)
        of_load = np.zeros(len(prices))
        for part in (TIMES, TRAFFIC.start + Collective.INDICES):
            of_load[part] = prices[part]
        self._load: FloatArray = np.maximum.reduceat(weighted_sum(traits[kinds], of_load), first)
        """[w] compute and indices of the longest shard, by price."""
        self._cost: FloatArray = weighted_sum(self._levels, prices) * problem.num_devices
        """[w] on all devices together, by price."""

    def promising(self, sets: Sequence[Families], *, count: int) -> list[Assignment]:
        """Return up to ``count`` assignments of each power, with units by columns and as many without, and neighbors.

        Best first. Each differs from the others in its forms, and has some. ``sets`` are the sets of families that
        they may use.
        """
        if len(self._starts) > self._problem.tuning.most_opened_units:
            return []
        begun = self._begun(sets)
        if begun is None:
            return []
        begin, usable, powers = begun
        # Starts without units by columns stay so: the columns' call and collectives cost nothing there.
        has_columns = (self._family[begin] == COLUMNS).any(axis=1)
        values, ways = self._descended(begin, usable & (has_columns[:, None] | (self._family != COLUMNS)), powers)
        found: dict[bytes, IndexArray] = {}
        by_columns = np.full(len(self._starts), -1).tobytes()
        for power, wanted in product(self._powers, (True, False)):
            own = np.flatnonzero((powers == power) & (has_columns == wanted))
            contents = self._by_content(ways[own[np.argsort(values[own], kind="stable")]])
            fresh = [each for each in contents if each not in found and each != by_columns]
            found.update((content, contents[content]) for content in fresh[:count])
        best = int(self._last_values(ways).argmin())
        found = self._by_content([*found.values(), *self._near(ways[best], usable[best])])
        found.pop(by_columns, None)
        if not found:
            return []
        chosen = np.array(list(found.values()))
        promised = self._last_values(chosen)
        return [
            Assignment(
                tuple(self._forms[way] for way in chosen[row].tolist()), self._option[chosen[row]], float(promised[row])
            )
            for row in np.argsort(promised, kind="stable").tolist()
        ]

    def least_ms(self, sets: Sequence[Families]) -> tuple[float, float]:
        """Return the milliseconds that the best assignment by columns alone promises, and the best other of the sets.

        Infinite where there is none.
        """
        begun = [each for each in map(self._begun, ([(COLUMNS,)], sets)) if each is not None]
        if not begun:
            return float("inf"), float("inf")
        begin, usable, powers = map(np.concatenate, zip(*begun, strict=True))
        _, ways = self._descended(begin, usable, powers)
        values, is_by_columns = self._last_values(ways), (self._family[ways] == COLUMNS).all(axis=1)
        by_columns_ms, others_ms = (values[own].min(initial=np.inf) for own in (is_by_columns, ~is_by_columns))
        return float(by_columns_ms), float(others_ms)

    def by_columns(self) -> list[IndexArray]:
        """Return the options [units] of assignments by columns alone, one of each power, best first."""
        begun = self._begun([(COLUMNS,)])
        if begun is None:
            return []
        _, ways = self._descended(*begun)
        ranked = ways[np.argsort(self._last_values(ways), kind="stable")]
        return list({each.tobytes(): self._option[each] for each in ranked}.values())

    def _begun(self, sets: Sequence[Families]) -> tuple[IndexArray, NDArray[np.bool_], IndexArray] | None:
        """Return the begins of descents: ways [s, units], [s, w] which are of its families, and powers [s].

        Of each power the best with units by columns, and as many without, no two of them of the same families. None:
        there is nothing.
        """
        begins: dict[bytes, tuple[IndexArray, NDArray[np.bool_]]] = {}
        for families in sorted(sets, key=len, reverse=True):
            usable = np.isin(self._family, families)
            for ways in self._short(usable):
                begins.setdefault(ways.tobytes(), (ways, usable))
        if not begins:
            return None
        every, usable_of = map(np.array, zip(*begins.values(), strict=True))
        in_use = [np.bincount(self._family[ways]).astype(np.bool_) for ways in every]
        found: list[tuple[int, int]] = []
        for power in self._powers:
            of_families: dict[bytes, int] = {}
            for row in np.argsort(self._values(every, np.full(len(every), power)), kind="stable").tolist():
                of_families.setdefault(in_use[row].tobytes(), row)
            for wanted in (True, False):
                rows = [row for row in of_families.values() if bool(in_use[row][COLUMNS]) == wanted]
                found += [(row, power) for row in rows[: self._problem.tuning.num_best]]
        chosen, powers = np.array(found, dtype=np.int64).T
        return every[chosen], usable_of[chosen], powers

    def _by_content(self, ways: Iterable[IndexArray]) -> dict[bytes, IndexArray]:
        """Return the first of equal ways [units] by their forms; what is by columns is cut again in any case."""
        found: dict[bytes, IndexArray] = {}
        for each in ways:
            found.setdefault(self._content[each].tobytes(), each)
        return found

    def _near(self, ways: IndexArray, usable: NDArray[np.bool_]) -> Iterator[IndexArray]:
        """Yield [units] ways with a few more forms, and with a few less, where each change alone costs least."""
        has_form = self._family[ways] != COLUMNS
        may_change = usable & ((self._family == COLUMNS) == has_form[self._unit])
        # What fits no mean device promises infinity; it comes last, but is a way.
        dearest = np.finfo(np.float64).max
        values = np.where(may_change, np.minimum(self._changed_ms(ways, self._powers[-1]), dearest), np.inf)
        least = first_least(values, self._starts)
        ranked = np.argsort(values[least], kind="stable")
        ranked = ranked[values[least[ranked]] < np.inf]
        for wanted in (True, False):
            own = ranked[has_form[ranked] == wanted]
            for count in range(1, min(self._problem.tuning.num_best, len(own)) + 1):
                changed = ways.copy()
                changed[own[:count]] = least[own[:count]]
                yield changed

    def _short(self, usable: NDArray[np.bool_]) -> Iterator[IndexArray]:
        """Yield [units] the ways that cost least by price of those whose longest shard is short."""
        mean = float(self._levels[self._starts][:, TIMES].sum())
        shortest = np.minimum.reduceat(np.where(usable, self._load, np.inf), self._starts)[self._unit]
        for share in self._problem.tuning.longest:
            is_short = usable & (self._load <= np.maximum(share * mean, shortest))
            cost = np.where(is_short, self._cost, np.inf)
            chosen = first_least(cost, self._starts)
            if np.isfinite(cost[chosen]).all():  # else some unit has no usable way
                yield chosen

    def _last_values(self, ways: IndexArray) -> FloatArray:
        """Return [c] milliseconds that assignments of ways [c, units] promise with the highest power."""
        return self._values(ways, np.full(len(ways), self._powers[-1]))

    def _values(self, ways: IndexArray, powers: IndexArray) -> FloatArray:
        """Return [c] what assignments of ways [c, units] promise with these powers [c]."""
        sums, levels, uneven = (values[ways].sum(axis=1) for values in (self._sums, self._levels, self._uneven))
        longest = _raised(self._longest[ways] / self._scale, powers[:, None, None]).sum(axis=1)
        return self._promised_ms(sums, levels, uneven, longest, powers[:, None])

    def _changed_ms(self, ways: IndexArray, power: int) -> FloatArray:
        """Return [w] what an assignment of ways [units] promises with this power where a way takes its unit's place."""
        own = ways[self._unit]
        of_longest = _raised(self._longest / self._scale, np.array(power))
        sums, levels, uneven, longest = (
            np.maximum(values[ways].sum(axis=0) - values[own] + values, 0.0)
            for values in (self._sums, self._levels, self._uneven, of_longest)
        )
        return self._promised_ms(sums, levels, uneven, longest, np.full((len(own), 1), power))

    def _promised_ms(
        self, sums: FloatArray, levels: FloatArray, uneven: FloatArray, longest: FloatArray, powers: IndexArray
    ) -> FloatArray:
        """Return [...] milliseconds.

        Args:
            sums: [..., r] of mean devices.
            levels: [..., levels + 1] of mean devices, to first order.
            uneven: [..., levels + 1] the same of shards that are not on all devices.
            longest: [..., levels + 1] sums of powers of the longest of these of each unit, in units of the scale.
            powers: [..., 1] of the mean.
        """
        problem = self._problem
        peaks = levels - uneven + self._scale * _root(_raised(uneven / self._scale, powers) + longest, powers)
        times = problem.pass_levels(sums, per_work=BULK_PER_EVALUATION)
        peaks[..., TIMES] += times - levels[..., TIMES]
        total = problem.step_cost.total_ms(peaks[..., :NUM_LEVELS])
        return np.where(levels[..., MEMORY] > problem.memory.shard_capacity_bytes, np.inf, total)

    def _descended(
        self, begin: IndexArray, usable: NDArray[np.bool_], powers: IndexArray
    ) -> tuple[FloatArray, IndexArray]:
        """Return [s] milliseconds of assignments that no change of one unit betters, and their ways [s, units].

        Args:
            begin: [s, units] ways.
            usable: [s, w] whether each may have a way.
            powers: [s]
        """
        ways, every = begin.copy(), np.arange(len(begin))
        of_longest = _raised(self._longest / self._scale, powers[:, None, None])
        parts = self._sums, self._levels, self._uneven
        least_ms = self._values(ways, powers)
        order = np.argsort(-self._cost[self._starts], kind="stable").tolist()
        for _ in range(min(self._problem.tuning.most_rounds, self._problem.tuning.most_opened_units // len(order))):
            before_ms = least_ms.copy()
            state = [values[ways].sum(axis=1) for values in parts]
            longest = of_longest[every[:, None], ways].sum(axis=1)
            for unit in order:
                rows, now = slice(self._starts[unit], self._ends[unit]), ways[:, unit]
                sums, levels, uneven = (
                    np.maximum((value - values[now])[:, None] + values[rows], 0.0)
                    for value, values in zip(state, parts, strict=True)
                )
                powers_of = np.maximum((longest - of_longest[every, now])[:, None] + of_longest[:, rows], 0.0)
                total = self._promised_ms(sums, levels, uneven, powers_of, powers[:, None, None])
                total[~usable[:, rows]] = np.inf
                best = total.argmin(axis=1)
                (better,) = (total[every, best] < least_ms).nonzero()
                if len(better):
                    chosen = best[better]
                    ways[better, unit] = self._starts[unit] + chosen
                    least_ms[better] = total[better, chosen]
                    for value, of_candidates in zip((*state, longest), (sums, levels, uneven, powers_of), strict=True):
                        value[better] = of_candidates[better, chosen]
            if (least_ms > before_ms * (1 - self._problem.tuning.least_gain)).all():
                break
        return least_ms, ways


def bound_to_convert(problem: Problem) -> list[int]:
    """Return the units that may neither be cut by columns nor be whole on a device."""
    return [unit for unit, own in enumerate(problem.sharding_types) if ShardingType.TABLE_WISE not in own]


def _raised(values: FloatArray, powers: IndexArray) -> FloatArray:
    """Return [...] non-negative values to these powers of two, by squares, which no processor rounds differently."""
    result = values
    power = 1
    while power < powers.max():
        power *= 2
        values = values * values
        result = np.where(powers >= power, values, result)
    return result


def _root(values: FloatArray, powers: IndexArray) -> FloatArray:
    """Return [...] the roots of non-negative values whose powers of two these are."""
    power = 1
    while power < powers.max():
        power *= 2
        values = np.where(powers >= power, np.sqrt(values), values)
    return values


class Fill(NamedTuple):
    """A form of all units; those by columns are anywhere."""

    placement: Placement
    cuts: IndexArray
    """[units] the option by columns of each unit; -1: it has none."""
    even_ms: float
    """What it costs if all shards by columns are alike."""


def fills(problem: Problem, forms: Forms, options: OptionTable, traits: FloatArray, best: Placement) -> list[Fill]:
    """Return fills that may cost less than a placement, the cheapest if all shards are alike first.

    Args:
        problem: what is placed.
        forms: of its units.
        options: cuts of its units by columns.
        traits: [kinds, levels + 1] additive times, traffic, and memory.
        best: units that are neither by columns nor copied, or in host memory, stay as they are here.
    """
    is_free = np.isin(families_of(problem, best), (COLUMNS, REPLICATED))
    is_free[problem.kinds.unit[best.kinds[problem.kinds.kernel[best.kinds] != ON_DEVICE]]] = False
    free = np.flatnonzero(is_free)
    kinds_of = {unit: {form.family: int(form.pieces[0]) for form in forms.of(unit)} for unit in free.tolist()}
    copies = {unit: own[REPLICATED] for unit, own in kinds_of.items() if REPLICATED in own}
    whole = np.array([unit for unit in copies if COLUMNS in kinds_of[unit]], dtype=np.int64)
    # All of these ascend. Without the flag, NumPy would load its masked arrays.
    always = np.setdiff1d(np.array(list(copies), dtype=np.int64), whole, assume_unique=True)
    by_columns = np.setdiff1d(free, always, assume_unique=True)
    columns = problem.kinds.traffic[problem.whole, POOLED]
    if not len(by_columns) or (columns[by_columns] != np.rint(columns[by_columns])).any():
        return []
    prices = problem.step_cost.prices(problem.device_levels([best])[0].max(axis=0))
    copied = np.array([copies[unit] for unit in whole.tolist()], dtype=np.int64)
    own, all_copies = (weighted_sum(traits[kinds][:, :NUM_LEVELS], prices) for kinds in (problem.whole[whole], copied))
    order = whole[np.argsort((all_copies - own / problem.num_devices) / columns[whole], kind="stable")]
    stays = best.at(~is_free[problem.kinds.unit[best.kinds]])
    (best_ms,) = problem.total_ms([best]).tolist()
    every = np.arange(problem.num_devices)
    found: list[Fill] = []
    for count, peak in _counts(problem, columns, by_columns, order):
        filled = np.setdiff1d(by_columns, order[:count], assume_unique=True)
        kinds = np.array([copies[unit] for unit in (*always.tolist(), *order[:count].tolist())], dtype=np.int64)
        placement = Placement.joined(
            stays,
            Placement(kinds=np.repeat(kinds, len(every)), devices=np.tile(every, len(kinds))),
            Placement(kinds=problem.whole[filled], devices=every[filled % len(every)]),
        )
        for cuts in _cuts(problem, options, filled, peak):
            even_ms = _even_ms(problem, stays, kinds, options.shards(cuts), peak)
            if even_ms < best_ms * (1 - problem.tuning.least_round_gain):
                of_units = np.full(len(problem.units), -1)
                of_units[filled] = cuts
                found.append(Fill(placement, of_units, even_ms))
    return sorted(found, key=lambda fill: fill.even_ms)


def _counts(
    problem: Problem, columns: FloatArray, by_columns: IndexArray, order: IndexArray
) -> Iterator[tuple[int, float]]:
    """Yield the fewest copies, and the columns of each device, of all numbers of columns that are fewer by a step."""
    step = float(np.gcd.reduce(problem.min_shard_width[by_columns]))
    left, before = float(columns[by_columns].sum()), np.inf
    for count, copied in enumerate((0.0, *columns[order].tolist())):
        left -= copied
        peak = float(np.ceil(left / problem.num_devices / step)) * step
        if 0 < peak < before:
            yield count, peak
        before = peak


def _cuts(problem: Problem, options: OptionTable, units: IndexArray, peak: float) -> Iterator[IndexArray]:
    """Yield [units] cuts of these units into shards that are no wider than a part of the peak, the fewest."""
    known = set[bytes]()
    widest = problem.kinds.traffic[options.kinds[options.start], POOLED]
    for parts in PARTS_OF_PEAK:
        fitting = np.where(widest <= peak / parts, np.arange(len(widest)), len(widest))
        cuts = np.minimum.reduceat(fitting, options.first)[units]
        if (cuts < len(widest)).all() and cuts.tobytes() not in known:
            known.add(cuts.tobytes())
            yield cuts


def _even_ms(problem: Problem, stays: Placement, copies: IndexArray, shards: IndexArray, peak: float) -> float:
    """Return the cost where all shards by columns are alike, as many as the device with most has on each."""
    kinds, every = problem.kinds, problem.num_devices
    most = -(-len(shards) // every)
    num_alike = most * every / len(shards)
    levels = np.zeros(NUM_LEVELS)
    sums, traffic = (
        (values[stays.kinds].sum(axis=0) + num_alike * values[shards].sum(axis=0)) / every + values[copies].sum(axis=0)
        for values in (kinds.representation, kinds.traffic)
    )
    levels[TIMES] = problem.pass_levels(sums[None])[0]
    levels[TRAFFIC] = traffic
    levels[TRAFFIC.start + POOLED] = max(peak, most * float(kinds.traffic[shards, POOLED].min()))
    return float(problem.step_cost.total_ms(levels))
