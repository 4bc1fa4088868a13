"""The search over all families of placements: proposals from a placement by columns, then descents by all steps.

Only sets of families are tried of which a plan may cost less than what is known, by the lower bound. The cheapest
proposals of each have their other units placed again by columns; from the best, steps of local search and conversions
descend in turn, and random changes to the best placement follow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from neuroshard_costs.shards import COLUMNS, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.consolidation import consolidated, fewest_shards
from neuroshard_planner.search.conversion import Conversions, additive_traits
from neuroshard_planner.search.greedy_placement import tangent
from neuroshard_planner.search.iterated import CONSOLIDATION_SHARE, Found
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.lower_bound import Families, FamilyBounds
from neuroshard_planner.search.perturbation import Kicks
from neuroshard_planner.search.placed_options import Forms
from neuroshard_planner.search.proposals import Proposal, Proposals, bound_to_convert, packings
from neuroshard_planner.search.residual import residual_placement
from neuroshard_planner.search.sharding_options import OptionTable

NUM_REPLACED = 5  # sets of families whose cheapest proposal is kept, its units by columns placed again
NUM_HOPEFUL = 3  # further proposals, the cheapest if their levels were even over devices
NUM_CHOICES = 3  # by price, of each set of families
NUM_STARTS, NUM_BEST = 10, 3  # of placements that descend a little, and of those that go on
REFINED_SHARE = 0.25  # of the work, on top of it, for conversions of the plan by columns
PLACING_SHARE = 0.2  # of the work
FIRST_DESCENT_SHARE = 0.8
DESCENT_SHARE = 0.3
REPLACING_SHARE = 0.3  # for the units by columns of these, and as much for the descent that follows
PERTURBING_SHARE = 0.3
MOST_STALLED = 60  # random changes in a row that improve nothing
CONVERTED_SHARE = 1 / 2  # of random changes; the others change shards by columns


def mixed(
    problem: Problem,
    bounds: FamilyBounds,
    *,
    opening: Found | None,
    whole: Callable[[], Found | None],
    work_budget: int,
) -> Found | None:
    """Return the best placement of all families, which costs no more than the best by columns. None: none was found.

    Args:
        problem: some unit of which may be cut by rows or copied.
        bounds: of the problem.
        opening: what a short search by columns found. None: nothing fits.
        whole: makes the whole search by columns; called only where its result may cost less.
        work_budget: device evaluations and their like, counted from here.
    """
    may_be_by_columns = opening is not None and not bound_to_convert(problem)
    known_ms = float(problem.total_ms([opening.placement])[0]) if opening is not None and may_be_by_columns else np.inf
    sets = bounds.promising(known_ms)
    if may_be_by_columns and set(sets) <= {(COLUMNS,)}:
        return whole()
    search = MixedSearch(problem, work_budget=work_budget)
    choices = [each for families in sets for each in bounds.choices(families)[:NUM_CHOICES]]
    placements = search.run(None if opening is None else opening.placement, sets, choices)
    if not placements:
        return None
    by_columns, limit_ms = opening, bounds.by_columns_ms
    if may_be_by_columns and float(problem.total_ms(placements).min()) > limit_ms:
        by_columns = whole() or opening
        assert by_columns is not None, "the opening found a placement"
        limit_ms = float(problem.total_ms([by_columns.placement])[0])
        placements.append(by_columns.placement)
        if set(bounds.promising(limit_ms)) - {(COLUMNS,)}:
            placements.append(search.refined(by_columns.placement, work_budget=int(REFINED_SHARE * work_budget)))
    least_ms = float(problem.total_ms(placements).min())
    limit_ms = max(least_ms, min(limit_ms, least_ms * (1 + problem.request.search.shard_tolerance)))
    chosen = fewest_shards(problem, placements, limit_ms=limit_ms)
    before = by_columns or Found(placement=chosen, placements=0)
    until = problem.work + int(CONSOLIDATION_SHARE * work_budget)
    return replace(
        before,
        placement=consolidated(problem, chosen, limit_ms=limit_ms, work_budget=until),
        placements=before.placements + search.placements,
        improvements=before.improvements + search.improvements,
    )


def _content(proposal: Proposal) -> tuple[tuple[int, bytes], ...]:
    """Return equal contents for proposals that convert the same units in the same ways, wherever they are."""
    return tuple(sorted((option.unit, option.kinds.tobytes()) for option in proposal.options))


class MixedSearch:
    """Searches placements of one problem whose units may be sharded by rows or copied."""

    def __init__(self, problem: Problem, *, work_budget: int) -> None:
        """``work_budget`` is the work, in device evaluations, that a search may take from here."""
        self._problem = problem
        self._forms = Forms(problem)
        self._slopes = tangent(problem, self._forms.mean_sums())
        self._bound = bound_to_convert(problem)
        self._work = work_budget
        self.improvements = 0
        """Steps taken."""
        self.placements = 0
        """Proposals judged."""

    def run(self, start: Placement | None, sets: Sequence[Families], choices: Sequence[IndexArray]) -> list[Placement]:
        """Return the placements found, all valid; empty: none fits.

        Args:
            start: whole tables and tables cut by columns, also of units that may not be. None: no such placement fits.
            sets: of families that are tried.
            choices: [units] of a family for each unit that promise much.
        """
        problem = self._problem
        further = list(dict.fromkeys(tuple(each for each in families if each != COLUMNS) for families in sets))
        further = [families for families in further if families]
        found = [start] if start is not None and not self._bound else []
        found += self._packed(further) if start is None else self._proposed(start, further, choices)
        if not found:
            return []
        for count, share in ((NUM_STARTS, FIRST_DESCENT_SHARE), (NUM_BEST, DESCENT_SHARE)):
            starts = self._starts(found, count)
            work = int(share * self._work) // len(starts)
            found += [self._descended(placement, problem.work + work) for placement in starts]
        work = int(REPLACING_SHARE * self._work)
        for again in list(self._placed_again(self._starts(found, NUM_BEST), work)):
            found.append(self._descended(again, problem.work + work // NUM_BEST))
        found.append(self._perturbed(self._cheapest(found), problem.work + int(PERTURBING_SHARE * self._work)))
        return found

    def refined(self, placement: Placement, *, work_budget: int) -> Placement:
        """Return a placement that costs at most as much, after steps and conversions."""
        return self._descended(placement, self._problem.work + work_budget)

    def _cheapest(self, found: Sequence[Placement]) -> Placement:
        return found[int(self._problem.total_ms(found).argmin())]

    def _starts(self, found: Sequence[Placement], count: int) -> list[Placement]:
        """Return the cheapest placements, each choice of families of the units once."""
        problem, kinds = self._problem, self._problem.kinds
        first: dict[bytes, Placement] = {}
        for row in np.argsort(problem.total_ms(found), kind="stable").tolist():
            families = np.zeros(len(problem.units), dtype=np.int8)
            families[kinds.unit[found[row].kinds]] = kinds.family[found[row].kinds]
            first.setdefault(families.tobytes(), found[row])
        return list(first.values())[:count]

    def _proposed(
        self, start: Placement, further: Sequence[Families], choices: Sequence[IndexArray]
    ) -> list[Placement]:
        """Return the best proposals from a start as they are, where they fit, and with the rest placed again."""
        proposals = Proposals(self._problem, self._forms, start, slopes=self._slopes)
        every = [each for families in further for each in proposals.of(families, self._bound)]
        every += [each for families in choices if (each := proposals.choice(families)) is not None]
        self.placements += len(every)
        every = list({_content(each): each for each in reversed(every)}.values())[::-1]
        cheapest = sorted(every, key=lambda each: each.total_ms)
        firsts = list({each.families: each for each in reversed(cheapest)}.values())[::-1][:NUM_REPLACED]
        hopeful = sorted(every, key=lambda each: each.evened_ms)[:NUM_HOPEFUL]
        best: list[Proposal] = firsts + [each for each in hopeful if all(each is not other for other in firsts)]
        found = [proposals.placement(each) for each in best]
        fitting = [placement for placement in found if self._problem.fits(placement)]
        return [*fitting, *self._placed_again(found, int(PLACING_SHARE * self._work))]

    def _packed(self, further: Sequence[Families]) -> list[Placement]:
        """Return the cheapest placements by memory, as they are and with the units by columns placed again."""
        problem, cheapest = self._problem, list[tuple[float, Placement]]()
        traits = additive_traits(problem, self._slopes)
        for families in further:
            for placement in packings(problem, self._forms, traits, families, self._bound):
                self.placements += 1
                cheapest.append((float(problem.total_ms([placement])[0]), placement))
                # Placements of large sets have millions of shards, so that only those are kept which may be used.
                cheapest = sorted(cheapest, key=lambda each: each[0])[:NUM_REPLACED]
        found = [placement for _, placement in cheapest if problem.fits(placement)]
        return [*found, *self._placed_again(found, int(PLACING_SHARE * self._work))]

    def _placed_again(self, found: Sequence[Placement], work: int) -> Iterator[Placement]:
        """Yield the placements that the search by columns finds next to the other shards of each, in some work."""
        problem = self._problem
        for placement in found:
            stays = ~problem.is_cut_by_columns(placement)
            fixed = Placement(kinds=placement.kinds[stays], devices=placement.devices[stays])
            placed = residual_placement(problem, fixed, work_budget=work // len(found))
            if placed is not None and problem.fits(placed):
                yield placed

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

    def _perturbed(self, best: Placement, end: int) -> Placement:
        """Descend from random changes to the best, until nothing improves or the work ends."""
        problem = self._problem
        generator = np.random.default_rng(problem.request.search.seed)
        kicks = Kicks(problem, OptionTable(problem), slopes=self._slopes, generator=generator)
        conversions = Conversions(problem, self._forms, slopes=self._slopes, work_budget=end)
        (best_ms,) = problem.total_ms([best])
        stalled = 0
        while problem.work < end and stalled < MOST_STALLED:
            converts = generator.random() < CONVERTED_SHARE or not problem.is_cut_by_columns(best).any()
            changed = conversions.converted(best, generator) if converts else kicks.kicked(best)
            found = self._descended(changed, end)
            (found_ms,) = problem.total_ms([found])
            stalled += 1
            if found_ms < best_ms:
                best, best_ms, stalled = found, found_ms, 0
        return best
