"""Why a table is where it is."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.shards import REPLICATED
from neuroshard_planner.errors import PlanError, RequestError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.explain.table import explain_table
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns as on_columns

LEAST = SearchSettings(work_budget=300)


def planned(request: PlanRequest) -> tuple[Plan, ExactCosts]:
    """Return a plan and what it was made with."""
    bundle = ExactCosts(request.topology.device)
    return search(request, bundle=bundle), bundle


def request_of(**fields: Any) -> PlanRequest:
    """Return seven tables of rising load on three devices."""
    members = [builders.table(f"t{index}", embedding_dim=64, pooling_factor=2.0 + 5 * index) for index in range(7)]
    return builders.request(*members, num_devices=3, **{"constraints": by_columns(), "search": LEAST, **fields})


def by_columns(**fields: Any) -> Constraints:
    """Return constraints of tables that are whole or cut by columns."""
    return Constraints(sharding_types=BY_COLUMNS, **fields)


def test_a_move_costs_what_the_moved_plan_costs() -> None:
    """Every move's number is the whole plan's cost with the table there, all others staying."""
    plan, bundle = planned(request_of(constraints=by_columns(max_shards_per_table=1)))
    problem = Problem(plan.resolved, bundle)
    placement = placement_of(plan.tables, problem)

    for unit, table in enumerate(plan.tables):
        explained = explain_table(plan, table.name, bundle=bundle)

        assert explained.plan_total_ms == pytest.approx(problem.total_ms([placement])[0], rel=1e-6)
        assert len(explained.moves) == 2
        for move in explained.moves:
            devices = placement.devices.copy()
            devices[unit] = move.devices[0]
            moved = problem.total_ms([Placement(kinds=placement.kinds, devices=devices)])[0]
            assert move.total_ms == pytest.approx(moved, rel=1e-5)
            assert move.change == pytest.approx(moved / plan.predicted.total_ms - 1, abs=1e-5)


def test_a_table_adds_less_than_it_costs_alone() -> None:
    """Tables of a device share one fused kernel; alone, each would launch its own."""
    plan, bundle = planned(request_of(constraints=by_columns(max_shards_per_table=1)))

    for table in plan.tables:
        (shard,) = explain_table(plan, table.name, bundle=bundle).shards
        assert 0 < shard.adds_ms < shard.alone_ms


def test_the_verdict_says_what_every_other_device_would_cost() -> None:
    """The heaviest table of a plan without splits stays, and the sentence says by how much moving it would hurt."""
    plan, bundle = planned(request_of(constraints=by_columns(max_shards_per_table=1)))
    explained = explain_table(plan, "t6", bundle=bundle)
    least = min(move.change for move in explained.moves if move.change is not None)

    assert f"any other device would raise the step by at least {100 * least:.1f} %" in explained.verdict
    assert explained.verdict.endswith(", all else staying")
    assert explained.verdict.startswith(f"stays on device {explained.shards[0].device}: ")
    assert [split.obstacle for split in explained.splits] == ["the constraints allow 1 shards"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "a larger spec.experimental.planner.workBudget may find it"),
        ({"search": SearchSettings(shard_tolerance=1.0)}, "the search gives up as much for fewer shards"),
        ({"algorithm": Algorithm.DIM_GREEDY}, "dim_greedy does not look for it: plan with neuroshard"),
    ],
    ids=["search", "tolerance", "baseline"],
)
def test_a_better_place_is_named_with_the_reason_that_the_plan_lacks_it(changes: dict[str, Any], reason: str) -> None:
    """A larger budget is advised where the search alone missed it; fields are those that the user wrote."""
    request = request_of(settings_of="job", **changes)
    first = [on_columns(table, (0, table.embedding_dim)) for table in request.tables.tables]
    bundle = ExactCosts(request.topology.device)

    explained = explain_table(imported_plan(first, request, bundle=bundle), "t6", bundle=bundle)

    assert explained.verdict.startswith("would be better ")
    assert reason in explained.verdict


def test_the_next_best_way_is_the_cheapest_of_all_others() -> None:
    """Of a table by columns next to others by rows and copies; the option has what it adds by parts."""
    plan, bundle = planned(request_of(constraints=Constraints(), search=SearchSettings(work_budget=300)))
    names = [table.name for table in plan.tables]
    found = (explain_table(plan, name, bundle=bundle) for name in names)
    position, explained = next((place, each) for place, each in enumerate(found) if sum(part.ms for part in each.parts))
    others = (*explained.moves, *explained.splits, *explained.conversions)

    assert explained.sharding_type is plan.tables[position].sharding_type
    assert explained.next_best is not None
    assert explained.next_best.total_ms == min(each.total_ms for each in others if each.total_ms is not None)
    assert 0 < sum(part.ms for part in explained.parts) < plan.predicted.total_ms


def test_a_split_table_is_explained_with_one_shard_fewer_and_one_more() -> None:
    """One heavy table over three devices: whole it would bound the step."""
    request = builders.request(
        builders.table("heavy", embedding_dim=256, pooling_factor=100.0),
        builders.table("light"),
        num_devices=3,
        constraints=by_columns(),
    )
    plan, bundle = planned(request)

    explained = explain_table(plan, "heavy", bundle=bundle)

    assert [split.num_shards for split in explained.splits] == [len(explained.shards) - 1, len(explained.shards) + 1]
    assert explained.splits[-1].obstacle == "only 3 devices may hold it"
    assert all(move.change is not None and move.change > 0.5 for move in explained.moves)
    assert explained.memory_bytes == sum(shard.memory_bytes for shard in explained.shards)


def test_obstacles_and_constraints_are_named() -> None:
    """A pinned table cannot move, a full device cannot take it, and the request's sentences are listed."""
    request = builders.request(
        builders.table("big", num_embeddings=200_000_000, embedding_dim=64),
        builders.table("pinned", num_embeddings=150_000_000, embedding_dim=64),
        num_devices=3,
        constraints=by_columns(
            max_shards_per_table=1, forbidden_devices=(2,), tables={"pinned": TableConstraints(devices=(0,))}
        ),
    )
    plan, bundle = planned(request)

    pinned = explain_table(plan, "pinned", bundle=bundle)
    big = explain_table(plan, "big", bundle=bundle)

    assert [move.obstacle for move in pinned.moves] == ["the constraints do not allow it there"] * 2
    assert "constraints.tables.pinned.devices: only on device 0" in pinned.constraints
    assert "constraints.forbidden_devices: not on device 2" in big.constraints
    assert big.moves[0].obstacle is not None
    assert "GiB of memory" in big.moves[0].obstacle
    assert big.verdict.startswith("stays on device 1: nothing else is possible")


def test_what_a_table_says_of_its_shards_stands_in_place_of_what_all_tables_are_told() -> None:
    """A sentence that does not hold for the table would mislead."""
    own = {"t3": TableConstraints(max_shards=2)}
    plan, bundle = planned(request_of(constraints=Constraints(max_shards_per_table=1, tables=own)))

    assert explain_table(plan, "t3", bundle=bundle).constraints == ("constraints.tables.t3.max_shards: at most 2",)
    assert "constraints.max_shards_per_table: at most 1" in explain_table(plan, "t2", bundle=bundle).constraints


def test_a_group_is_explained_as_one() -> None:
    """A co-located table names the tables that go with it; it is never split."""
    plan, bundle = planned(request_of(constraints=by_columns(colocate=(("t1", "t3"),))))

    explained = explain_table(plan, "t3", bundle=bundle)

    assert explained.together_with == ("t1",)
    assert explained.shards[0].num_columns == 128
    assert [split.obstacle for split in explained.splits] == ["a co-located group is never split"]


def test_an_unknown_table_is_met_with_close_names() -> None:
    """A misspelt name gets suggestions."""
    plan, bundle = planned(request_of())

    with pytest.raises(RequestError, match=r"there is no 't66' among the plan's 7 tables; hint: did you mean 't6'"):
        explain_table(plan, "t66", bundle=bundle)


def test_another_bundle_is_refused() -> None:
    """Numbers of two cost models must not be mixed."""
    plan, bundle = planned(request_of())
    other = plan.model_copy(update={"bundle": plan.bundle.model_copy(update={"weights_sha256": "1" * 64})})

    with pytest.raises(PlanError, match="give the bundle of the plan"):
        explain_table(other, "t0", bundle=bundle)


def test_other_types_cost_what_the_converted_plan_costs() -> None:
    """A table by rows or copied is priced as the plan in which it alone is so; its present type is left out."""
    members = [builders.table(f"t{index}", num_embeddings=50_000, pooling_factor=2.0 + 5 * index) for index in range(7)]
    asked = builders.request(*members, num_devices=3, constraints=Constraints(sharding_types=tuple(ShardingType)))
    plan, bundle = planned(asked)
    problem = Problem(plan.resolved, bundle)
    placement = placement_of(plan.tables, problem)
    copy = problem.row_block(3, REPLICATED, 64)
    others = problem.kinds.unit[placement.kinds] != 3
    copied = Placement(
        kinds=np.append(placement.kinds[others], problem.kinds_of([3] * 3, [copy] * 3)),
        devices=np.append(placement.devices[others], [0, 1, 2]),
    )

    explained = explain_table(plan, "t3", bundle=bundle)

    found = {each.sharding_type: each for each in explained.conversions}
    wanted = {ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL} - {plan.tables[3].sharding_type}
    assert set(found) == wanted
    if ShardingType.DATA_PARALLEL in wanted:
        assert found[ShardingType.DATA_PARALLEL].total_ms == pytest.approx(problem.total_ms([copied])[0], rel=1e-5)


def test_types_that_constraints_do_not_name_are_no_alternatives() -> None:
    """These tables are whole or cut by columns."""
    plan, bundle = planned(request_of())

    assert explain_table(plan, "t3", bundle=bundle).conversions == ()


def test_a_table_that_may_only_be_cut_by_rows_is_whole_nowhere() -> None:
    """Every device says that the types forbid it."""
    own = {"t3": TableConstraints(sharding_types=(ShardingType.ROW_WISE,))}
    plan, bundle = planned(request_of(constraints=by_columns(tables=own)))

    explained = explain_table(plan, "t3", bundle=bundle)

    assert {move.obstacle for move in explained.moves} == {"its sharding_types do not have table_wise"}
    assert [split.obstacle for split in explained.splits] == ["the constraints allow 1 shards"]
    assert "nothing else is possible" in explained.verdict


def test_types_and_kernels_are_named_and_a_width_that_does_not_bind_is_not() -> None:
    """A table that the constraints keep whole is not too narrow to be split."""
    fused = (ComputeKernel.FUSED,)
    own = {"t2": TableConstraints(sharding_types=(ShardingType.TABLE_WISE,))}
    plan, bundle = planned(request_of(constraints=Constraints(compute_kernels=fused, tables=own)))

    assert explain_table(plan, "t2", bundle=bundle).constraints == (
        "constraints.tables.t2.sharding_types: only table_wise",
        "constraints.compute_kernels: only fused",
    )

    plan, bundle = planned(request_of(constraints=Constraints(min_shard_width=64)))
    assert explain_table(plan, "t2", bundle=bundle).constraints == (
        "it cannot be split: 64 columns, at least 64 per shard",
    )


def test_a_table_in_host_memory_says_what_it_has_there() -> None:
    """Bytes, size of the cache, and time; what it could be instead is in device memory."""
    nodes = builders.topology(4, num_nodes=2, memory_bytes=16 * builders.GIB, host_memory=builders.host_memory())
    large, hot = (
        builders.table("large", num_embeddings=300_000_000),
        builders.table("hot", num_embeddings=30_000_000, pooling_factor=40.0),
    )
    kernels = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM_CACHING)
    asked = builders.request(
        large,
        hot,
        topology=nodes,
        constraints=Constraints(compute_kernels=kernels),
        search=SearchSettings(work_budget=500),
    )
    plan, bundle = planned(asked)

    found = explain_table(plan, "large", bundle=bundle).on_host

    assert found is not None
    assert (found.kernel, found.num_bytes) == (ComputeKernel.FUSED_UVM_CACHING, 300_000_000 * 64 * 4)
    assert found.cache_load_factor == plan.tables[0].cache_load_factor
    assert found.added_ms == pytest.approx(max(each.host_link_ms for each in plan.predicted.devices), rel=1e-5)
    assert explain_table(plan, "hot", bundle=bundle).on_host is None


def test_a_table_names_its_collection() -> None:
    """By the path in the model; none where the request has none."""
    member = builders.table("t", collection="towers.users")
    plan, bundle = planned(builders.request(member))

    assert explain_table(plan, "t", bundle=bundle).collection == "towers.users"
    plan, bundle = planned(request_of())
    assert explain_table(plan, "t0", bundle=bundle).collection is None
