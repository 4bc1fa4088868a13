"""From a placement to the tables and the ledger of a plan."""

import pytest
from neuroshard_api.documents.plan_parts import Shard
from neuroshard_api.documents.request import Constraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import block_order_problem
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.tables import placement_of, table_placements
from neuroshard_planner.problem.problem import Problem
from support.builders import request, table, tables
from support.planner.exact_costs import ExactCosts
from support.planner.searches import placed, problem_of, used_bytes


def test_a_split_tables_columns_are_dealt_out_by_ascending_device() -> None:
    """Offsets follow on each other, whatever the order of the placement."""
    problem = problem_of(request(table(embedding_dim=128)))

    (found,) = table_placements(problem, placed(problem, (0, 40, 3), (0, 64, 0), (0, 24, 2)))

    assert found.sharding_type is ShardingType.COLUMN_WISE
    assert found.shards == tuple(
        Shard(device=device, num_rows=1_000_000, column_offset=offset, num_columns=columns)
        for device, offset, columns in ((0, 0, 64), (2, 64, 24), (3, 88, 40))
    )


def test_a_device_gets_the_narrowest_of_its_shards_first() -> None:
    """TorchRec takes the first one's width for all of them, and cannot register a wide one before a narrow one."""
    problem = problem_of(request(table("a", embedding_dim=128), num_devices=4))

    (found,) = table_placements(problem, placed(problem, (0, 64, 1), (0, 24, 1), (0, 40, 0)))

    assert [(shard.device, shard.num_columns) for shard in found.shards] == [(0, 40), (1, 24), (1, 64)]
    assert block_order_problem(found) is None


def test_a_whole_table_is_table_wise() -> None:
    """One shard of all its columns."""
    problem = problem_of(request(table()))

    (found,) = table_placements(problem, placed(problem, (0, 64, 1)))

    assert found.sharding_type is ShardingType.TABLE_WISE
    assert found.shards == (Shard(device=1, num_rows=1_000_000, num_columns=64),)


def test_the_tables_of_a_group_appear_one_by_one_in_the_requests_order() -> None:
    """Each whole, with its own rows and columns, on the group's device."""
    members = (
        table("a", colocation_group="g", embedding_dim=12),
        table("b"),
        table("c", colocation_group="g", num_embeddings=5),
    )
    problem = problem_of(request(*members))

    found = table_placements(problem, placed(problem, (1, 64, 0), (0, 76, 2)))

    assert [each.name for each in found] == ["a", "b", "c"]
    assert [(each.shards[0].device, each.shards[0].num_rows, each.shards[0].num_columns) for each in found] == [
        (2, 1_000_000, 12),
        (0, 1_000_000, 64),
        (2, 5, 64),
    ]


@pytest.mark.parametrize("grouped", [False, True], ids=["free", "group"])
def test_the_ledger_counts_no_more_than_the_search(grouped: bool) -> None:  # noqa: FBT001 - a case
    """And less by copies that are not alive at once: a search counts one line per table, which no moment exceeds."""
    members = tables(2, colocation_group="g" if grouped else None)
    problem = problem_of(request(*members, table("c", embedding_dim=36), num_devices=2))
    shards = [(0, 128, 0)] if grouped else [(0, 64, 0), (1, 64, 0)]
    placement = placed(problem, *shards, (len(shards), 24, 1), (len(shards), 12, 0))

    found = tables_memory(problem.memory, table_placements(problem, placement))

    for device, memory in enumerate(found):
        here = placement.kinds[placement.devices == device]
        counted = problem.memory.fixed_bytes + problem.kinds.memory_bytes[here].sum()
        assert 0 <= counted - used_bytes(memory) < 0.003 * counted


def test_an_empty_device_has_a_ledger_too() -> None:
    """It holds what every device holds."""
    problem = problem_of(request(table()))

    found = tables_memory(problem.memory, table_placements(problem, placed(problem, (0, 64, 1))))

    assert [memory.weights_bytes > 0 for memory in found] == [False, True, False, False]
    assert used_bytes(found[0]) == problem.memory.fixed_bytes


def test_a_plan_read_back_has_the_same_shards_and_cost() -> None:
    """From placement to document and back nothing is lost: groups, splits, devices and cost."""
    members = [table(f"t{index}", embedding_dim=128, pooling_factor=4.0 * 3**index) for index in range(5)]
    asked = request(*members, constraints=Constraints(colocate=(("t0", "t2"),)))
    bundle = ExactCosts(asked.topology.device)
    plan = search(asked, bundle=bundle)
    problem = Problem(asked, bundle)

    placement = placement_of(plan.tables, problem)

    assert any(table.sharding_type is ShardingType.COLUMN_WISE for table in plan.tables)
    assert table_placements(problem, placement) == plan.tables
    assert problem.total_ms([placement])[0] == pytest.approx(plan.predicted.total_ms, rel=1e-6)
