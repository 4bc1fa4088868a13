"""Fewer shards at equal cost."""

import random

import pytest
from neuroshard_planner.search.by_columns import consolidated, fewest_shards
from support.builders import request, table, tables
from support.planner.searches import placed, problem_of, random_placement, shards_of


def test_shards_that_lower_no_cost_are_merged() -> None:
    """A small table in four pieces next to a large one costs more than whole, for each piece reads all indices."""
    problem = problem_of(request(table("large", embedding_dim=128, pooling_factor=50.0), table("small")))
    placement = placed(problem, (0, 128, 0), *((1, 16, device) for device in range(4)))
    (total,) = problem.total_ms([placement])

    found = consolidated(problem, placement, limit_ms=total, work_budget=10**6)

    assert len(found.kinds) == 2
    assert problem.total_ms([found])[0] <= total
    assert (0, 128, 0) in shards_of(problem, found)


def test_shards_that_share_a_load_stay() -> None:
    """Merging them would raise the cost."""
    problem = problem_of(request(table("hot", embedding_dim=128, pooling_factor=100.0), num_devices=2))
    placement = placed(problem, (0, 64, 0), (0, 64, 1))

    found = consolidated(problem, placement, limit_ms=float(problem.total_ms([placement])[0]), work_budget=10**6)

    assert shards_of(problem, found) == [(0, 64, 0), (0, 64, 1)]


def test_without_work_nothing_is_merged() -> None:
    """The budget is that of the search."""
    problem = problem_of(request(table("small")))
    placement = placed(problem, *((0, 16, device) for device in range(4)))

    found = consolidated(problem, placement, limit_ms=1e9, work_budget=problem.work)

    assert len(found.kinds) == 4


@pytest.mark.parametrize("seed", range(8))
def test_consolidation_keeps_the_limit_the_columns_and_the_memory(seed: int) -> None:
    """Whatever the placement, it is a valid one of at most as many shards."""
    problem = problem_of(request(*tables(5, embedding_dim=64, pooling_factor=20.0)))
    placement = random_placement(problem, random.Random(seed))  # noqa: S311 - test data
    (total,) = problem.total_ms([placement])

    found = consolidated(problem, placement, limit_ms=total, work_budget=10**6)

    assert len(found.kinds) <= len(placement.kinds)
    assert problem.total_ms([found])[0] <= total
    assert problem.fits(found)
    for unit in range(5):
        own = [columns for each, columns, _ in shards_of(problem, found) if each == unit]
        assert sum(own) == 64


def test_fewer_shards_win_within_the_limit() -> None:
    """Of placements that cost at most the limit the one with the fewest shards counts, above it none."""
    problem = problem_of(request(table("hot", embedding_dim=128, pooling_factor=100.0), num_devices=4))
    whole, halves, quarters = (
        placed(problem, *((0, 128 // count, device) for device in range(count))) for count in (1, 2, 4)
    )
    totals = problem.total_ms([whole, halves, quarters])
    assert totals[0] > totals[1] > totals[2]

    assert fewest_shards(problem, [whole, halves, quarters], limit_ms=float(totals[1])) is halves
    assert fewest_shards(problem, [whole, halves, quarters], limit_ms=float(totals[2])) is quarters
    assert fewest_shards(problem, [whole, halves, quarters], limit_ms=0.0) is quarters


def test_the_cheapest_of_equally_many_shards_wins() -> None:
    """The limit leaves a choice; it is not a reason to pay more."""
    problem = problem_of(request(*tables(4), num_devices=2))
    uneven = placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 0), (3, 64, 1))
    even = placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 1), (3, 64, 1))

    assert fewest_shards(problem, [uneven, even], limit_ms=1e9) is even
