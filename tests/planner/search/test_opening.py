"""The first descents of the search."""

import numpy as np
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.proposers import SplitSearch, opened
from support.builders import request, table, tables, topology
from support.planner.searches import placed, problem_of

UNLIMITED = 10**9


def opening(
    problem: Problem, *starts: Placement, work_budget: int = UNLIMITED, whole_budget: int = UNLIMITED
) -> list[Placement]:
    """Return the opening's placements with the slopes and options that the planner would use."""
    slopes = tangent(problem, problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices)
    traits, options = Traits(problem, slopes), OptionTable(problem)
    loads = (problem.kinds.representation @ slopes).sum(axis=1)
    splits = SplitSearch(problem, options, loads=loads, work_budget=work_budget)
    local = LocalSearch(problem, traits=traits, work_budget=work_budget)
    whole = LocalSearch(problem, traits=traits, work_budget=whole_budget)
    return opened(problem, splits, local, whole, starts=starts, work_budget=work_budget)


def test_the_cheapest_placement_that_is_known_is_one_start() -> None:
    """A start at the optimum comes back even where no work is left for anything."""
    problem = problem_of(request(*tables(4, embedding_dim=4)))
    best = placed(problem, *((unit, 4, unit) for unit in range(4)))
    bad = placed(problem, *((unit, 4, 0) for unit in range(4)))

    found = opening(problem, bad, best, work_budget=problem.work + 1, whole_budget=0)

    assert problem.total_ms(found).min() <= problem.total_ms([best])[0]


def test_descents_end_with_the_work() -> None:
    """One start descends however little work is allowed, and the cheapest comes back; more work brings more of them."""
    problem = problem_of(request(*tables(6, pooling_factor=30.0)))

    assert len(opening(problem, work_budget=problem.work + 1)) == 2
    assert len(opening(problem)) > 2


def test_the_start_that_promises_most_descends_to_its_end() -> None:
    """Also where the work of the opening is over before; the cheaper of the starts that are known promises less."""
    problem = problem_of(request(*tables(6, pooling_factor=30.0, embedding_dim=16), topology=topology(2)))
    uneven = placed(problem, *((unit, 16, 0) for unit in range(6)))

    descended, *_, cheapest = opening(problem, uneven, work_budget=problem.work + 1)

    assert problem.total_ms([descended])[0] <= problem.total_ms([cheapest])[0]
    assert np.bincount(descended.devices).tolist() == [3, 3]


def test_nothing_is_opened_where_nothing_fits() -> None:
    """The courses then look for a packing by memory."""
    problem = problem_of(request(table("huge", num_embeddings=2 * 10**9, embedding_dim=64)))

    assert opening(problem) == []
