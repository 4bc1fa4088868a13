"""The neural search: courses of splitting, placing and local search, then perturbations of the best placement.

Local search splits a table whenever that lowers the cost, and ends among many narrow shards, from which no step leads
back to few. So there are courses in which no table has more than a few shards, and one without that limit.
Perturbed placements descend in all of them in turn. In the end shards are merged again as far as the cost stays equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem, ShardSize
from neuroshard_planner.search.beam_search import SplitSearch
from neuroshard_planner.search.consolidation import consolidated
from neuroshard_planner.search.greedy_placement import tangent
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.packing import Packing
from neuroshard_planner.search.perturbation import Kicks
from neuroshard_planner.search.sharding_options import OptionTable

TIGHT = 0.9  # share of all memory in use above which a packing is one more start
CLOSE_ENOUGH = 0.001  # gap to the lower bound at which nothing is left to gain
FEW_SHARDS = (2, 4)  # most of a table in the first courses; the last has no such limit
MOST_CAPPED_UNITS = 2000  # above it one course takes the whole time
SPLIT_SHARE = 2 / 3  # of a course's work that splitting and placing may take
MOST_STALLED = 100  # perturbations in a row that improve nothing before the search ends
CONSOLIDATION_SHARE = 0.1  # of the work budget, on top of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A placement and how it was found."""

    placement: Placement
    placements: int = 1
    levels: int = 0
    improvements: int = 0
    budget_exhausted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """A way to search: with a limit on the shards of a table, or without."""

    options: OptionTable
    max_shards: IndexArray
    """[units]"""


def iterated(problem: Problem, *, starts: Sequence[Placement], work_budget: int, bound_ms: float) -> Found | None:
    """Return the cheapest placement that the budget of device evaluations finds. None: nothing fits.

    Args:
        problem: whose devices leave a choice.
        starts: placements known already; the cheapest is one more start.
        work_budget: device evaluations and their like, counted from here.
        bound_ms: the search ends close to it.
    """
    first = problem.work
    mean_sums = problem.kinds.representation[problem.whole].sum(axis=0) / np.float32(problem.num_devices)
    slopes = tangent(problem, mean_sums)
    courses = [_course(problem, cap) for cap in _caps(problem)]
    candidates: list[Placement] = []
    placements = levels = improvements = 0
    for position, course in enumerate(courses):
        share = work_budget / len(courses)
        until = [first + int((position + part) * share) for part in (SPLIT_SHARE, 1.0)]
        loads: FloatArray = (problem.kinds.representation @ slopes).sum(axis=1)
        splits = SplitSearch(problem, course.options, loads=loads, work_budget=until[0])
        chosen = [candidate.placement for candidate in splits.run()]
        if starts:
            chosen.append(starts[int(problem.total_ms(starts).argmin())])
        chosen += _packed(problem, is_needed=not chosen)
        local = LocalSearch(problem, slopes=slopes, work_budget=until[1])
        candidates += [local.improve(start, max_shards=course.max_shards) for start in chosen]
        placements, levels = placements + splits.placements, levels + splits.levels
        improvements += local.improvements
    if not candidates:
        return None
    totals = problem.total_ms(candidates)
    best, best_ms = candidates[int(totals.argmin())], float(totals.min())
    local = LocalSearch(problem, slopes=slopes, work_budget=first + work_budget)
    generator = np.random.default_rng(problem.request.search.seed)
    kicks = [Kicks(problem, course.options, slopes=slopes, generator=generator) for course in courses]
    turn = stalled = 0
    while problem.work < first + work_budget and best_ms > bound_ms * (1 + CLOSE_ENOUGH) and stalled < MOST_STALLED:
        turn = (turn + 1) % len(courses)
        kicked = local.improve(kicks[turn].kicked(best), max_shards=courses[turn].max_shards)
        kicked_ms = float(problem.total_ms([kicked])[0])
        stalled = stalled + 1
        if kicked_ms < best_ms:
            best, best_ms, stalled = kicked, kicked_ms, 0
    is_exhausted = problem.work >= first + work_budget
    most_work = problem.work + int(CONSOLIDATION_SHARE * work_budget)
    return Found(
        placement=consolidated(problem, best, limit_ms=best_ms, work_budget=most_work),
        placements=placements,
        levels=levels,
        improvements=improvements + local.improvements,
        budget_exhausted=is_exhausted,
    )


def _caps(problem: Problem) -> list[int | None]:
    """Return the limits on the shards of a table, one for each course."""
    most = int(problem.max_shards.max())
    is_small = len(problem.units) <= MOST_CAPPED_UNITS
    return [*(cap for cap in FEW_SHARDS if is_small and cap < most), None]


def _course(problem: Problem, cap: int | None) -> Course:
    max_shards = problem.max_shards if cap is None else np.minimum(problem.max_shards, cap)
    return Course(options=OptionTable(problem, max_shards=cap), max_shards=max_shards)


def _packed(problem: Problem, *, is_needed: bool) -> list[Placement]:
    """Return a placement found by memory alone, where it is needed or memory is tight.

    Greedy placement goes by loads first; where memory binds, a packing often leads to a better plan.
    """
    packing = Packing(problem.request, problem.units, problem.allowed)
    if not is_needed and sum(packing.whole_bytes) <= TIGHT * packing.num_usable_devices * packing.capacity_bytes:
        return []
    pieces = packing.pack(packing.capacity_bytes)
    if pieces is None:
        return []
    units = [piece.unit for piece in pieces]
    sizes = [ShardSize(problem.units[piece.unit].num_rows, piece.num_columns) for piece in pieces]
    devices = np.array([piece.device for piece in pieces], dtype=np.int64)
    return [Placement(kinds=problem.kinds_of(units, sizes), devices=devices)]
