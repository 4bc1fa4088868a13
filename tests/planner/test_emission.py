"""Placements as tables of a plan, and back."""

import builders
import pytest
from exact_costs import ExactCosts
from neuroshard_api.plan import ShardingType
from neuroshard_api.request import Constraints
from neuroshard_planner.emission import placement_of, table_placements
from neuroshard_planner.errors import PlanError
from neuroshard_planner.problem import Problem
from neuroshard_planner.search import plan as search


def test_a_plan_read_back_has_the_same_shards_and_cost() -> None:
    """From placement to document and back nothing is lost: groups, splits, devices and cost."""
    members = [builders.table(f"t{index}", embedding_dim=128, pooling_factor=4.0 * 3**index) for index in range(5)]
    request = builders.request(*members, constraints=Constraints(colocate=(("t0", "t2"),)))
    bundle = ExactCosts(request.topology.device)
    plan = search(request, bundle=bundle)
    problem = Problem(request, bundle)

    placement = placement_of(plan.tables, problem)

    assert any(table.sharding_type is ShardingType.COLUMN_WISE for table in plan.tables)
    assert table_placements(problem, placement) == plan.tables
    assert problem.total_ms([placement])[0] == pytest.approx(plan.predicted.total_ms, rel=1e-6)


def test_what_cannot_be_scored_is_named() -> None:
    """Cost models know table-wise and column-wise shards; anything else is an error with the table's name."""
    request = builders.request()
    plan = search(request, bundle=ExactCosts(request.topology.device))
    rows = plan.tables[1].model_copy(update={"sharding_type": ShardingType.ROW_WISE})
    tables = (plan.tables[0], rows, *plan.tables[2:])

    with pytest.raises(PlanError, match=r"tables\[1\]\.sharding_type: 't1' is row_wise"):
        placement_of(tables, Problem(request, ExactCosts(request.topology.device)))
