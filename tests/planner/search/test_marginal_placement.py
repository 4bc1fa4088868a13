"""Greedy placement by the networks' costs, as published."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, TableConstraints
from neuroshard_planner.search.marginal_placement import MarginalPlacement
from neuroshard_planner.search.published_beam import halved
from support.builders import request, table, tables
from support.planner.searches import marginal_placement, problem_of, shards_of

from benchmarks.reference_search import place_greedily


def test_the_most_expensive_shard_goes_first_and_the_others_around_it() -> None:
    """One hot table has a device of its own; two cold ones share the other."""
    hot, cold = table("hot", pooling_factor=100.0), tables(2, pooling_factor=2.0)
    problem = problem_of(request(*cold, hot, num_devices=2))

    placement = marginal_placement(problem, problem.whole, dim_factors=(2.0,))

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 64, 1), (1, 64, 1), (2, 64, 0)]


def test_the_cheapest_limit_on_columns_counts() -> None:
    """More limits never give a dearer placement than any of them alone."""
    problem = problem_of(
        request(*(table(f"t{d}", embedding_dim=d, pooling_factor=200.0 / d) for d in (8, 16, 64, 128)))
    )

    alone = [marginal_placement(problem, problem.whole, dim_factors=(factor,)) for factor in (1.0, 1.5, 3.0)]
    found = marginal_placement(problem, problem.whole, dim_factors=(1.0, 1.5, 3.0))

    assert found is not None
    totals = [problem.total_ms([each])[0] for each in alone if each is not None]
    assert problem.total_ms([found])[0] == min(totals)


def test_a_limit_below_the_widest_shard_has_no_placement() -> None:
    """One table of 64 columns is four times the mean of four devices."""
    problem = problem_of(request(table("only")))

    assert marginal_placement(problem, problem.whole, dim_factors=(1.0, 3.9)) is None
    assert marginal_placement(problem, problem.whole, dim_factors=(4.0,)) is not None


def test_pinned_tables_stay_on_their_devices() -> None:
    """The published algorithm knows no constraints; a start of the search has to keep them."""
    constraints = Constraints(tables={"t0": TableConstraints(devices=(1,)), "t1": TableConstraints(devices=(1,))})
    problem = problem_of(request(*tables(3), num_devices=2, constraints=constraints))

    placement = marginal_placement(problem, problem.whole, dim_factors=(2.0,))

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 64, 1), (1, 64, 1), (2, 64, 0)]


def test_what_a_device_costs_is_evaluated_once() -> None:
    """All limits, and lists that share shards, know each other's devices; equal empty devices are one."""
    problem = problem_of(request(*tables(8)))
    placement = MarginalPlacement(problem)
    before = problem.evaluations, problem.work

    placement.cheapest([problem.whole])
    first = problem.evaluations
    placement.cheapest([problem.whole, problem.whole])

    assert 0 < first - before[0] <= 8 + 8 * 4  # each alone, and at most each on every device
    assert problem.evaluations - first == len(problem.whole)  # what each costs alone
    assert problem.work - before[1] < problem.evaluations - before[0]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((8, 16, 64)), st.integers(1, 100)), min_size=1, max_size=9), st.data())
def test_lanes_that_share_contents_place_as_each_list_alone(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    """The cheapest placement of every list is that of the published algorithm, one list after the other."""
    problem = problem_of(
        request(*(table(f"t{i}", embedding_dim=dim, pooling_factor=float(p)) for i, (dim, p) in enumerate(shapes)))
    )
    lists = halved(problem, problem.whole) or [problem.whole]
    lists += data.draw(st.lists(st.sampled_from(lists), max_size=3).map(list))

    found = MarginalPlacement(problem).cheapest(lists)

    for kinds, placed in zip(lists, found, strict=True):
        alone = place_greedily(problem, kinds)
        assert (placed.placement is None) == (alone.placement is None)
        assert placed.total_ms == pytest.approx(alone.total_ms, rel=1e-6)
