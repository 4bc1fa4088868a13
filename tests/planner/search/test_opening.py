"""The first descents of the search."""

import numpy as np
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.by_columns import IteratedSearch
from support.builders import request, table, tables, topology
from support.planner.searches import placed, problem_of

UNLIMITED = 10**9


def opening(
    problem: Problem, *starts: Placement, work_budget: int = UNLIMITED, whole_budget: int = UNLIMITED
) -> list[Placement]:
    """Return the opening's placements."""
    search = IteratedSearch(problem, starts, work_budget=UNLIMITED)
    search.open(until=work_budget, whole_until=whole_budget)
    return search.found


def test_the_cheapest_placement_that_is_known_is_one_start() -> None:
    """A start at the optimum comes back even where no work is left for anything."""
    problem = problem_of(request(*tables(4, embedding_dim=4)))
    best = placed(problem, *((unit, 4, unit) for unit in range(4)))
    bad = placed(problem, *((unit, 4, 0) for unit in range(4)))

    found = opening(problem, bad, best, work_budget=problem.work + 1, whole_budget=0)

    assert problem.total_ms(found).min() <= problem.total_ms([best])[0]


def test_descents_end_with_the_work() -> None:
    """Some starts descend however little work is allowed, and the cheapest comes back; more work brings more."""
    problem = problem_of(request(*tables(6, pooling_factor=30.0)))

    few = opening(problem, work_budget=problem.work + 1)

    assert 2 <= len(few) < len(opening(problem))


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
