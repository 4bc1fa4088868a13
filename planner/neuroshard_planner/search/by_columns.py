"""The search by columns: splitting, placing and local search, then perturbations of the best placement.

Local search splits a table whenever that lowers the cost, and ends among many narrow shards, from which no step leads
back to few. So of all placements found, the one with the fewest shards counts that costs at most a tolerance more than
the cheapest; in the end its shards are merged as far as the same limit allows. Splits that take load off one device
stay when the rest of the placement has changed. A merge removes one shard and its traffic and adds the columns to a
shard of the same table elsewhere. Each round takes the cheapest merge of each table in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import TIMES

from neuroshard_planner.memory.packing import Packing, Piece
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.search.assignments import Assignments
from neuroshard_planner.search.estimator import Traits, most_promising, reference_prices, tangent
from neuroshard_planner.search.local_search import LocalSearch, merged
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.partitioner import wrapped
from neuroshard_planner.search.proposers import Perturbation, SplitSearch
from neuroshard_planner.search.wide_shards import separated


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A placement and how it was found."""

    placement: Placement
    placements: int = 1
    levels: int = 0
    improvements: int = 0
    budget_exhausted: bool = False


class IteratedSearch:
    """What one search has found so far, and its phases: the opening may come long before the rest."""

    def __init__(
        self, problem: Problem, starts: Sequence[Placement], *, work_budget: int, most_rounds: int = 0
    ) -> None:
        """Prepare a search.

        Args:
            problem: whose devices leave a choice.
            starts: placements known already; the cheapest is one more start.
            work_budget: device evaluations and their like, counted from here.
            most_rounds: rounds of perturbations that may follow on top of the budget, as long as the last one gained
                or the cost is far above the bound.
        """
        begin = problem.work
        self._problem = problem
        self._starts = starts
        mean_sums = problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices
        self._slopes = tangent(problem, mean_sums)
        self._traits = Traits(problem, self._slopes)
        self.options = OptionTable(problem)
        """Cuts of all units by columns."""
        self._generator = np.random.default_rng(problem.request.search.seed)
        self._stalled = 0
        self._budget, self._most_rounds = work_budget, most_rounds
        self._is_open = False
        self._left = work_budget - (problem.work - begin)
        self.end = 0
        self.found: list[Placement] = []
        self.placements = self.levels = self.improvements = 0

    def opening(self) -> Placement | None:
        """Return the cheapest placement after the first descents. None: they found none, or are left out."""
        self._open()
        return self._problem.cheapest(self.found) if self.found else None

    def _open(self) -> None:
        """Descend from the most promising proposals, once."""
        problem, tuning = self._problem, self._problem.tuning
        if not self._is_open and len(problem.units) <= tuning.most_opened_units:
            before, least = problem.work, min(self._budget, tuning.opening_work(problem.num_devices))
            until = before + max(int(tuning.phase_share * self._budget), least)
            self.open(until=until, whole_until=max(until, before + int(2 * tuning.phase_share * self._budget)))
            self._left -= problem.work - before
        self._is_open = True

    def run(self, *, bound_ms: float) -> Found | None:
        """Return the best placement that the budget finds, the opening's work counted. None: nothing fits."""
        self._open()
        problem, tuning = self._problem, self._problem.tuning
        self.end = problem.work + self._left
        is_near = problem.is_large and self.is_within(bound_ms * tuning.near)
        if is_near:
            self.end = min(self.end, problem.work + int(tuning.short_share * self._budget))
        elif (problem.work < self.end or not self.found) and not self.is_within(
            bound_ms * (1 + tuning.least_round_gain)
        ):
            self.follow()
        if not self.found:
            return None
        self.perturb(bound_ms=bound_ms)
        for _ in range(0 if is_near else self._most_rounds):
            before_ms, is_far = self.least_ms(), self._is_far(self.least_ms(), bound_ms)
            share = 2 * tuning.phase_share if is_far else tuning.phase_share
            self.end = max(self.end, problem.work + int(share * self._budget))
            self.perturb(bound_ms=bound_ms)
            if self.least_ms() > before_ms * (1 - tuning.least_round_gain) and not is_far:
                break
        is_exhausted = problem.work >= self.end
        return Found(
            placement=self.settled(problem.work + int(tuning.short_share * self._budget)),
            placements=self.placements,
            levels=self.levels,
            improvements=self.improvements,
            budget_exhausted=is_exhausted,
        )

    def is_within(self, limit_ms: float) -> bool:
        """Return whether a placement that costs at most the limit was found."""
        return bool(self.found) and self.least_ms() <= limit_ms

    def _is_far(self, total_ms: float, bound_ms: float) -> bool:
        """Compare a cost with a bound, 0 where there is none: True where it is far above it."""
        return 0 < bound_ms < total_ms / self._problem.tuning.far

    def least_ms(self) -> float:
        """Return the cost of the cheapest placement found."""
        return float(self._problem.total_ms(self.found).min())

    def open(self, *, until: int, whole_until: int) -> None:
        """Descend from the most promising proposals and assignments; the first of a large set has more work.

        The cheapest of the starts counts as found too. Nothing is found where nothing fits.
        """
        problem, tuning = self._problem, self._problem.tuning
        splits, local, whole = self._splits(until), self._local(until), self._local(whole_until)
        starts = [candidate.placement for candidate in splits.proposed(tuning.opening_grid, tuning.num_best)]
        starts += [*splits.placed(self._assigned()), *self._known()]
        if starts and not problem.is_large:
            work = int(tuning.short_share * (whole_until - problem.work))
            starts += self._further_starts(problem.cheapest(starts), work)
        self._count(splits)
        if not starts:
            return
        ranked = [starts[position] for position in most_promising(problem, starts)]
        count = 1 if problem.is_large else len(ranked)
        self.found += whole.improve_all(ranked[:count])
        if problem.work < until:
            self.found += local.improve_all(ranked[count:])
        self.found.append(problem.cheapest(starts))
        self.improvements += local.improvements + whole.improvements

    def follow(self) -> None:
        """Split, place, and descend from the best."""
        problem, local = self._problem, self._local(self.end)
        splits = self._splits(problem.work + int(problem.tuning.split_share * (self.end - problem.work)))
        chosen = [*(candidate.placement for candidate in splits.run()), *self._known(), *_fills(problem)]
        chosen = chosen or _packed(problem)
        self.found += local.improve_all([chosen[position] for position in most_promising(problem, chosen)])
        self._count(splits)
        self.improvements += local.improvements

    def _known(self) -> list[Placement]:
        """Return the cheapest placement that was known before the search, if any was."""
        return [self._problem.cheapest(self._starts)] if self._starts else []

    def _assigned(self) -> list[IndexArray]:
        """Return the states that promise most as a whole; none of a large set."""
        if self._problem.is_large:
            return []
        problem, traits = self._problem, self._traits()
        prices = reference_prices(problem, None, traits, None)
        assignments = Assignments(problem, None, self.options, traits=traits, prices=prices, bound=())
        return assignments.by_columns()[: (problem.tuning.num_best + 1) // 2]

    def perturb(self, *, bound_ms: float) -> None:
        """Descend from random changes to the cheapest placement until nothing improves.

        A second call goes on where the first ended.
        """
        problem, local = self._problem, self._local(self.end)
        best, best_ms = problem.cheapest(self.found), self.least_ms()
        perturbation = Perturbation(problem, self.options, slopes=self._slopes, generator=self._generator)

        def starts() -> Iterator[Placement]:
            while (
                problem.work < self.end
                and best_ms > bound_ms * (1 + problem.tuning.least_round_gain)
                and (self._stalled < problem.tuning.most_stalled or self._is_far(best_ms, bound_ms))
            ):
                yield perturbation.perturbed(best)

        for _, perturbed in local.descents(starts()):
            perturbed_ms = float(problem.total_ms([perturbed])[0])
            self._stalled += 1
            if perturbed_ms < best_ms:
                best, best_ms, self._stalled = perturbed, perturbed_ms, 0
                self.found.append(perturbed)
        self.improvements += local.improvements

    def settled(self, work_budget: int) -> Placement:
        """Return the placement with the fewest shards within the request's tolerance, its shards merged."""
        limit_ms = self.least_ms() * (1 + self._problem.request.search.shard_tolerance)
        chosen = fewest_shards(self._problem, self.found, limit_ms=limit_ms)
        return consolidated(self._problem, chosen, limit_ms=limit_ms, work_budget=work_budget)

    def _further_starts(self, best: Placement, most_work: int) -> list[Placement]:
        """Return placements of other kinds than proposals that cost little more than the best of those."""
        problem, near = self._problem, self._problem.tuning.near
        best_ms = float(problem.total_ms([best])[0])
        compute_ms = float(problem.device_levels([best])[0, :, TIMES].max(axis=0).sum())
        found = separated(problem, self.options, self._loads, most_ms=near * compute_ms, most_work=most_work)
        even = wrapped(problem, best)
        found += [even] if even is not None and problem.fits(even) else []
        return [each for each, ms in zip(found, problem.total_ms(found).tolist(), strict=True) if ms <= near * best_ms]

    def _splits(self, until: int) -> SplitSearch:
        return SplitSearch(self._problem, self.options, loads=self._loads, work_budget=until)

    @property
    def _loads(self) -> FloatArray:
        """[kinds] additive."""
        return weighted_sum(self._problem.kinds.representation, self._slopes.sum(axis=1))

    def _local(self, until: int) -> LocalSearch:
        return LocalSearch(self._problem, traits=self._traits, work_budget=until)

    def _count(self, splits: SplitSearch) -> None:
        self.placements, self.levels = self.placements + splits.placements, self.levels + splits.levels


def _fills(problem: Problem) -> list[Placement]:
    """Return greedy placements of a small set by memory alone; none where half of it is free.

    They cut a table as unevenly as room asks for, to which no even cut leads.
    """
    room = problem.memory.shard_capacity_bytes * problem.num_devices
    if problem.is_large or 2 * int(problem.kinds.memory_bytes[problem.whole].sum()) < room:
        return []
    packing = Packing(problem.request)
    return [_placed(problem, pieces) for pieces in packing.fills(packing.capacity_bytes)]


def _packed(problem: Problem) -> list[Placement]:
    """Return a placement found by memory alone; empty: there is none."""
    packing = Packing(problem.request)
    pieces = packing.pack(packing.capacity_bytes)
    return [] if pieces is None else [_placed(problem, pieces)]


def _placed(problem: Problem, pieces: Sequence[Piece]) -> Placement:
    """Return a packing as a placement."""
    units = [piece.unit for piece in pieces]
    sizes = [ShardSize(problem.units[piece.unit].num_rows, piece.num_columns) for piece in pieces]
    devices = np.array([piece.device for piece in pieces], dtype=np.int64)
    return Placement(kinds=problem.kinds_of(units, sizes), devices=devices)


def fewest_shards(problem: Problem, placements: Sequence[Placement], *, limit_ms: float) -> Placement:
    """Return the placement with the fewest shards among those that cost at most the limit; the cheapest of equals.

    Shards of a table that are on one device are made one shard first, which may cost more than they seemed to.

    Args:
        problem: what is placed.
        placements: one at least.
        limit_ms: highest cost; below the cheapest placement's cost, that of this one.
    """
    placements = [merged(problem, placement) for placement in placements]  # as the plan is written down
    totals = problem.total_ms(placements)
    within = np.flatnonzero(totals <= max(limit_ms, totals.min())).tolist()
    return placements[min(within, key=lambda position: (num_pieces(problem, placements[position]), totals[position]))]


def num_pieces(problem: Problem, placement: Placement) -> int:
    """Return the shards of tables cut by columns, and one for every other table: its shards are what they must be."""
    by_columns = problem.is_cut_by_columns(placement)
    further = np.bincount(problem.kinds.unit[placement.kinds[~by_columns]])
    return int(by_columns.sum() + (further > 0).sum())


def consolidated(problem: Problem, placement: Placement, *, limit_ms: float, work_budget: int) -> Placement:
    """Return a placement of fewer shards that costs at most the limit, or the given one.

    Args:
        problem: what is placed.
        placement: costs at most the limit.
        limit_ms: highest cost.
        work_budget: ``problem.work`` at which the search for merges ends.
    """
    current = merged(problem, placement)
    while True:
        before = len(current.kinds)
        by_columns = current.kinds[problem.is_cut_by_columns(current)]
        counts = np.bincount(problem.kinds.unit[by_columns], minlength=len(problem.units))
        for unit in np.argsort(-counts, kind="stable")[: int((counts > 1).sum())].tolist():
            if problem.work >= work_budget:
                return current
            current = _merge(problem, current, unit, limit_ms)
        if len(current.kinds) == before:
            return current


def _merge(problem: Problem, placement: Placement, unit: int, limit_ms: float) -> Placement:
    """Return the placement after the cheapest merge of two of the unit's shards, if it costs at most the limit."""
    own = np.flatnonzero(problem.kinds.unit[placement.kinds] == unit)
    own = own[np.argsort(problem.kinds.num_columns[placement.kinds[own]], kind="stable")]
    pairs = [(leaves, grows) for leaves in own.tolist() for grows in own.tolist() if leaves != grows][
        : problem.tuning.num_judged
    ]
    options = [_after(problem, placement, leaves, grows) for leaves, grows in pairs]
    options = [option for option in options if problem.fits(option)]
    if not options:
        return placement
    totals = problem.total_ms(options)
    best = int(totals.argmin())
    return options[best] if totals[best] <= limit_ms else placement


def _after(problem: Problem, placement: Placement, leaves: int, grows: int) -> Placement:
    kinds: IndexArray = placement.kinds.copy()
    rows, columns = (values[kinds[grows]] for values in (problem.kinds.num_rows, problem.kinds.num_columns))
    size = ShardSize(int(rows), int(columns + problem.kinds.num_columns[kinds[leaves]]))
    kinds[grows] = problem.kinds_of([int(problem.kinds.unit[kinds[grows]])], [size])[0]
    return Placement(kinds=kinds, devices=placement.devices).at(np.arange(len(kinds)) != leaves)
