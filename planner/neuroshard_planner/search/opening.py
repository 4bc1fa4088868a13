"""The opening: descents from the most promising proposals, before any course.

A small budget ends here, with a plan that has been through local search; a larger one has starts for its courses. Local
search evens out what greedy placement left uneven, so that the start that promises most descends to its end, and the
others as far as the work goes.
"""

from collections.abc import Sequence

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.beam_search import SplitSearch
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.promise import most_promising


def opened(
    problem: Problem,
    splits: SplitSearch,
    local: LocalSearch,
    whole: LocalSearch,
    *,
    starts: Sequence[Placement],
    work_budget: int,
) -> list[Placement]:
    """Return the results of local search from the most promising starts, best start first, and the cheapest start.

    Empty: none fits.

    Args:
        problem: what is placed.
        splits: proposes lists of shards.
        local: improves placements within the same work.
        whole: improves the most promising one, in more work.
        starts: placements known already; the cheapest is one start.
        work_budget: ``problem.work`` at which the opening ends.
    """
    found = [candidate.placement for candidate in splits.proposed(problem.tuning.opening_grid, problem.tuning.num_best)]
    if starts:
        found.append(starts[int(problem.total_ms(starts).argmin())])
    improved: list[Placement] = []
    for position in most_promising(problem, found):
        if improved and problem.work >= work_budget:
            break
        improved.append((local if improved else whole).improve(found[position]))
    cheapest = found[int(problem.total_ms(found).argmin())] if found else None
    return improved if cheapest is None else [*improved, cheapest]
