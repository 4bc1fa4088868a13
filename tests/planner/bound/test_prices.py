"""Bounds by prices on choices of a family for each unit."""

from itertools import product

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints, Pipeline
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS, FloatArray
from neuroshard_costs.step_cost import NUM_LEVELS, Collective
from neuroshard_planner.bound.choices import Choices
from neuroshard_planner.bound.prices import price_bound
from neuroshard_planner.bound.relaxed_cost import RelaxedCost
from neuroshard_planner.problem.problem import Problem
from support.builders import request, tables, topology

ROUNDED = 1e-7  # relative: the networks round demands to 2^-24 of the largest
FAMILY_SETS = ((COLUMNS, REPLICATED), (ROWS, NODE_ROWS), (COLUMNS, ROWS, NODE_ROWS, REPLICATED))


def levels_of(traffic: FloatArray) -> FloatArray:
    """Return the levels of a device with this traffic [collectives] and nothing to compute."""
    return np.append(np.zeros(NUM_LEVELS - len(traffic)), traffic)


def relaxed_problem(families: tuple[int, ...], *, pipeline: Pipeline) -> tuple[RelaxedCost, Choices]:
    """Return the cost of a mean device, and three random choices for each of eight units, most of the first family."""
    asked = request(
        *tables(8),
        topology=topology(4, num_nodes=2),
        constraints=Constraints(sharding_types=tuple(ShardingType)),
        pipeline=pipeline,
    )
    problem = Problem(asked, bundled_bundle("h100-80gb"))
    generator = np.random.default_rng(len(families))
    demands = problem.least_demands(problem.whole)
    traffic = np.abs(problem.kinds.traffic[problem.whole]).max() * generator.random((24, len(Collective)))
    rows = np.concatenate((np.repeat(demands, 3, axis=0) * generator.random((24, 1)) / 4, traffic), axis=1)
    starts = np.arange(0, 24, 3)
    least, most = (each.reduceat(traffic, starts, axis=0).sum(axis=0) for each in (np.minimum, np.maximum))
    others = generator.permutation(24)[: 2 * len(families)]
    family = np.full(24, families[0])
    family[others] = np.resize(families, len(others))
    choices = Choices(
        rows, np.repeat(np.arange(8), 3), family, np.ones(24), np.zeros((24, NUM_LEVELS)), np.zeros(24, dtype=np.bool_)
    )
    return RelaxedCost(problem, families, least, most, levels_of(1.1 * least)), choices


@pytest.mark.parametrize("pipeline", [Pipeline.NONE, Pipeline.SPARSE_DIST])
@pytest.mark.parametrize("families", FAMILY_SETS)
def test_no_choice_costs_less_than_the_bound(families: tuple[int, ...], pipeline: Pipeline) -> None:
    """Of those that use all families, nor than any tangent; the bound is near the cheapest of all."""
    relaxed, given = relaxed_problem(families, pipeline=pipeline)
    chosen = np.arange(0, 24, 3) + np.array(list(product(range(3), repeat=8)))
    uses_all = np.all([(given.family[chosen] == family).any(axis=1) for family in families], axis=0)
    choices = list(given.rows[chosen[uses_all]].sum(axis=1))

    least_ms = min(relaxed.tangent(choice)[0] for choice in choices)
    bound_ms, _ = price_bound(relaxed.tangent, given)

    assert 0.8 * least_ms < bound_ms <= least_ms * (1 + ROUNDED)
    for point, other in zip(choices[:50], choices[50:100], strict=True):
        value_ms, slopes = relaxed.tangent(point)
        assert relaxed.tangent(other)[0] >= (value_ms + slopes @ (other - point)) * (1 - ROUNDED)


def test_a_bound_that_is_high_enough_is_not_raised_further() -> None:
    """It holds all the same."""
    relaxed, choices = relaxed_problem((COLUMNS, REPLICATED), pipeline=Pipeline.NONE)

    bound_ms, _ = price_bound(relaxed.tangent, choices)
    enough_ms, _ = price_bound(relaxed.tangent, choices, enough_ms=0.5 * bound_ms)

    assert 0.5 * bound_ms <= enough_ms <= bound_ms * 1.002


@pytest.mark.parametrize("num_columns", [40.0, 160.0])
def test_a_load_that_is_known_costs_what_the_collective_takes(num_columns: float) -> None:
    """Mean and peak are the same where every choice brings as much; a device that has more decides."""
    asked = request(*tables(8), topology=topology(4, num_nodes=2), pipeline=Pipeline.NONE)
    problem = Problem(asked, bundled_bundle("h100-80gb"))
    mean = np.zeros(problem.least_demands(problem.whole).shape[1] + len(Collective))
    mean[Collective.POOLED_EMBEDDINGS - len(Collective)] = num_columns
    traffic = mean[-len(Collective) :]

    def tangent_ms(peak: float) -> float:
        of_some_device = levels_of(peak / num_columns * traffic)
        return RelaxedCost(problem, (COLUMNS,), traffic, traffic, of_some_device).tangent(mean)[0]

    exchange = problem.step_cost.collective(Collective.POOLED_EMBEDDINGS)
    known, higher = exchange.total_ms(np.array([num_columns, 3 * num_columns])).tolist()
    assert tangent_ms(3 * num_columns) - tangent_ms(0.0) == pytest.approx(higher - known)
    assert tangent_ms(num_columns) == tangent_ms(0.0)


@pytest.mark.parametrize("collective", [Collective.NODE_ROW_SUMS, Collective.GRADIENTS])
@pytest.mark.parametrize("tolerance_ms", [0.001, 0.05])
def test_the_time_of_a_reduction_is_just_above_one_of_its_lines(collective: Collective, tolerance_ms: float) -> None:
    """At every load that takes no longer than the limit; with more tolerance there are fewer lines."""
    asked = request(*tables(8, num_embeddings=100_000), topology=topology(4, num_nodes=2))
    problem = Problem(asked, bundled_bundle("h100-80gb"))
    curve = problem.step_cost.collective(collective)
    most = np.zeros(len(Collective)) + float(curve.knots[-1])
    relaxed = RelaxedCost(problem, (NODE_ROWS, REPLICATED), 0.0 * most, most, np.zeros(NUM_LEVELS))
    loads = np.linspace(curve.knots[0], curve.knots[-1], 1000)

    lines = relaxed.lines(collective, most_ms=np.inf, tolerance_ms=tolerance_ms)
    below = np.array([ms + rate * loads for ms, rate in lines])
    times = curve.total_ms(loads)

    close = (below <= times * (1 + ROUNDED)) & (below >= times - 2.1 * tolerance_ms)
    assert close.any(axis=0).all()
    assert len(lines) >= len(relaxed.lines(collective, most_ms=np.inf, tolerance_ms=10 * tolerance_ms))
    assert len(lines) >= len(relaxed.lines(collective, most_ms=float(times[300]), tolerance_ms=tolerance_ms))
