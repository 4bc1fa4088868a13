"""What a search shows of itself while it runs."""

import gc

import pytest
from neuroshard_api.documents.request import Constraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search_state import SearchState
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned


@pytest.mark.parametrize("types", [BY_COLUMNS, tuple(ShardingType)], ids=["by columns", "all types"])
def test_a_search_shows_costs_that_only_fall_to_that_of_its_plan(types: tuple[ShardingType, ...]) -> None:
    """Above its bound, with a share of work that grows; and the plan is the same whether someone looks or not."""
    members = [
        builders.table(f"t{index}", num_embeddings=10_000 * (index + 1), embedding_dim=32, pooling_factor=5.0 + index)
        for index in range(7)
    ]
    limits, devices = Constraints(sharding_types=types), builders.topology(4, num_nodes=2)
    asked = builders.request(*members, topology=devices, constraints=limits, search=builders.QUICK)
    seen: list[SearchState] = []
    found = plan(asked, bundle=ExactCosts(asked.topology.device), watch=seen.append)

    costs, shares = [each.best_ms for each in seen], [each.work_share for each in seen]
    assert found == planned(asked)
    assert costs == sorted(costs, reverse=True)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    assert all(each.gap >= -1e-9 for each in seen)
    assert costs[-1] == pytest.approx(found.predicted.total_ms, rel=2e-3)  # fewer shards may cost a thousandth


def test_a_watched_search_leaves_no_arrays_behind() -> None:
    """The next problem of a process, such as that of a lever, does not add to them before garbage is collected."""
    asked = builders.request(*builders.tables(7), topology=builders.topology(4, num_nodes=2), search=builders.QUICK)
    gc.collect()
    gc.disable()
    try:
        plan(asked, bundle=ExactCosts(asked.topology.device), watch=lambda _: None)
        left = [each for each in gc.get_objects() if type(each) in {Problem, FamilyBounds}]
    finally:
        gc.enable()
    assert not left
