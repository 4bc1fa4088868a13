"""Greedy placement by the networks' costs, as published."""

from builders import request, table, tables
from neuroshard_api.request import Constraints, TableConstraints
from neuroshard_planner.search.marginal_placement import marginal_placement
from searches import problem_of, shards_of


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


def test_evaluations_in_bulk_are_counted_and_cost_less_work() -> None:
    """A plan's statistics name every evaluation; the budget goes by what takes time."""
    problem = problem_of(request(*tables(8)))
    before = problem.evaluations, problem.work

    marginal_placement(problem, problem.whole)

    evaluations, work = problem.evaluations - before[0], problem.work - before[1]
    assert evaluations >= 8 * 4 * 11
    assert 0 < work < evaluations / 2
