"""A placement's cost under traffic that was not planned for."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Algorithm
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_report.explain.robustness import (
    costs_under_other_traffic,
    other_traffic,
    regrets,
    total_under,
    traffic_costs,
)
from support.builders import request, table, tables
from support.planner.exact_costs import ExactCosts
from support.planner.searches import placed, planned, problem_of


def test_draws_differ_by_at_most_the_deviation() -> None:
    """Pooling factors and skews of every table, each by a factor of its own; the rest of the request stays."""
    asked = request(*tables(6, pooling_factor=10.0, zipf_exponent=1.0))

    drawn = list(other_traffic(asked, num_draws=3, deviation=0.3))

    factors = np.array(
        [[(each.pooling_factor / 10, each.zipf_exponent) for each in one.tables.tables] for one in drawn]
    )
    assert ((factors >= 0.7) & (factors <= 1.3)).all()
    assert len(np.unique(factors)) == factors.size
    assert all(one.topology == asked.topology for one in drawn)


def test_a_plan_is_held_against_the_baselines_draw_by_draw() -> None:
    """The plan comes first; in every draw the cheapest has no regret, and worst is not less than median."""
    asked = request(*(table(f"t{index}", pooling_factor=2.0 ** (index % 7)) for index in range(9)), num_devices=3)

    found = traffic_costs(planned(asked), bundle=ExactCosts(asked.topology.device))

    assert [each.algorithm for each in found] == [Algorithm.NEUROSHARD, *BASELINES]
    assert all(each.worst_ms >= each.median_ms and each.worst_regret >= each.median_regret for each in found)
    assert min(each.median_regret for each in found) == found[0].median_regret < 0.05
    assert max(each.worst_regret for each in found) > 0.05


def test_equal_requests_are_drawn_alike() -> None:
    """Robustness of a plan is a property of the plan."""
    asked = request(*tables(3))

    assert list(other_traffic(asked, num_draws=2)) == list(other_traffic(asked, num_draws=2))


def test_without_a_deviation_the_cost_is_the_plans() -> None:
    """The same traffic costs the same."""
    problem = problem_of(request(*tables(3)))
    placement = placed(problem, (0, 64, 0), (1, 32, 1), (1, 32, 2), (2, 64, 3))
    (drawn,) = other_traffic(problem.request, num_draws=1, deviation=0.0)

    assert total_under(drawn, problem, placement) == pytest.approx(float(problem.total_ms([placement])[0]))


def test_a_measured_histogram_stays() -> None:
    """Only its lookups are off."""
    histogram = (1.0, *[0.0] * 16)
    (drawn,) = other_traffic(request(table("a", reuse_histogram=histogram, pooling_factor=2.0)), num_draws=1)

    (found,) = drawn.tables.tables
    assert found.reuse_histogram == histogram
    assert found.zipf_exponent is None
    assert found.pooling_factor != 2.0


def test_every_draw_costs_something_else() -> None:
    """The placement is the same, its traffic is not."""
    problem = problem_of(request(*tables(4, pooling_factor=30.0), num_devices=2))
    placement = placed(problem, *((unit, 64, unit % 2) for unit in range(4)))

    found = costs_under_other_traffic(problem, placement)

    assert len(set(found)) == len(found)
    assert min(found) > 0


def test_regret_is_above_the_cheapest_of_the_same_draw() -> None:
    """What is cheapest in one draw may be dear in another."""
    first, second = regrets([[1.0, 3.0, 2.0], [2.0, 2.0, 2.0]])

    assert (first.median, first.worst) == (0.0, 0.5)
    assert (second.median, second.worst) == (0.0, 1.0)
