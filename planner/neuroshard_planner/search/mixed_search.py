"""The search over all families of placements: proposals from a placement by columns, then descents by all steps.

For each set of further families, units are ranked by what the cheapest of its options saves on the mean device, and
the first 1, 2, 3, ... of them are converted at once: a family pays for its call and its collectives as soon as
one table has it, which no step that converts a single table may earn back. From the cheapest proposals steps of local
search and conversions descend in turn; random changes to the best placement follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from neuroshard_api.sharding import Family, ShardingType
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective
from neuroshard_planner.search.consolidation import consolidated, fewest_shards
from neuroshard_planner.search.conversion import Conversions, additive_traits
from neuroshard_planner.search.greedy_placement import tangent
from neuroshard_planner.search.iterated import CONSOLIDATION_SHARE, Found
from neuroshard_planner.search.local_search import MEMORY, LocalSearch
from neuroshard_planner.search.perturbation import Kicks
from neuroshard_planner.search.placed_options import Form, Forms, PlacedOption, with_options, without_units
from neuroshard_planner.search.residual import residual_placement
from neuroshard_planner.search.sharding_options import OptionTable

FURTHER = (Family.ROWS, Family.NODE_ROWS, Family.REPLICATED)
NUM_REPLACED = 5  # sets of families whose cheapest proposal is kept, its units by columns placed again
NUM_HOPEFUL = 3  # further proposals, the cheapest if their levels were even over devices
NUM_STARTS = 4
PLACING_SHARE = 0.4  # of the work
DESCENT_SHARE = 0.4  # random changes take the rest
MOST_STALLED = 60  # random changes in a row that improve nothing


class Proposal(NamedTuple):
    """A placement to begin with."""

    placement: Placement
    families: bytes
    """Equal for equal sets of families in use."""
    total_ms: float
    """Infinite where it does not fit."""
    evened_ms: float
    """What it would cost if it were even."""


def mixed(problem: Problem, by_columns: Found | None, *, work_budget: int) -> Found | None:
    """Return the best placement of all families; by columns alone where that is cheaper. None: none was found.

    Args:
        problem: some unit of which may be cut by rows or copied.
        by_columns: the search's result where no unit is. None: nothing fits.
        work_budget: device evaluations and their like, counted from here.
    """
    search = MixedSearch(problem, work_budget=work_budget)
    placements = search.run(None if by_columns is None else by_columns.placement)
    if not placements:
        return None
    least_ms = float(problem.total_ms(placements).min())
    limit_ms = least_ms * (1 + problem.request.search.shard_tolerance)
    if by_columns is not None and not search.bound_to_convert():
        limit_ms = min(
            limit_ms, float(problem.total_ms([by_columns.placement])[0])
        )  # it has given up that share already
    chosen = fewest_shards(problem, placements, limit_ms=limit_ms)
    before = by_columns or Found(placement=chosen, placements=0)
    until = problem.work + int(CONSOLIDATION_SHARE * work_budget)
    return replace(
        before,
        placement=consolidated(problem, chosen, limit_ms=limit_ms, work_budget=until),
        placements=before.placements + search.placements,
        improvements=before.improvements + search.improvements,
    )


class MixedSearch:
    """Searches placements of one problem whose units may be sharded by rows or copied."""

    def __init__(self, problem: Problem, *, work_budget: int) -> None:
        """``work_budget`` is the work, in device evaluations, that a search may take from here."""
        self._problem = problem
        self._forms = Forms(problem)
        self._slopes = tangent(problem, self._forms.mean_sums())
        self._traits = additive_traits(problem, self._slopes)
        self._begin, self._work = problem.work, work_budget
        self.improvements = 0
        """Steps taken."""
        self.placements = 0
        """Proposals judged."""

    def run(self, start: Placement | None) -> list[Placement]:
        """Return the placements found, all valid; empty: none fits.

        Args:
            start: whole tables and tables cut by columns, also of units that may not be. None: no such placement fits.
        """
        problem = self._problem
        found = [start] if start is not None and not self.bound_to_convert() else []
        best = self._best_proposals(start)
        found += [each.placement for each in best if np.isfinite(each.total_ms)]
        for each in best:
            fixed = self._fixed(each.placement)
            placed = residual_placement(problem, fixed, work_budget=int(PLACING_SHARE * self._work) // len(best))
            found += [placed] if placed is not None and problem.fits(placed) else []
        if not found:
            return []
        starts = self._starts(found)
        end = self._begin + int((PLACING_SHARE + DESCENT_SHARE) * self._work)
        for position, placement in enumerate(starts):
            until = problem.work + (end - problem.work) // (len(starts) - position)
            found.append(self._descended(placement, until))
        found.append(self._perturbed(found[int(problem.total_ms(found).argmin())]))
        return found

    def _starts(self, found: Sequence[Placement]) -> list[Placement]:
        """Return the cheapest placement of each set of families, and the next cheapest of all: cheapest first."""
        kinds = self._problem.kinds
        ranked = [found[row] for row in np.argsort(self._problem.total_ms(found), kind="stable").tolist()]
        first = {np.unique(kinds.family[each.kinds]).tobytes(): each for each in reversed(ranked)}
        firsts = [each for each in ranked if any(each is other for other in first.values())]
        others = [each for each in ranked if all(each is not other for other in firsts)]
        return [*firsts, *others][:NUM_STARTS]

    def _best_proposals(self, start: Placement | None) -> list[Proposal]:
        """Return the cheapest proposal of each set of families, and those that would be cheapest if they were even."""
        best: list[Proposal] = []
        for placement in self._proposals(start):
            self.placements += 1
            total_ms = float(self._problem.total_ms([placement])[0]) if self._problem.fits(placement) else np.inf
            families = np.unique(self._problem.kinds.family[placement.kinds]).tobytes()
            proposed = [*best, Proposal(placement, families, total_ms, self._evened_ms(placement))]
            # Placements of large sets have millions of shards, so that only those are kept which may be used.
            cheapest = sorted(proposed, key=lambda each: each.total_ms)
            firsts = list({each.families: each for each in reversed(cheapest)}.values())[::-1][:NUM_REPLACED]
            hopeful = sorted(proposed, key=lambda each: each.evened_ms)[:NUM_HOPEFUL]
            best = firsts + [each for each in hopeful if all(each is not other for other in firsts)]
        return best

    def _fixed(self, placement: Placement) -> Placement:
        """Return the shards that are not cut by columns."""
        stays = ~self._problem.is_cut_by_columns(placement)
        return Placement(kinds=placement.kinds[stays], devices=placement.devices[stays])

    def _evened_ms(self, placement: Placement) -> float:
        """Return what a placement would cost if all its levels were even over devices."""
        problem, kinds = self._problem, self._problem.kinds
        sums = kinds.representation[placement.kinds].sum(axis=0) / np.float32(problem.num_devices)
        peaks = np.empty(NUM_LEVELS)
        peaks[TIMES] = problem.pass_levels(sums[None])[0]
        peaks[TRAFFIC] = kinds.traffic[placement.kinds].sum(axis=0) / problem.num_devices
        return float(problem.step_cost.total_ms(peaks))

    def _descended(self, placement: Placement, until: int) -> Placement:
        """Return the placement after steps and conversions in turn, until neither helps or the work ends."""
        problem = self._problem
        local = LocalSearch(problem, slopes=self._slopes, work_budget=until)
        conversions = Conversions(problem, self._forms, slopes=self._slopes, work_budget=until)
        while problem.work < until:
            before = conversions.improvements
            placement = conversions.improve(local.improve(placement))
            if conversions.improvements == before:
                break
        self.improvements += local.improvements + conversions.improvements
        return placement

    def _perturbed(self, best: Placement) -> Placement:
        """Descend from random changes to the shards by columns, until nothing improves or the work ends."""
        problem, end = self._problem, self._begin + self._work
        kicks = Kicks(
            problem,
            OptionTable(problem),
            slopes=self._slopes,
            generator=np.random.default_rng(problem.request.search.seed),
        )
        (best_ms,) = problem.total_ms([best])
        stalled = 0
        while problem.work < end and stalled < MOST_STALLED and problem.is_cut_by_columns(best).any():
            kicked = self._descended(kicks.kicked(best), end)
            (kicked_ms,) = problem.total_ms([kicked])
            stalled += 1
            if kicked_ms < best_ms:
                best, best_ms, stalled = kicked, kicked_ms, 0
        return best

    def bound_to_convert(self) -> list[int]:
        """Return the units that may neither be cut by columns nor be whole on a device."""
        types = self._problem.sharding_types
        return [unit for unit, own in enumerate(types) if ShardingType.TABLE_WISE not in own]

    def _proposals(self, start: Placement | None) -> Iterator[Placement]:
        """Yield placements in which the first units by what they save are converted, for each set of families."""
        bound, prices = self.bound_to_convert(), self._reference_prices(start)
        seen: set[tuple[tuple[int, ShardingType, int], ...]] = set()
        for size in range(1, len(FURTHER) + 1):
            for families in combinations(FURTHER, size):
                choice = self._cheapest_forms(families, prices)
                if any(unit not in choice for unit in bound):
                    continue
                savings = {unit: self._saving(start, unit, form, prices) for unit, form in choice.items()}
                ranked = sorted((unit for unit in choice if unit not in bound), key=lambda unit: -savings[unit])
                for count in (0, *_counts(len(ranked))):
                    forms = {unit: choice[unit] for unit in sorted([*bound, *ranked[:count]])}
                    key = tuple((unit, form.sharding_type, len(form.pieces)) for unit, form in forms.items())
                    placement = self._with_forms(start, forms) if forms and key not in seen else None
                    seen.add(key)
                    if placement is not None:
                        yield placement

    def _cheapest_forms(self, families: Sequence[Family], prices: FloatArray) -> dict[int, Form]:
        """Return, by unit, the form of these families that costs the mean device least; first of equals."""
        chosen: dict[int, Form] = {}
        for unit in range(len(self._problem.units)):
            forms = [form for form in self._forms.of(unit) if Family.of(form.sharding_type) in families]
            if forms:
                chosen[unit] = min(forms, key=lambda form: self._mean_cost(form, prices))
        return chosen

    def _mean_cost(self, form: Form, prices: FloatArray) -> float:
        kinds = np.concatenate(form.pieces)
        return float((self._traits[kinds] @ prices).sum()) / self._problem.num_devices

    def _saving(self, start: Placement | None, unit: int, form: Form, prices: FloatArray) -> float:
        """Return what the mean device saves by the form; without a start the bytes that it saves the fullest device."""
        kinds = self._problem.whole[[unit]]
        if start is None:
            return float(self._traits[kinds[0], MEMORY])
        kinds = start.kinds[self._problem.kinds.unit[start.kinds] == unit]
        now = float((self._traits_of(kinds) @ prices).sum()) / self._problem.num_devices
        return now - self._mean_cost(form, prices)

    def _traits_of(self, kinds: IndexArray) -> FloatArray:
        if len(self._traits) < len(self._problem.kinds):
            self._traits = additive_traits(self._problem, self._slopes)
        return self._traits[kinds]

    def _with_forms(self, start: Placement | None, forms: dict[int, Form]) -> Placement | None:
        """Return the start with units in these forms, each on the least loaded nodes. None: no room was found.

        Without a start all other units are placed too, largest first, each in as few pieces as fit.
        """
        problem = self._problem
        nothing = Placement(kinds=np.empty(0, dtype=np.int64), devices=np.empty(0, dtype=np.int64))
        base = nothing if start is None else without_units(problem, start, list(forms))
        levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
        np.add.at(levels, base.devices, self._traits_of(base.kinds))
        chosen: list[PlacedOption] = []
        waiting = list(forms) if start is not None else range(len(problem.units))
        sizes = problem.kinds.memory_bytes[problem.whole]
        for unit in sorted(waiting, key=lambda unit: (unit not in forms, -sizes[unit])):
            room = problem.memory.shard_capacity_bytes - levels[:, MEMORY]
            ways = [forms[unit]] if unit in forms else self._by_columns(unit)
            load = levels[:, TIMES].sum(axis=1) if start is not None else levels[:, MEMORY]
            option = next((each for form in ways for each in self._forms.placed(unit, form, load, room)), None)
            if option is None:
                return None
            np.add.at(levels, option.devices, self._traits_of(option.kinds))
            chosen.append(option)
        return with_options(problem, base, chosen)

    def _by_columns(self, unit: int) -> list[Form]:
        return [form for form in self._forms.of(unit) if form.sharding_type.is_by_columns]

    def _reference_prices(self, start: Placement | None) -> FloatArray:
        """Return [levels + 1] milliseconds of one unit more of each peak where all families are in use.

        Families that the start does not use are taken at half of the traffic that all units would bring them.
        """
        problem = self._problem
        peaks = self._traits[problem.whole].sum(axis=0) / problem.num_devices
        if start is not None:
            peaks = problem.device_levels([start])[0].max(axis=0)
        most = np.zeros(len(Collective))
        for unit in range(len(problem.units)):
            traffic = [problem.kinds.traffic[np.concatenate(form.pieces)].sum(axis=0) for form in self._forms.of(unit)]
            most += np.max(traffic, axis=0) / problem.num_devices
        peaks = peaks[:NUM_LEVELS].copy()
        peaks[TRAFFIC] = np.where(peaks[TRAFFIC] > 0, peaks[TRAFFIC], most / 2)
        return np.append(problem.step_cost.prices(peaks), 0.0)


def _counts(most: int) -> list[int]:
    """Return 1, 2, 3, ... up to and with ``most``, above 16 in steps of an eighth."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count += max(1, count // 8)
    return [*counts, most] if most else []
