"""What placements promise."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.search.estimator import most_promising, promised_ms
from support.builders import request, table, tables, topology
from support.depth import generated
from support.planner.searches import placed, problem_of, random_placement, search_requests


@generated(15, 40)
@given(asked=search_requests(), seed=st.integers(0, 10**6))
def test_no_placement_costs_less_than_it_promises(asked: PlanRequest, seed: int) -> None:
    """Nor does any other of the same shards: the mean device has what all have, and some device the largest shard."""
    problem = problem_of(asked)
    placement = random_placement(problem, random.Random(seed))  # noqa: S311 - draws test data

    (promised,) = promised_ms(problem, [placement])

    assert promised <= problem.total_ms([placement])[0] * (1 + 1e-6)


def test_an_even_placement_costs_what_it_promises() -> None:
    """Equal tables, one on each device."""
    problem = problem_of(request(*tables(2), topology=topology(2)))
    even = placed(problem, (0, 64, 0), (1, 64, 1))

    assert promised_ms(problem, [even])[0] == pytest.approx(problem.total_ms([even])[0], rel=1e-6)


def test_whole_tables_promise_more_than_narrow_shards_that_cost_less_as_they_are() -> None:
    """The cuts are even already, and their further shards cost something; the whole tables could be evened out."""
    problem = problem_of(request(*(table(f"t{n}", pooling_factor=40.0) for n in range(4)), topology=topology(2)))
    uneven = placed(problem, *((unit, 64, 0) for unit in range(4)))
    cut = placed(problem, *((unit, 32, device) for unit in range(4) for device in range(2)))
    totals = problem.total_ms([cut, uneven])
    assert totals[0] < totals[1]

    assert most_promising(problem, [cut, uneven]) == [1, 0]
    assert most_promising(problem, []) == []
