"""Bounds by prices on choices of a family for each unit."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints, Pipeline
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS, FloatArray, IndexArray
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.relaxed_cost import RelaxedCost
from neuroshard_planner.problem.step_cost import Collective
from neuroshard_planner.search.price_bound import price_bound
from support.builders import request, tables, topology

FAMILY_SETS = ((COLUMNS, REPLICATED), (ROWS, NODE_ROWS), (COLUMNS, ROWS, NODE_ROWS, REPLICATED))


def relaxed_problem(families: tuple[int, ...], *, pipeline: Pipeline) -> tuple[RelaxedCost, FloatArray, IndexArray]:
    """Return the cost of a mean device, and three random choices for each of eight units."""
    asked = request(
        *tables(8),
        topology=topology(4, num_nodes=2),
        constraints=Constraints(sharding_types=tuple(ShardingType)),
        pipeline=pipeline,
    )
    problem = Problem(asked, bundled_bundle("h100-80gb"))
    generator = np.random.default_rng(len(families))
    representation = problem.kinds.representation[problem.whole].astype(np.float64)
    traffic = np.abs(problem.kinds.traffic[problem.whole]).max() * generator.random((24, len(Collective)))
    rows = np.concatenate((np.repeat(representation, 3, axis=0) * generator.random((24, 1)) / 4, traffic), axis=1)
    return RelaxedCost(problem, families, most_traffic=traffic.sum(axis=0)), rows, np.arange(0, 24, 3)


@pytest.mark.parametrize("pipeline", [Pipeline.NONE, Pipeline.SPARSE_DIST])
@pytest.mark.parametrize("families", FAMILY_SETS)
def test_no_choice_costs_less_than_the_bound(families: tuple[int, ...], pipeline: Pipeline) -> None:
    """Nor than any tangent; the bound is near the cheapest of many choices."""
    relaxed, rows, starts = relaxed_problem(families, pipeline=pipeline)
    generator = np.random.default_rng(0)
    choices = [rows[starts + generator.integers(0, 3, 8)].sum(axis=0) for _ in range(3000)]

    least_ms = min(relaxed.tangent(choice)[0] for choice in choices)
    bound_ms = price_bound(relaxed, rows, starts).bound_ms

    assert 0.8 * least_ms < bound_ms <= least_ms
    for point, other in zip(choices[:50], choices[50:100], strict=True):
        value_ms, slopes = relaxed.tangent(point)
        assert relaxed.tangent(other)[0] >= (value_ms + slopes @ (other - point)) * (1 - 1e-9)


def test_a_bound_that_is_high_enough_is_not_raised_further() -> None:
    """It holds all the same."""
    relaxed, rows, starts = relaxed_problem((COLUMNS, REPLICATED), pipeline=Pipeline.NONE)

    bound_ms = price_bound(relaxed, rows, starts).bound_ms

    assert 0.5 * bound_ms <= price_bound(relaxed, rows, starts, enough_ms=0.5 * bound_ms).bound_ms <= bound_ms * 1.002
