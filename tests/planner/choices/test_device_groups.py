"""Plans in which groups of devices each hold all tables: when they are chosen, and what they promise."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.documents.topology import Link
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import GroupLayout, ReplicationChoices
from neuroshard_costs.averages import average_ms
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.explain.alone import of_group
from neuroshard_report.explain.plan import explain_plan
from support.builders import GIB, host_memory, request, table, tables, topology
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

QUICK = SearchSettings(work_budget=2000)
SLOW = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
SMALL = tables(4, num_embeddings=20_000, embedding_dim=16, pooling_factor=5.0)


def asked(*members: Any, **fields: Any) -> PlanRequest:
    """Return a request on two nodes of four devices with a slow network, in which groups are permitted.

    Tables are cut by columns unless constraints are given: groups are formed alike, and the search is short.
    """
    nodes = topology(8, num_nodes=2, inter_node=SLOW)
    defaults = {
        "topology": nodes,
        "optimizer": Optimizer.SGD,
        "search": QUICK,
        "replication": ReplicationChoices(),
        "constraints": Constraints(sharding_types=BY_COLUMNS),
    }
    return request(*(members or SMALL), **{**defaults, **fields})


def test_small_tables_are_held_by_groups_where_the_network_is_slow() -> None:
    """An average of a few megabytes costs less than the exchanges between nodes; one that comes seldom, still less."""
    plan = planned(asked())
    seldom = planned(asked(replication=ReplicationChoices(sync_every_steps=10)))

    assert plan.replication is not None
    assert plan.replication.whole_ms is not None
    assert plan.predicted.total_ms < plan.replication.whole_ms
    assert plan.num_devices == 8
    assert plan.resolved.topology.num_devices * plan.replication.num_groups == 8
    assert 0 < average_ms(plan) < plan.predicted.total_ms
    assert seldom.predicted.total_ms < plan.predicted.total_ms
    assert any("sync_every_steps" in warning for warning in seldom.warnings)
    assert not any("replication" in warning for warning in plan.warnings)


def test_groups_store_tables_in_narrow_types_where_these_shorten_the_average() -> None:
    """They save too little on all devices; with groups the plan costs as if they were demanded."""
    members = tables(8, num_embeddings=200_000, embedding_dim=32, pooling_factor=5.0)
    nodes = ReplicationChoices(group_sizes=(4,), layouts=(GroupLayout.CONTIGUOUS,), sync_every_steps=20)
    own, permitted, demanded = (
        planned(
            asked(
                *members, replication=nodes, constraints=Constraints(sharding_types=BY_COLUMNS, data_types=data_types)
            )
        )
        for data_types in (None, (DataType.FP32, DataType.FP16), (DataType.FP16,))
    )

    assert permitted.replication is not None
    assert permitted.predicted.total_ms == pytest.approx(demanded.predicted.total_ms, rel=0.01)
    assert permitted.predicted.total_ms < 0.9 * own.predicted.total_ms
    assert permitted.stored_types is not None
    assert len(permitted.stored_types.tables) == len(members)
    assert permitted.stored_types.own_ms == pytest.approx(own.predicted.total_ms, rel=0.01)
    assert permitted.choices is not None
    types, groups = permitted.choices
    assert all(each.refusal is not None for each in types.alternatives)
    assert groups.alternatives[-1].text.endswith("narrowest types")
    assert groups.alternatives[-1].refusal is None
    assert permitted.lower_bound_ms <= permitted.predicted.total_ms
    assert not plan_problems(permitted)


def test_large_tables_are_sharded_over_all_devices() -> None:
    """An average of gigabytes costs more than it saves, and the plan is that of a request without groups."""
    large = tables(4, num_embeddings=5_000_000, embedding_dim=64)
    plan, without = planned(asked(*large)), planned(asked(*large, replication=None))

    assert plan.replication is None
    assert plan.predicted.total_ms <= without.predicted.total_ms * 1.01


def test_groups_whose_averages_take_longer_than_a_plan_take_nothing_of_a_named_budget() -> None:
    """They are not searched, and the plan is as good as without them."""
    large = tables(4, num_embeddings=50_000_000, embedding_dim=64)
    few = SearchSettings(work_budget=500)

    plan, without = (planned(asked(*large, search=few, replication=each)) for each in (ReplicationChoices(), None))

    assert plan.tables == without.tables
    assert plan.search == without.search


def test_tables_that_fit_on_no_group_are_sharded_over_all_devices() -> None:
    """Groups need their memory several times."""
    nodes = topology(8, num_nodes=2, inter_node=SLOW, memory_bytes=4 * GIB)
    wide = tables(6, num_embeddings=12_000_000, embedding_dim=64, pooling_factor=0.01)

    plan = planned(asked(*wide, topology=nodes, replication=ReplicationChoices(group_sizes=(4,))))

    assert plan.replication is None
    assert plan_problems(plan) == []


def test_groups_are_searched_in_the_types_that_are_searched_without_them() -> None:
    """All whose collectives the cost models know, but for copies on all devices; or those that constraints name."""
    hot = table("hot", num_embeddings=100_000, pooling_factor=400.0, embedding_dim=4)
    small = (hot, *tables(3, num_embeddings=1000))
    every, named = (
        planned(asked(*small, constraints=Constraints(**limits)))
        for limits in ({"excluded_sharding_types": (ShardingType.DATA_PARALLEL,)}, {"sharding_types": BY_COLUMNS})
    )

    assert every.replication is not None
    assert named.replication is not None
    assert not all(each.sharding_type.is_by_columns for each in every.tables)
    assert all(each.sharding_type.is_by_columns for each in named.tables)
    assert every.predicted.total_ms < named.predicted.total_ms


def test_copies_that_no_table_takes_leave_the_types_of_groups() -> None:
    """Each table has types of its own, which come first."""
    own = {each.name: TableConstraints(sharding_types=(ShardingType.TABLE_WISE,)) for each in SMALL}
    limits = Constraints(sharding_types=(ShardingType.DATA_PARALLEL,), tables=own)

    plan = planned(asked(constraints=limits))

    assert plan.replication is not None
    assert plan.tables == planned(asked(constraints=Constraints(tables=own))).tables
    assert Plan.from_json(plan.to_json()) == plan


def test_a_group_within_a_node_has_the_rows_of_a_node_on_all_its_devices() -> None:
    """There table_row_wise is row_wise."""
    limits = Constraints(sharding_types=(ShardingType.TABLE_ROW_WISE,))
    within = ReplicationChoices(group_sizes=(4,), layouts=(GroupLayout.CONTIGUOUS,))

    plan = planned(asked(constraints=limits, replication=within))

    assert plan.replication is not None
    assert {each.sharding_type for each in plan.tables} == {ShardingType.ROW_WISE}
    assert plan_problems(plan) == []


@generated(3, 10)
@given(
    rows=st.lists(st.integers(100, 2_000_000), min_size=1, max_size=4),
    every=st.sampled_from([1, 4, 100]),
    optimizer=st.sampled_from([Optimizer.SGD, Optimizer.ADAGRAD, Optimizer.ROWWISE_ADAGRAD]),
)
def test_no_plan_with_groups_costs_more_than_that_without(rows: list[int], every: int, optimizer: Optimizer) -> None:
    """And its parts add up, below no bound, in a plan that its own checks accept."""
    members = [table(f"t{index}", num_embeddings=count) for index, count in enumerate(rows)]
    try:
        plan = planned(asked(*members, optimizer=optimizer, replication=ReplicationChoices(sync_every_steps=every)))
    except InfeasibleError:
        assume(condition=False)
        raise

    assert plan_problems(plan) == []
    assert plan.lower_bound_ms <= plan.predicted.total_ms
    kinds = {each.kind for cost in plan.predicted.devices for each in cost.collectives}
    assert (CollectiveKind.SYNC in kinds) == (plan.replication is not None)
    if plan.replication is not None:
        assert plan.replication.whole_ms is not None
        assert plan.predicted.total_ms < plan.replication.whole_ms
        assert average_ms(of_group(plan)) == 0
        assert of_group(plan).predicted.total_ms == pytest.approx(plan.predicted.total_ms - average_ms(plan))


def test_the_cheaper_layout_is_chosen_where_both_are_permitted() -> None:
    """Contiguous groups exchange inside a node and average over the network, strided ones the other way."""
    plans = {
        layout: planned(asked(replication=ReplicationChoices(group_sizes=(4,), layouts=(layout,))))
        for layout in GroupLayout
    }
    both = planned(asked(replication=ReplicationChoices(group_sizes=(4,))))

    assert both.predicted.total_ms == min(plan.predicted.total_ms for plan in plans.values())
    found = {layout: plan for layout, plan in plans.items() if plan.replication is not None}
    for layout, plan in found.items():
        nodes = (1, 4) if layout is GroupLayout.CONTIGUOUS else (2, 2)
        assert (plan.resolved.topology.num_nodes, plan.resolved.topology.devices_per_node) == nodes


def test_the_explanation_of_a_plan_with_groups_adds_up() -> None:
    """Averages are a part of the step of their own."""
    made = asked()
    plan = planned(made)
    found = explain_plan(plan, bundle=ExactCosts(made.topology.device))

    shares = {term.name: term.ms for term in found.terms}
    assert shares["averages of copies"] == pytest.approx(average_ms(plan))
    assert sum(part.ms for part in found.gap_parts) == pytest.approx(plan.predicted.total_ms - plan.lower_bound_ms)
    best = min(each.total_ms for each in plan.baselines if each.total_ms is not None)
    assert f"is predicted {100 * (1 - plan.predicted.total_ms / best):.1f} % below" in found.trust
    assert found.helps == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"optimizer": Optimizer.ADAM}, r"replication: TorchRec averages no state of adam; hint: use one of sgd"),
        ({"topology": topology(8, host_memory=host_memory())}, r"replication: groups average device memory alone"),
        (
            {"memory": MemorySettings(managed_collision_bytes=GIB)},
            r"replication: memory.managed_collision_bytes is that of tables over all devices",
        ),
        ({"replication": ReplicationChoices(group_sizes=(3,))}, r"replication.group_sizes\[0\]: groups of 3 devices"),
        ({"constraints": Constraints(forbidden_devices=(1,))}, r"constraints.forbidden_devices: names devices"),
        (
            {"constraints": Constraints(tables={"t0": TableConstraints(devices=(1,))})},
            r"constraints.tables\['t0'\].devices: names devices, whose numbers groups share",
        ),
        (
            {"constraints": Constraints(sharding_types=(ShardingType.DATA_PARALLEL,))},
            r"replication: 't0' may be data_parallel alone",
        ),
    ],
    ids=["adam", "host memory", "managed collision", "size", "forbidden", "pinned", "copies"],
)
def test_what_groups_cannot_do_is_refused(fields: dict[str, Any], problem: str) -> None:
    """With the field, and what to leave out."""
    with pytest.raises(RequestError, match=problem):
        planned(asked(**fields))
