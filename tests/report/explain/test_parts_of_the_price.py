"""A plan's price and the parts that documents, explanations, and statuses show of it: they are the same number."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import ComputePeak, Pipeline, PlanRequest
from neuroshard_api.documents.resolved_request import IN_GROUPS
from neuroshard_api.documents.topology import HostMemory
from neuroshard_api.job.step_cost import predicted_cost
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import GroupLayout, ReplicationChoices
from neuroshard_costs.averages import average_ms
from neuroshard_planner.choices.device_groups import DeviceGroups
from neuroshard_planner.choices.stored_types import StoredTypeChoice
from neuroshard_planner.choices.trials import Trials
from neuroshard_planner.planning import document
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.by_columns import Found
from neuroshard_report.explain.alternatives import PlacementWithoutUnit
from neuroshard_report.explain.terms import step_terms
from support.builders import host_memory, request, table, tables, topology
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, on_host, random_placement

MICROSECOND = 1e-3


def drawn_placements(
    asked: PlanRequest, seed: int, *, with_host: bool = False, types: Sequence[ShardingType] = tuple(ShardingType)
) -> tuple[TablePlacement, ...]:
    """Return random placements of these types; of those that are not copies, half may be in host memory.

    Half of the tables in host memory have a cache on the device.
    """
    rng = random.Random(seed)  # noqa: S311 - draws test data
    placed = []
    for each in asked.tables.tables:
        found = random_placement(rng, each, asked.topology, types)
        is_hosted = with_host and found.sharding_type is not ShardingType.DATA_PARALLEL and rng.random() < 0.5
        placed.append(on_host(found, cache_load_factor=rng.choice([None, 0.1])) if is_hosted else found)
    return tuple(placed)


def assert_every_sum_is_the_price(plan: Plan, problem: Problem, placement: Placement) -> None:
    """Assert that terms, collectives, and status of a plan, with groups or without, sum to its price."""
    slowest, price = plan.predicted.devices[plan.slowest_device], pytest.approx(plan.predicted.total_ms, rel=1e-5)
    assert max(each.total_ms for each in plan.predicted.devices) == slowest.total_ms == price
    assert sum(each.forward_ms + each.backward_ms for each in slowest.collectives) == pytest.approx(
        slowest.communication_ms
    )
    assert sum(term.ms for term in step_terms(plan, problem, placement)) == price
    status = predicted_cost(plan)
    parts = (
        status.compute_microseconds,
        status.forward_communication_microseconds,
        status.backward_communication_microseconds,
    )
    assert sum(filter(None, parts)) * MICROSECOND == pytest.approx(plan.predicted.total_ms, abs=2 * MICROSECOND)


@generated(7, 20)
@given(
    seed=st.integers(0, 10**6),
    pipeline=st.sampled_from(Pipeline),
    compute_peak=st.sampled_from(ComputePeak),
    host=st.sampled_from([None, host_memory()]),
)
def test_every_sum_of_parts_is_the_price(
    seed: int, pipeline: Pipeline, compute_peak: ComputePeak, host: HostMemory | None
) -> None:
    """The objective, the slowest device's terms, its collectives, the explanation, and a job's status agree."""
    asked = request(
        table("hot", num_embeddings=100_003, embedding_dim=64, pooling_factor=20.0),
        table("wide", num_embeddings=5_001, embedding_dim=128, feature_names=("left", "right")),
        table("small", num_embeddings=17, embedding_dim=16),
        topology=topology(4, num_nodes=2, host_memory=host),
        pipeline=pipeline,
        compute_peak=compute_peak,
    )
    bundle = ExactCosts(asked.topology.device)
    placements = drawn_placements(asked, seed, with_host=host is not None)
    problem = Problem(asked, bundle)
    placement = placement_of(placements, problem)
    plan = document(problem, bundle, Found(placement=placement), baselines={}, tables=placements)
    price = pytest.approx(plan.predicted.total_ms, rel=1e-5)

    assert problem.total_ms([placement])[0] == price
    assert sum(problem.step_cost.parts_ms(problem.device_levels([placement])[0].max(axis=0)).values()) == price
    assert_every_sum_is_the_price(plan, problem, placement)


@generated(7, 20)
@given(
    seed=st.integers(0, 10**6),
    pipeline=st.sampled_from(Pipeline),
    compute_peak=st.sampled_from(ComputePeak),
    layout=st.sampled_from(GroupLayout),
    sync_every_steps=st.integers(1, 50),
)
def test_every_sum_of_parts_is_the_price_in_groups_of_devices(
    seed: int, pipeline: Pipeline, compute_peak: ComputePeak, layout: GroupLayout, sync_every_steps: int
) -> None:
    """The averages of copies are one of the parts."""
    choices = ReplicationChoices(group_sizes=(4,), layouts=(layout,), sync_every_steps=sync_every_steps)
    asked = request(
        *tables(3, num_embeddings=1_001, embedding_dim=64, pooling_factor=20.0),
        topology=topology(8, num_nodes=2),
        pipeline=pipeline,
        compute_peak=compute_peak,
        replication=choices,
    )
    bundle = ExactCosts(asked.topology.device)
    # Without groups all tables are on one device, which is dearer.
    nowhere_else = tuple(by_columns(each, (0, each.embedding_dim)) for each in asked.tables.tables)

    def drawn(of: PlanRequest) -> Plan:
        is_group = of.topology.num_devices < asked.topology.num_devices
        placements = drawn_placements(of, seed, types=IN_GROUPS) if is_group else nowhere_else
        problem = Problem(of, bundle)
        found = Found(placement=placement_of(placements, problem))
        return document(problem, bundle, found, baselines={}, tables=placements)

    trials = Trials(bundle, drawn)
    groups = DeviceGroups(asked, trials, types=StoredTypeChoice(asked, trials))
    plan = groups.decided(drawn(asked.model_copy(update={"replication": None})))
    assume(plan.replication is not None)

    problem = Problem(plan.request, bundle)
    placement = placement_of(plan.tables, problem)
    (price,) = problem.total_ms([placement])
    assert price + average_ms(plan) == pytest.approx(plan.predicted.total_ms, rel=1e-5)
    assert average_ms(plan) > 0
    assert_every_sum_is_the_price(plan, problem, placement)


@generated(4, 10)
@given(seed=st.integers(0, 10**6), compute_peak=st.sampled_from(ComputePeak))
def test_what_a_table_adds_by_parts_is_the_price_less_that_of_the_others(seed: int, compute_peak: ComputePeak) -> None:
    """Whatever its family and those of the others: kernels, collectives, and dense updates, each once."""
    asked = request(*tables(3, embedding_dim=64), topology=topology(4, num_nodes=2), compute_peak=compute_peak)
    problem = Problem(asked, ExactCosts(asked.topology.device))
    placement = placement_of(drawn_placements(asked, seed), problem)
    is_first = problem.kinds.unit[placement.kinds] == 0
    others = Placement(kinds=placement.kinds[~is_first], devices=placement.devices[~is_first])

    added = PlacementWithoutUnit(problem, placement, 0).added_ms(placement.kinds[is_first], placement.devices[is_first])

    whole, rest = problem.total_ms([placement, others])
    assert sum(added.values()) == pytest.approx(whole - rest, abs=1e-5)
