"""The search over all families of placements: proposals from a placement by columns, then descents by all steps.

Only sets of families are tried of which a plan may cost less than what is known, by the lower bound; none where that is
near it. The most promising assignments of ways to units are dealt out. From the best of each set of families, steps of
local search and conversions descend in turn, and random changes to the best placement follow.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from neuroshard_costs.shards import COLUMNS, FAMILIES, IndexArray
from neuroshard_costs.step_cost import TIMES

from neuroshard_planner.bound.choices import Families
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.assignments import Assignment, Assignments, bound_to_convert, fills
from neuroshard_planner.search.by_columns import Found, IteratedSearch, consolidated, fewest_shards
from neuroshard_planner.search.conversions import Conversions
from neuroshard_planner.search.dealing import Dealing, packed_proposal, packings, proposed
from neuroshard_planner.search.estimator import Traits, reference_prices, tangent
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.options import Forms, OptionTable, families_of
from neuroshard_planner.search.proposers import Perturbation


def with_equal_columns(
    problem: Problem, columns: IteratedSearch, found: Found | None, *, bound_ms: float, work_budget: int
) -> Found | None:
    """Return the result of a search by columns, or a placement with equal columns on all devices that costs less."""
    is_near = columns.is_within(bound_ms * (1 + problem.tuning.least_round_gain))
    if found is None or is_near or problem.is_large:
        return found
    search = MixedSearch(problem, options=columns.options, work_budget=work_budget)
    filled = search.filled([found.placement])
    if not filled:
        return found
    least_ms = min(columns.least_ms(), float(problem.total_ms(filled).min()))
    limit_ms = least_ms * (1 + problem.request.search.shard_tolerance)
    return search.settled([found.placement, *filled], before=found, limit_ms=limit_ms)


def mixed(problem: Problem, bounds: FamilyBounds, *, columns: IteratedSearch, work_budget: int) -> Found | None:
    """Return the best placement of all families, also of those by columns alone. None: none was found.

    Args:
        problem: some unit of which may be cut by rows or copied.
        bounds: of the problem.
        columns: the search by columns; it is run whole only where its result may well cost less.
        work_budget: device evaluations and their like, of which shares are taken.
    """
    by_columns: Found | None = None
    opening = columns.opening()
    if opening is None:
        by_columns = columns.run(bound_ms=bounds.by_columns_ms)
        opening = None if by_columns is None else by_columns.placement
    may_be_by_columns = opening is not None and not bound_to_convert(problem)
    known_ms = float(problem.total_ms([opening])[0]) if opening is not None and may_be_by_columns else np.inf
    is_near = problem.is_large and known_ms <= problem.tuning.near * bounds.least_ms
    sets = [] if is_near else bounds.promising(known_ms)
    if is_near or (may_be_by_columns and set(sets) <= {(COLUMNS,)}):
        by_columns = by_columns or columns.run(bound_ms=bounds.by_columns_ms)
        return with_equal_columns(problem, columns, by_columns, bound_ms=bounds.by_columns_ms, work_budget=work_budget)
    search = MixedSearch(problem, options=columns.options, work_budget=work_budget)
    placements = search.begun(opening, sets, limit_ms=known_ms)
    least_ms = float(problem.total_ms(placements).min(initial=np.inf))
    may_gain = may_be_by_columns and least_ms * problem.tuning.near > known_ms
    if may_gain and least_ms > bounds.by_columns_ms:
        by_columns = by_columns or columns.run(bound_ms=bounds.by_columns_ms)
        assert by_columns is not None, "the opening found a placement"
        known_ms = float(problem.total_ms([by_columns.placement])[0])
        placements.append(by_columns.placement)
    if not placements:
        return None
    if least_ms < known_ms:
        placements += search.deepened(placements, is_whole=by_columns is None)
    elif set(bounds.promising(known_ms)) - {(COLUMNS,)}:
        placements.append(search.refined(placements[-1]))
    if bounds.least_ms < float(problem.total_ms(placements).min()) * (1 - problem.tuning.least_round_gain):
        placements += search.filled(placements)
    least_ms = float(problem.total_ms(placements).min())
    limit_ms = max(least_ms, min(known_ms, least_ms * (1 + problem.request.search.shard_tolerance)))
    unsearched = Found(placement=placements[0], placements=columns.placements, improvements=columns.improvements)
    return search.settled(placements, before=by_columns or unsearched, limit_ms=limit_ms)


def assignments_of(problem: Problem) -> Assignments:
    """Return the assignments of a problem of which no placement is known."""
    options, forms = OptionTable(problem), Forms(problem)
    traits = Traits(problem, tangent(problem, forms.mean_sums()))
    prices = reference_prices(problem, forms, traits(), None)
    return Assignments(problem, forms, options, traits=traits(), prices=prices, bound=bound_to_convert(problem))


class MixedSearch:
    """Searches placements of one problem whose units may be sharded by rows or copied."""

    def __init__(self, problem: Problem, *, options: OptionTable, work_budget: int) -> None:
        """Begin a search.

        Args:
            problem: what is placed.
            options: cuts of all units by columns.
            work_budget: the work, in device evaluations, of which each part of the search has a share.
        """
        self._problem = problem
        self._forms = Forms(problem)
        self._slopes = tangent(problem, self._forms.mean_sums())
        self._traits = Traits(problem, self._slopes)
        self._options = options
        self._dealing = Dealing(problem, self._options, traits=self._traits)
        self._bound = bound_to_convert(problem)
        self._work = work_budget
        self._is_large = problem.is_large and work_budget >= problem.tuning.opening_work(problem.num_devices)
        """Whether descents are long and the work is enough for whole ones."""
        self._generator = np.random.default_rng(problem.request.search.seed)
        self.improvements = 0
        """Moves and conversions made."""
        self.placements = 0
        """Assignments put into placements."""

    def begun(self, start: Placement | None, sets: Sequence[Families], *, limit_ms: float) -> list[Placement]:
        """Return the placements found first, all valid; empty: none fits, or none promises to cost less than known.

        Args:
            start: whole tables and tables cut by columns, also of units that may not be. None: no such placement fits.
            sets: of families that are tried.
            limit_ms: what a placement is known for.
        """
        problem = self._problem
        further = dict.fromkeys(tuple(each for each in families if each != COLUMNS) for families in sets)
        assignments = self._assignments(start, sets, limit_ms)
        found = [] if start is None else self._proposed(start, assignments)
        if not found and (start is None or self._bound):
            found = self._packed([families for families in further if families], assignments)
        if not found:
            return []
        known = [] if start is None or self._bound else [start]
        if self._is_large:  # whole descents of few; the opening had one
            starts, work = self._starts(found, problem.tuning.num_best), self._work
        else:
            starts = self._starts([*found, *known], problem.tuning.num_candidates)
            work = int(problem.tuning.short_share * self._work)
        return [*found, *known, *self._descended(starts, problem.work + work)]

    def deepened(self, found: Sequence[Placement], *, is_whole: bool) -> list[Placement]:
        """Return placements made of the best of these, in rounds as long as the last one gained.

        The rounds of a large set are random changes to the best alone.
        ``is_whole``: there was no search by columns, whose work counts here.
        """
        problem, made = self._problem, list[Placement]()
        work = int((problem.tuning.phase_share if is_whole else problem.tuning.short_share) * self._work)
        dealt: set[int] = set()
        for _ in range(problem.tuning.most_rounds):
            known = [*found, *made]
            before_ms = float(problem.total_ms(known).min())
            if not self._is_large:
                starts = [each for each in self._starts(known, problem.tuning.num_best) if id(each) not in dealt]
                dealt.update(map(id, starts))
                dealt_out = list(self._dealt_out(starts, work, refines=True))
                made += self._descended(dealt_out, problem.work + work)
            made.append(self._perturbed(problem.cheapest([*found, *made]), problem.work + work // 2))
            if float(problem.total_ms(made).min()) > before_ms * (1 - problem.tuning.least_round_gain):
                break
        return made

    def filled(self, found: Sequence[Placement]) -> list[Placement]:
        """Return placements with equal columns on all devices, made of the best of these where they may cost less."""
        problem, best = self._problem, self._problem.cheapest(found)
        if self._is_large:
            return []
        chosen = fills(problem, self._forms, self._options, self._traits(), best)[: problem.tuning.num_best]
        self.placements += len(chosen)
        work = int(problem.tuning.short_share * self._work)
        dealt = list(self._dealt_out([each.placement for each in chosen], work, cuts=[each.cuts for each in chosen]))
        (best_ms,) = problem.total_ms([best])
        better = [each for each, ms in zip(dealt, problem.total_ms(dealt), strict=True) if ms < best_ms]
        return self._descended(better, problem.work + work // 2)

    def settled(self, placements: Sequence[Placement], *, before: Found, limit_ms: float) -> Found:
        """Return the one with the fewest shards within the limit, its shards merged, and all work since ``before``."""
        problem = self._problem
        chosen = fewest_shards(problem, placements, limit_ms=limit_ms)
        until = problem.work + int(problem.tuning.short_share * self._work)
        return replace(
            before,
            placement=consolidated(problem, chosen, limit_ms=limit_ms, work_budget=until),
            placements=before.placements + self.placements,
            improvements=before.improvements + self.improvements,
        )

    def refined(self, placement: Placement) -> Placement:
        """Return a placement that costs at most as much, after steps and conversions."""
        until = self._problem.work + int(self._problem.tuning.short_share * self._work / 2)
        return self._descended([placement], until)[0]

    def _starts(self, found: Sequence[Placement], count: int) -> list[Placement]:
        """Return placements of all sets of families in turn, the cheapest of each first.

        Each choice of families of the units counts once.
        """
        problem = self._problem
        totals = problem.total_ms(found)
        known, num_of_set = set[bytes](), Counter[bytes]()
        turns: list[tuple[int, Placement]] = []
        for row in np.argsort(totals, kind="stable").tolist():
            families = families_of(problem, found[row])
            if families.tobytes() in known:
                continue
            known.add(families.tobytes())
            in_use = np.bincount(families, minlength=len(FAMILIES)).astype(np.bool_).tobytes()
            turns.append((num_of_set[in_use], found[row]))
            num_of_set[in_use] += 1
        return [placement for _, placement in sorted(turns, key=lambda each: each[0])[:count]]

    def _assignments(self, start: Placement | None, sets: Sequence[Families], limit_ms: float) -> list[Assignment]:
        """Return the assignments that promise most; none that gains little."""
        problem = self._problem
        prices = reference_prices(problem, self._forms, self._traits(), start)
        assignments = Assignments(
            problem, self._forms, self._options, traits=self._traits(), prices=prices, bound=self._bound
        )
        chosen = assignments.promising(sets, count=problem.tuning.num_best)
        return [each for each in chosen if each.promised_ms < limit_ms]

    def _proposed(self, start: Placement, chosen: Sequence[Assignment]) -> list[Placement]:
        """Return assignments put into a start as they are, where they fit, and the first of them dealt out."""
        problem = self._problem
        self.placements += len(chosen)
        loads = self._traits()[:, TIMES].sum(axis=1)
        found = [proposed(problem, start, self._forms, each, loads=loads, bound=self._bound) for each in chosen]
        placed = [each for each in found if each is not None]
        cuts = [each.cuts for each, placement in zip(chosen, found, strict=True) if placement is not None]
        fitting = [placement for placement in placed if problem.fits(placement)]
        return [*fitting, *self._dealt_out(placed, int(problem.tuning.phase_share * self._work), cuts=cuts)]

    def _packed(self, further: Sequence[Families], chosen: Sequence[Assignment]) -> list[Placement]:
        """Return the cheapest placements by memory, with and without assignments, as they are and dealt out."""
        problem, cheapest = self._problem, list[tuple[float, Placement]]()
        count = problem.tuning.num_best if self._is_large else problem.tuning.num_candidates
        packed: Iterator[Placement] = chain(
            (each for own in chosen if (each := packed_proposal(problem, self._forms, own.by_unit))),
            (each for own in further for each in packings(problem, self._forms, self._traits(), own, self._bound)),
        )
        for placement in packed:
            self.placements += 1
            cheapest.append((float(problem.total_ms([placement])[0]), placement))
            # Placements of large sets have millions of shards, so that only those are kept which may be used.
            cheapest = sorted(cheapest, key=lambda each: each[0])[:count]
        found = [placement for _, placement in cheapest if problem.fits(placement)]
        return [*found, *self._dealt_out(found, int(problem.tuning.phase_share * self._work))]

    def _dealt_out(
        self, found: Sequence[Placement], work: int, *, refines: bool = False, cuts: Sequence[IndexArray | None] = ()
    ) -> Iterator[Placement]:
        """Yield the placements with their shards dealt out again, in some work together; see Dealing for the cuts."""
        for placement, own in zip(found, cuts or [None] * len(found), strict=True):
            until = self._problem.work + work // len(found)
            dealt = self._dealing.dealt_out(placement, work_budget=until, refines=refines, cuts=own)
            if dealt is not None:
                yield dealt

    def _descended(self, placements: Sequence[Placement], until: int) -> list[Placement]:
        """Return the placements after steps and conversions in turn, until neither helps or the work ends."""
        problem, found, going = self._problem, list(placements), list(range(len(placements)))
        local = LocalSearch(problem, traits=self._traits, work_budget=until)
        conversions = Conversions(problem, self._forms, traits=self._traits, work_budget=until)
        while going and problem.work < until:
            improved = local.improve_all([found[position] for position in going])
            converted = [conversions.improve(each) for each in improved] if problem.tuning.has_conversions else improved
            for position, after in zip(going, converted, strict=True):
                found[position] = after
            going = [
                position
                for position, before, after in zip(going, improved, converted, strict=True)
                if after is not before
            ]
        self.improvements += local.improvements + conversions.improvements
        return found

    def _perturbed(self, best: Placement, end: int) -> Placement:
        """Descend from random changes to the best, until nothing improves or the work ends."""
        problem = self._problem
        generator = self._generator
        perturbation = Perturbation(problem, self._options, slopes=self._slopes, generator=generator)
        conversions = Conversions(problem, self._forms, traits=self._traits, work_budget=end)
        (best_ms,) = problem.total_ms([best])
        stalled = 0
        while problem.work < end and stalled < problem.tuning.most_stalled:
            changed = []
            for _ in range(problem.tuning.num_lanes):
                converts = generator.random() < 1 / 2 or not problem.is_cut_by_columns(best).any()
                changed.append(conversions.converted(best, generator) if converts else perturbation.perturbed(best))
            found = self._descended(changed, end)
            totals_ms = problem.total_ms(found)
            stalled += len(found)
            if totals_ms.min() < best_ms:
                best, best_ms, stalled = found[int(totals_ms.argmin())], float(totals_ms.min()), 0
        return best
