"""Placements of every family: their cost, their memory, and how they are written down."""

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Constraints, Pipeline, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import Optimizer, Pooling
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family, ShardingType
from neuroshard_api.sharding.placement_rules import placement_problems
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import pooled_exchange
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_costs.shards import COLUMNS, FAMILIES, NODE_ROWS, REPLICATED, ROWS
from neuroshard_costs.step_cost import TIMES, TRAFFIC, Collective, exchange_of_sequence_rows
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_planner.plans.tables import placement_of, table_placements
from neuroshard_planner.problem.plan_cost import device_traffic, predicted_cost, simulated_cost
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_report.explain.plan import explain_plan
from neuroshard_report.explain.table import explain_table
from neuroshard_report.html.page import render_html
from neuroshard_report.terminal.plan import render_plan
from rich.console import Console
from support.builders import request, table, topology
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, by_rows, everywhere, grid, on_node, random_placement
from support.planner.searches import planned, problem_of


def asked_of(num_nodes: int = 2, num_devices: int = 4, **fields: Any) -> PlanRequest:
    """Return a request of three tables for two nodes of two devices."""
    members = (
        table("hot", num_embeddings=100_003, embedding_dim=64, pooling_factor=20.0),
        table("wide", num_embeddings=5_001, embedding_dim=128, feature_names=("left", "right")),
        table("small", num_embeddings=17, embedding_dim=16),
    )
    return request(*members, topology=topology(num_devices, num_nodes=num_nodes), **fields)


def drawn_tables(asked: PlanRequest, seed: int) -> tuple[TablePlacement, ...]:
    """Return random placements of all families that TorchRec can run."""
    rng = random.Random(seed)  # noqa: S311 - draws test data
    return tuple(random_placement(rng, each, asked.topology) for each in asked.tables.tables)


class MeasuredCosts(ExactCosts):
    """Exact costs that say that they were measured."""

    @property
    def manifest(self) -> BundleManifest:
        """The same but for the source."""
        return super().manifest.model_copy(update={"source": "measured:test"})


def mixed_plan(costs: type[ExactCosts] = ExactCosts) -> Plan:
    """Return a plan by rows, by rows of nodes, and of copies."""
    asked = asked_of()
    hot, wide, small = asked.tables.tables
    devices = asked.topology
    tables = (by_rows(hot, devices), grid(wide, devices, (0, 64), (1, 64)), everywhere(small, devices))
    return imported_plan(tables, asked, bundle=costs(asked.topology.device))


def total_ms(problem: Problem, *tables: TablePlacement) -> float:
    """Return the cost of a plan of these tables."""
    return float(problem.total_ms([placement_of(tables, problem)])[0])


@pytest.mark.parametrize("pipeline", [Pipeline.NONE, Pipeline.SPARSE_DIST])
def test_on_one_device_rows_cost_what_whole_tables_cost(pipeline: Pipeline) -> None:
    """A single block of rows is the table, and nothing is exchanged."""
    problem = problem_of(asked_of(num_nodes=1, num_devices=1, pipeline=pipeline))
    cost = {}
    for family in (COLUMNS, ROWS, NODE_ROWS):
        sizes = [problem.row_block(index, family, unit.num_columns) for index, unit in enumerate(problem.units)]
        kinds = problem.kinds_of(range(3), sizes)
        cost[family] = problem.total_ms([Placement(kinds=kinds, devices=np.zeros(3, dtype=np.int64))])[0]

    assert cost[ROWS] == pytest.approx(cost[COLUMNS], rel=1e-6)
    assert cost[NODE_ROWS] == pytest.approx(cost[COLUMNS], rel=1e-6)


def test_a_grid_of_one_block_is_a_table_by_the_rows_of_a_node() -> None:
    """Both share a lookup and its collectives, so that their price is one."""
    asked = asked_of()
    problem = problem_of(asked)
    hot, *others = asked.tables.tables
    rest = [by_columns(each, (0, each.embedding_dim)) for each in others]

    assert total_ms(problem, grid(hot, asked.topology, (1, 64)), *rest) == total_ms(
        problem, on_node(hot, 1, asked.topology), *rest
    )


@generated(15, 40)
@given(seed=st.integers(0, 10**6), pipeline=st.sampled_from(list(Pipeline)))
def test_the_cost_never_falls_when_a_table_is_added(seed: int, pipeline: Pipeline) -> None:
    """Whatever the families: sums grow, peaks rise, and the objective rises with both."""
    asked = asked_of(pipeline=pipeline)
    problem = problem_of(asked)
    whole = placement_of(drawn_tables(asked, seed), problem)
    unit = problem.kinds.unit[whole.kinds]
    parts = [Placement(kinds=whole.kinds[unit < count], devices=whole.devices[unit < count]) for count in (1, 2, 3)]

    costs = problem.total_ms(parts)

    assert (np.diff(costs) >= -1e-6 * costs[1:]).all()


@generated(15, 40)
@given(seed=st.integers(0, 10**6))
def test_a_device_bears_the_sum_of_its_own_shards(seed: int) -> None:
    """Whatever is added up for all devices at once: no placement next to it, and no order of shards, changes that."""
    problem = problem_of(asked := asked_of())
    placed = [placement_of(drawn_tables(asked, seed + add), problem) for add in (0, 1)]
    order = np.random.default_rng(seed).permutation(len(placed[1].kinds))
    placed[1] = Placement(kinds=placed[1].kinds[order], devices=placed[1].devices[order])

    levels = problem.device_levels(placed)

    for own, placement in zip(levels, placed, strict=True):
        held = [placement.kinds[placement.devices == device] for device in range(problem.num_devices)]
        sums = np.array([problem.kinds.representation[kinds].sum(axis=0) for kinds in held])
        traffic = np.array([problem.kinds.traffic[kinds].sum(axis=0) for kinds in held])
        assert np.allclose(own[:, TIMES], problem.pass_levels(sums), rtol=1e-9)
        assert np.allclose(own[:, TRAFFIC], traffic, rtol=1e-9)


@generated(15, 40)
@given(seed=st.integers(0, 10**6))
def test_placements_of_every_family_are_written_down_and_read_back(seed: int) -> None:
    """The tables are ones that TorchRec runs, and give the placement that they came from."""
    asked = asked_of()
    problem = problem_of(asked)
    placement = placement_of(drawn_tables(asked, seed), problem)

    tables = table_placements(problem, placement)
    again = placement_of(tables, problem)

    families = {Family.of(each.sharding_type) for each in tables}
    assert {FAMILIES[code] for code in problem.kinds.family[placement.kinds]} == families
    assert sorted(zip(again.kinds, again.devices, strict=True)) == sorted(
        zip(placement.kinds, placement.devices, strict=True)
    )
    if ShardingType.GRID in {each.sharding_type for each in tables}:
        assert ShardingType.TABLE_ROW_WISE not in {each.sharding_type for each in tables}
    assert [problem for problem in placement_problems(tables, asked) if "names" not in problem] == []


@generated(10, 25)
@given(seed=st.integers(0, 10**6))
def test_a_search_never_counts_less_memory_than_the_ledger(seed: int) -> None:
    """It counts every block of rows as the first, and all moments of a step together."""
    asked = asked_of()
    problem = problem_of(asked)
    tables = drawn_tables(asked, seed)
    placement = placement_of(tables, problem)
    counted = np.bincount(
        placement.devices, weights=problem.kinds.memory_bytes[placement.kinds], minlength=problem.num_devices
    )

    ledger = tables_memory(problem.memory, tables)

    used = np.array([device.used_bytes for device in ledger])
    assert (used <= problem.memory.fixed_bytes + counted).all()


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_simulated_and_predicted_cost_agree_but_for_the_mean_of_columns(num_nodes: int) -> None:
    """A model without error predicts a plan of all families: its collectives, its updates, and its calls."""
    asked = asked_of(num_nodes=num_nodes)
    problem = problem_of(asked)
    hot, wide, small = asked.tables.tables
    placed = (
        by_rows(hot, asked.topology),
        grid(wide, asked.topology, (0, 64), (0, 64)),
        everywhere(small, asked.topology),
    )
    placement = placement_of(placed, problem)

    predicted, simulated = predicted_cost(problem, placement, "simulated:test"), simulated_cost(problem, placement)

    assert simulated.total_ms == pytest.approx(predicted.total_ms, rel=2e-3)
    assert predicted.total_ms == pytest.approx(float(problem.total_ms([placement])[0]), rel=1e-9)
    first = predicted.devices[0]
    assert [(each.kind, each.family) for each in first.collectives] == [
        (CollectiveKind.INDICES, None),
        (CollectiveKind.REDUCE_SCATTER, Family.ROWS),
        (CollectiveKind.REDUCE_SCATTER, Family.NODE_ROWS),
        (CollectiveKind.ALL_REDUCE, Family.REPLICATED),
    ]
    assert first.collectives[3].num_bytes == 4 * 17 * 16
    assert first.dense_update_ms > 0
    assert first.total_ms == pytest.approx(predicted.total_ms)


def test_tables_that_share_no_family_exchange_nothing_of_it() -> None:
    """A collective without traffic costs nothing; the first column of it pays a launch."""
    problem = problem_of(asked_of())
    peaks = np.zeros((2, 2 + len(Collective)))
    peaks[1, 2 + Collective.ROW_SUMS] = 1.0

    none, one = problem.step_cost.total_ms(peaks)

    assert none == 0.0
    assert one > 0.02


def test_rows_bring_their_traffic_to_every_device() -> None:
    """Of a table by rows all devices add up all columns, but receive a part of the indices."""
    asked = asked_of(num_nodes=1)
    problem = problem_of(asked)
    hot = asked.tables.tables[0]
    kinds = problem.kinds_of(
        [0, 0, 0],
        [
            ShardSize(hot.num_embeddings, 64),
            problem.row_block(0, ROWS, 64),
            ShardSize(hot.num_embeddings, 64, REPLICATED),
        ],
    )

    columns, rows, copies = problem.kinds.traffic[kinds]

    assert rows[Collective.ROW_SUMS] == columns[Collective.POOLED_EMBEDDINGS] == 64
    assert columns[Collective.INDICES] / 4 < rows[Collective.INDICES] < columns[Collective.INDICES]
    assert copies.tolist() == [0, 0, 0, 0, 4 * 100_003 * 64, 0]
    assert problem.kinds.num_rows[kinds].tolist() == [100_003, 25_001, 100_003]
    assert (
        device_traffic(problem, Placement(kinds=np.repeat(kinds[1], 4), devices=np.arange(4)))[:, 2].tolist()
        == [64] * 4
    )


def test_rows_of_a_sequence_travel_with_the_lookups_of_their_block() -> None:
    """Without skew a block of four has a little more than a quarter of them; of bags, a partial sum of every one."""
    rows = table("rows", num_embeddings=100_000, pooling_factor=20.0, pooling=Pooling.NONE, zipf_exponent=0.0)
    problem = problem_of(request(rows, num_devices=4))
    (kind,) = problem.kinds_of([0], [problem.row_block(0, ROWS, 64)])
    traffic = problem.kinds.traffic[kind]
    shards, _ = problem.shards_of(np.array([kind]))

    assert traffic[Collective.SEQUENCE_ROWS] == pytest.approx(64 * 20.0 / 4, rel=0.02)
    assert traffic[Collective.SEQUENCE_ROWS] > 64 * 20.0 / 4
    assert traffic[[Collective.POOLED_EMBEDDINGS, Collective.ROW_SUMS]].tolist() == [0, 0]
    assert shards.bags.tolist() == shards.lookups.tolist()


def test_the_exchange_of_sequence_rows_costs_what_an_even_one_of_as_much_does() -> None:
    """Interpolated between knots, within 2 % of the bundle's own times from one row per sample on."""
    asked = request(table("rows", pooling_factor=200.0, pooling=Pooling.NONE), num_devices=8)
    bundle = bundled_bundle("h100-80gb")
    cost = exchange_of_sequence_rows(asked, bundle)

    for columns in (64.0, 200.0, 777.0, 3_000.0, 12_800.0):
        exchange = replace(pooled_exchange(asked), mean_dim_sum=columns)
        exact = bundle.transfer_ms(np.array([columns]), exchange)[0]
        assert cost.directions_ms(columns) == pytest.approx(tuple(exact), rel=0.02)


@pytest.mark.parametrize("count", [1, 3])
def test_sequences_that_may_be_by_rows_alone_are_planned(count: int) -> None:
    """As those of managed collision are; the plan is sound, and bags next to them stay by columns."""
    alone = TableConstraints(sharding_types=(ShardingType.ROW_WISE,))
    names = [f"t{index}" for index in range(count)]
    members = (*(table(name, pooling=Pooling.NONE, pooling_factor=9.0) for name in names), table("bag"))
    by_columns = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    limits = Constraints(sharding_types=by_columns, tables=dict.fromkeys(names, alone))
    asked = request(*members, num_devices=4, constraints=limits)
    found = planned(asked)

    assert plan_problems(found) == []
    assert [each.sharding_type for each in found.tables[:-1]] == [ShardingType.ROW_WISE] * count
    assert found.tables[-1].sharding_type.is_by_columns
    assert found.lower_bound_ms <= found.predicted.total_ms


def test_a_plan_of_several_families_is_sound_and_explained() -> None:
    """Its parts sum to the step, the bound is below, and each table has a verdict."""
    plan = mixed_plan()
    bundle = ExactCosts(plan.request.topology.device)

    found = explain_plan(plan, bundle=bundle)

    assert plan_problems(plan) == []
    assert sum(term.share for term in found.terms) == pytest.approx(1.0)
    assert "dense update" in {term.name for term in found.terms}
    assert sum(part.ms for part in found.gap_parts) == pytest.approx(plan.predicted.total_ms - plan.lower_bound_ms)
    for each in plan.tables:
        assert len(explain_table(plan, each.name, bundle=bundle).shards) == 4


def test_a_measured_bundle_says_which_collectives_it_has_not_measured() -> None:
    """A simulated bundle says so of all it predicts, a measured one names the part that is simulated."""
    (warning,) = mixed_plan(MeasuredCosts).warnings

    assert "data_parallel, grid_shard, row_wise tables are those of the device simulator" in warning
    assert mixed_plan().warnings == ()


def test_a_report_of_several_families_lists_their_collectives() -> None:
    """On the terminal and in HTML, with the family and the bytes of the device that has most."""
    plan = mixed_plan()
    console = Console(width=120, record=True, file=io.StringIO())

    console.print(render_plan(plan))

    for text in (console.export_text(), render_html(plan)):
        assert all(name in text for name in ("reduce-scatter", "node_rows", "all-reduce", "replicated"))
        assert all(name in text for name in ("row_wise 0-3 (64 each)", "data_parallel 0-3"))


def test_the_ledger_of_copies_holds_their_dense_gradients() -> None:
    """Weights, row-wise state, and gradients of all rows on every device; pooled values of the own samples."""
    asked = asked_of(optimizer=Optimizer.ROWWISE_ADAGRAD)
    problem = problem_of(asked)
    hot, *others = asked.tables.tables
    rest = [by_columns(each, (3, each.embedding_dim)) for each in others]

    first = tables_memory(problem.memory, (everywhere(hot, asked.topology), *rest))[0]

    assert first.weights_bytes == 4 * 100_003 * 64
    assert first.gradient_bytes == 2 * first.weights_bytes  # in a bucket, and as the kernel returns it
    assert first.optimizer_state_bytes == 4 * 100_003
    batch = asked.batch_size_per_device
    own = problem.memory.activation_bytes(np.array([0]), np.array([64]), REPLICATED)
    assert own.tolist() == [2 * 4 * batch * 64]


def test_the_ledger_of_rows_has_pooled_values_of_full_height() -> None:
    """A quarter of weights and lookups, and as many pooled embeddings as a whole table."""
    asked = asked_of(num_nodes=1)
    problem = problem_of(asked)
    hot, *others = asked.tables.tables
    rest = [by_columns(each, (3, each.embedding_dim)) for each in others]

    first = tables_memory(problem.memory, (by_rows(hot, asked.topology), *rest))[0]

    samples = asked.global_batch_size
    assert first.weights_bytes == 4 * 25_001 * 64
    ledger, hot_only = problem.memory, np.array([0])
    assert ledger.activation_bytes(hot_only, np.array([64]), ROWS).tolist() == [2 * 4 * samples * 64]
    assert ledger.sort_bytes(hot_only, ROWS) * 4 == ledger.sort_bytes(hot_only)
    assert first.gradient_bytes == 0
