"""What bounds a plan and what could help."""

from typing import Any

import pytest
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost
from neuroshard_api.documents.request import Algorithm, ComputePeak, Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.memory_reserve import OUTSIDE_BYTES
from neuroshard_planner.pipeline import plan as search
from neuroshard_report.explain.plan import PlanExplanation, explain_plan
from support import builders
from support.planner.exact_costs import ExactCosts

LEAST = SearchSettings(work_budget=300)


def explained(request: PlanRequest, **changes: Any) -> tuple[Plan, PlanExplanation]:
    """Return a plan, with some fields changed, and its explanation."""
    bundle = ExactCosts(request.topology.device)
    plan = search(request, bundle=bundle).model_copy(update=changes)
    return plan, explain_plan(plan, bundle=bundle)


def request_of(**fields: Any) -> PlanRequest:
    """Return six tables of which one has most lookups."""
    members = [builders.table(f"t{index}", embedding_dim=64, pooling_factor=2.0) for index in range(5)]
    return builders.request(
        *members, builders.table("hot", embedding_dim=64, pooling_factor=400.0), **{"search": LEAST, **fields}
    )


def test_the_terms_are_the_step() -> None:
    """Four terms, largest first, that add up to the predicted step; each names its device."""
    plan, found = explained(request_of())

    assert sum(term.ms for term in found.terms) == pytest.approx(plan.predicted.total_ms, rel=1e-6)
    assert sum(term.share for term in found.terms) == pytest.approx(1.0)
    assert [term.ms for term in found.terms] == sorted((term.ms for term in found.terms), reverse=True)


def test_the_terms_of_joint_passes_are_the_step() -> None:
    """One device decides both passes where the slowest sum of them counts."""
    plan, found = explained(request_of(compute_peak=ComputePeak.JOINT))

    compute = [term for term in found.terms if "compute" in term.name]
    assert len({term.device for term in compute}) == 1
    assert sum(term.ms for term in found.terms) == pytest.approx(plan.predicted.total_ms, rel=1e-6)


def test_the_gap_is_accounted_for() -> None:
    """Its parts add up to the cost above the lower bound."""
    plan, found = explained(request_of(algorithm=Algorithm.RANDOM))

    assert sum(part.ms for part in found.gap_parts) == pytest.approx(plan.predicted.total_ms - plan.lower_bound_ms)
    assert found.gap_parts[0].ms > 0


def test_the_table_that_bounds_a_device_is_named_first() -> None:
    """A table that may not be split and takes most of the step is named, and so is what holds it."""
    _, found = explained(request_of(constraints=Constraints(max_shards_per_table=1)))

    assert found.dominant_tables[0].name == "hot"
    assert found.dominant_tables[0].share > 0.5
    assert any("'hot' may not be split" in sentence for sentence in found.helps)


def test_helps_come_with_numbers() -> None:
    """What twice the nodes would bring at the same global batch is worked out."""
    _, found = explained(request_of())

    assert any(
        sentence.startswith("twice the nodes (8 devices) with the same global batch") for sentence in found.helps
    )


def test_devices_that_the_cost_models_do_not_know_are_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of one node's exchanges says nothing of two nodes."""

    def warnings(_: ExactCosts, request: PlanRequest) -> tuple[str, ...]:
        return ("topology.num_devices: is 8, outside 2 to 4",) if request.topology.num_nodes > 1 else ()

    monkeypatch.setattr(ExactCosts, "validity_warnings", warnings)
    _, found = explained(request_of())

    assert not any("twice the nodes" in sentence for sentence in found.helps)


@pytest.mark.parametrize(("num_nodes", "num_sentences"), [(1, 0), (2, 1)])
def test_narrower_pooled_embeddings_are_named_where_they_save_more_than_codecs_take(
    num_nodes: int, num_sentences: int
) -> None:
    """Between nodes they do; within a node of fast links, nothing is reported."""
    members = [builders.table(f"t{index}", embedding_dim=128) for index in range(8)]
    of_nodes = builders.topology(4 * num_nodes, num_nodes=num_nodes)
    _, found = explained(builders.request(*members, topology=of_nodes))

    assert sum(each.name is LeverName.WIRE_TYPES for each in found.levers) == num_sentences


def test_bounds_by_columns_say_nothing_of_means_by_rows() -> None:
    """What twice the nodes could bring is bounded in the types of the plan alone."""
    hot = builders.table("hot", pooling=Pooling.MEAN, pooling_factor=200.0, embedding_dim=4)
    plan, found = explained(builders.request(hot, constraints=Constraints(sharding_types=tuple(ShardingType))))

    assert plan.tables[0].sharding_type is ShardingType.ROW_WISE
    assert not any("by columns" in sentence or "twice the nodes" in sentence for sentence in found.helps)


def test_a_nearly_full_device_is_said_to_limit() -> None:
    """Memory that is almost used up leaves the search little freedom."""
    entry = explained(request_of(num_devices=1))[0].memory[0]
    limit = Constraints(max_memory_bytes_per_device=round(1.03 * (entry.used_bytes - OUTSIDE_BYTES)))

    _, found = explained(request_of(num_devices=1, constraints=limit))

    assert found.memory_share > 0.95
    assert "more memory would leave more freedom" in found.helps[-1]


@pytest.mark.parametrize(
    ("baseline_factor", "expected"),
    [(2.0, "more than that error"), (1.02, "within that error"), (0.5, "is predicted to cost no more")],
    ids=["clear gain", "small gain", "no gain"],
)
def test_trust_holds_the_gain_against_the_models_error(baseline_factor: float, expected: str) -> None:
    """A gain below the hold-out error is not called one."""
    plan, _ = explained(request_of())
    baseline = BaselineCost(algorithm=Algorithm.DIM_GREEDY, total_ms=baseline_factor * plan.predicted.total_ms)
    reference = plan.bundle.model_copy(update={"compute_mape": 0.05, "communication_mape": 0.05})

    _, found = explained(request_of(), baselines=(baseline,), bundle=reference)

    assert "error is 5.0 % of a step like this, against the simulator only" in found.trust
    assert expected in found.trust


def test_collections_are_named_with_their_tables() -> None:
    """In the order of their first tables; a table of the busiest device names its own."""
    paths = ("users", "items.ebc")
    members = [
        builders.table(f"t{index}", embedding_dim=64, pooling_factor=2.0 + index, collection=paths[index % 2])
        for index in range(5)
    ]
    plan, found = explained(builders.request(*members))
    users, items = found.collections

    assert (users.path, users.tables) == ("users", ("t0", "t2", "t4"))
    assert (items.path, items.tables) == ("items.ebc", ("t1", "t3"))
    assert (items.num_columns, items.lookups) == (128, 8.0)
    assert items.weights_bytes == sum(4 * 64 * members[index].num_embeddings for index in (1, 3))
    assert sum(count for _, count in users.sharding_types) == 3
    placed = {table.name: table for table in plan.tables}
    assert users.devices == tuple(sorted({shard.device for name in users.tables for shard in placed[name].shards}))
    assert {table.name: table.collection for table in found.dominant_tables}.items() <= {
        member.name: member.collection for member in members
    }.items()


def test_tables_without_a_collection_are_not_grouped() -> None:
    """As those of a table file."""
    assert explained(request_of())[1].collections == ()


def test_the_gap_of_tables_in_host_memory_says_what_the_bound_leaves_out() -> None:
    """The bound holds, and is far below such plans."""
    nodes = builders.topology(2, memory_bytes=16 * builders.GIB, host_memory=builders.host_memory())
    kernels = Constraints(compute_kernels=tuple(ComputeKernel))
    large = builders.table("large", num_embeddings=200_000_000)
    plan, found = explained(builders.request(large, topology=nodes, constraints=kernels))

    assert plan.tables[0].compute_kernel.is_on_host
    assert plan.lower_bound_ms <= plan.predicted.total_ms
    assert found.gap_parts[-1].reason == "the bound counts no time for host memory"
