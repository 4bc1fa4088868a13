"""The whole search: what every plan promises, whatever the request."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.request import (
    Algorithm,
    Constraints,
    MemorySettings,
    PlanRequest,
    SearchSettings,
    TableConstraints,
)
from neuroshard_api.documents.tables import IdRule, Optimizer
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from support.builders import GIB, device_type, request, table, tables, topology
from support.depth import depth, generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import assert_valid, placed, planned, problem_of, search_requests
from support.processes import printed_on_processors

_PLANS_OF_ALL_KINDS = """
from dataclasses import replace

from neuroshard_api.documents.bundle import Calibration
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_api.documents.request import Constraints, Pipeline, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import DataType, Pooling
from neuroshard_api.documents.topology import Link
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan
from neuroshard_planner.workload_store import read_workload
from support.builders import host_memory, request, table, tables, topology
from support.planner.searches import planned

bundle = bundled_bundle("h100-80gb")
calibration = Calibration(
    source="measured:x", num_records=9, compute_scale=(0.9, 1.1), forward_communication_scale=(1.1, 0.9),
    backward_communication_scale=(1.0, 1.2), mape_before=0.1, mape_after=0.1,
)
calibrated = replace(bundle, manifest=bundle.manifest.model_copy(update={"calibration": calibration}))
device = bundle.manifest.device
model = read_workload("mlperf-dlrm-dcnv2").tables
of_a_model = request(*model, topology=topology(8, device=device), search=SearchSettings(work_budget=1000))
mixed = (
    table("wide", embedding_dim=256, pooling_factor=20.0, num_embeddings=5_000_000),
    table("hot", embedding_dim=128, pooling_factor=60.0, zipf_exponent=1.2),
    table("measured", pooling_factor=30.0, reuse_histogram=(0.5, 0.3, *[0.0] * 13, 0.2, 0.0)),
    table("left", colocation_group="pair", pooling_factor=4.5),
    table("right", colocation_group="pair", embedding_dim=12),
    *tables(5, pooling_factor=2.0),
)
of_every_kind = request(
    *mixed,
    table("pinned", embedding_dim=36),
    topology=topology(4, num_nodes=2),
    constraints=Constraints(tables={"pinned": TableConstraints(devices=(3,))}),
)
slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
permitted = request(
    *mixed,
    topology=topology(8, num_nodes=2, device=device, inter_node=slow),
    communication=CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,)),
    replication=ReplicationChoices(),
    constraints=Constraints(data_types=(DataType.FP32, DataType.FP16)),
    search=SearchSettings(work_budget=200),
)
on_hosts = request(
    *mixed,
    table("sequence", pooling=Pooling.NONE, pooling_factor=9.0),
    table("bound", num_embeddings=90_000_000),
    topology=topology(4, num_nodes=2, device=device, host_memory=host_memory()),
    constraints=Constraints(tables={"bound": TableConstraints(compute_kernels=(ComputeKernel.FUSED_UVM_CACHING,))}),
    pipeline=Pipeline.NONE,
    search=SearchSettings(work_budget=500),
)
plans = [
    plan(of_a_model, bundle=bundle),
    planned(of_every_kind),
    plan(permitted, bundle=bundle),
    plan(on_hosts, bundle=calibrated),
]
"""
_A_LARGE_SET = """
many = tables(150, pooling_factor=3.0) + tuple(
    table(f"m{index}", num_embeddings=50_000 * (index + 1), embedding_dim=16 * (1 + index % 8)) for index in range(150)
)
plans.append(plan(request(*many, topology=topology(32, num_nodes=4, device=device)), bundle=bundle))
"""


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.processes
def test_other_processes_and_processors_write_plans_of_the_same_bytes() -> None:
    """Nothing depends on the order of sets, on BLAS's kernels and threads, on NumPy's loops, or on fused operations."""
    code = (
        _PLANS_OF_ALL_KINDS + depth("", _A_LARGE_SET) + 'print("[" + ", ".join(each.to_json() for each in plans) + "]")'
    )

    (found,) = printed_on_processors(code, kinds=depth(2, 5))

    assert {each["bundle"]["name"] for each in json.loads(found)} == {"h100-80gb-simulated", "exact"}


@generated(12, 50)
@given(asked=search_requests())
def test_every_plan_keeps_its_promises(asked: PlanRequest) -> None:
    """Tables are covered once within constraints and memory, no baseline is cheaper, and the bound is below."""
    try:
        found = planned(asked)
    except InfeasibleError:
        assume(condition=False)
        raise

    assert_valid(asked, found)
    cost = found.predicted
    per_device = [
        device.forward_compute_ms
        + device.wait_ms
        + device.input_communication_ms
        + device.forward_communication_ms
        + device.backward_compute_ms
        + device.backward_communication_ms
        for device in cost.devices
    ]
    assert cost.total_ms == pytest.approx(max(per_device), rel=1e-9)
    assert found.lower_bound_ms <= cost.total_ms
    assert found.gap == pytest.approx(cost.total_ms / found.lower_bound_ms - 1)
    cheapest = min((baseline.total_ms for baseline in found.baselines if baseline.total_ms is not None), default=np.inf)
    assert cost.total_ms <= cheapest * (1 + 1e-6)


@generated(8, 30)
@given(asked=search_requests())
def test_scoring_the_written_plan_again_gives_its_cost(asked: PlanRequest) -> None:
    """The document alone says what it costs."""
    try:
        found = planned(asked)
    except InfeasibleError:
        assume(condition=False)
        raise
    problem = problem_of(asked)
    unit_of = {asked.tables.tables[unit.tables[0]].name: index for index, unit in enumerate(problem.units)}
    shards = [
        (unit_of[each.name], shard.num_columns, shard.device)
        for each in found.tables
        if each.name in unit_of and len(problem.units[unit_of[each.name]].tables) == 1
        for shard in each.shards
    ]
    firsts = {each.name: each.shards[0].device for each in found.tables}
    shards += [
        (index, unit.num_columns, firsts[asked.tables.tables[unit.tables[0]].name])
        for index, unit in enumerate(problem.units)
        if len(unit.tables) > 1
    ]

    assert problem.total_ms([placed(problem, *shards)])[0] == pytest.approx(found.predicted.total_ms, rel=1e-5)


@generated(4, 12)
@given(asked=search_requests(), factor=st.sampled_from([1.01, 2.0, 50.0]))
def test_more_memory_never_makes_a_request_infeasible(asked: PlanRequest, factor: float) -> None:
    """What fits small devices fits larger ones."""
    try:
        planned(asked)
    except InfeasibleError:
        assume(condition=False)
    device = asked.topology.device
    larger = device.model_copy(update={"memory_bytes": int(device.memory_bytes * factor)})

    found = planned(asked.model_copy(update={"topology": asked.topology.model_copy(update={"device": larger})}))

    assert_valid(asked, found)


@pytest.mark.parametrize("algorithm", [*BASELINES, Algorithm.NEUROSHARD])
def test_no_algorithm_plans_where_no_memory_is_left_for_shards(algorithm: Algorithm) -> None:
    """A dense part larger than the device is infeasible, no matter who places the tables."""
    asked = request(algorithm=algorithm, memory=MemorySettings(dense_bytes=200 * GIB))

    with pytest.raises(InfeasibleError, match="no memory is left for shards"):
        planned(asked)


@pytest.mark.parametrize("algorithm", list(BASELINES))
def test_a_baseline_can_be_asked_for(algorithm: Algorithm) -> None:
    """Its plan costs what the comparison says of it, and the search adds nothing."""
    found = planned(request(algorithm=algorithm))

    assert found.algorithm is algorithm
    compared = {baseline.algorithm: baseline.total_ms for baseline in found.baselines}
    assert found.predicted.total_ms == pytest.approx(compared[algorithm], rel=1e-6)
    assert found.search.improvements == 0


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(table(), num_devices=1), id="one table, one device"),
        pytest.param(request(*tables(7), num_devices=1), id="one device"),
        pytest.param(request(table(embedding_dim=4), num_devices=8), id="more devices than columns"),
        pytest.param(request(*tables(2), num_devices=16), id="more devices than tables"),
        pytest.param(request(*tables(2, num_embeddings=1), num_devices=3), id="one row"),
        pytest.param(request(*tables(3, embedding_dim=12), num_devices=2), id="width 12"),
        pytest.param(request(*tables(3, embedding_dim=36), num_devices=4), id="width 36"),
        pytest.param(
            request(table(num_embeddings=10**13, embedding_dim=4), topology=topology(2, memory_bytes=10**15)),
            id="10^13 rows",
        ),
        pytest.param(request(*tables(5), batch_size_per_device=1), id="one sample"),
    ],
)
def test_extreme_requests_are_planned(asked: PlanRequest) -> None:
    """The smallest and the largest shapes need no special care."""
    found = planned(asked)

    assert_valid(asked, found)
    assert found.lower_bound_ms <= found.predicted.total_ms


def test_a_table_of_8192_columns_is_split_within_the_default_budget() -> None:
    """Bounding a wide table looks at thousands of widths and must leave the search its budget."""
    limits = Constraints(sharding_types=BY_COLUMNS)
    asked = request(*tables(3, embedding_dim=8192), num_devices=2, constraints=limits, search=SearchSettings())

    found = planned(asked)

    assert_valid(asked, found)
    assert any(each.sharding_type is ShardingType.COLUMN_WISE for each in found.tables)
    assert found.gap < 0.01


def test_a_group_of_tables_beyond_counting_is_infeasible() -> None:
    """Bytes that overflow 64-bit integers never come out as little memory."""
    huge = tables(48, num_embeddings=10**13, embedding_dim=2048, colocation_group="all")

    with pytest.raises(InfeasibleError, match=r"1\.18e\+19 bytes.*'t0'"):
        planned(request(*huge, optimizer=Optimizer.ADAM))


def test_a_table_that_must_be_copied_and_fits_nowhere_is_infeasible() -> None:
    """Its copies are cut in no other way that was priced before."""
    asked = request(
        *tables(3, num_embeddings=50_000_000, embedding_dim=128),
        num_devices=2,
        constraints=Constraints(
            max_memory_bytes_per_device=4 * GIB,
            tables={"t0": TableConstraints(sharding_types=(ShardingType.DATA_PARALLEL,))},
        ),
    )

    with pytest.raises(InfeasibleError, match="t0"):
        planned(asked)


def test_a_table_that_fits_no_device_whole_is_split() -> None:
    """Where baselines find nothing the search still does."""
    asked = request(table(num_embeddings=100_000_000, embedding_dim=128), topology=topology(4, memory_bytes=24 * GIB))

    found = planned(asked)

    assert_valid(asked, found)
    assert all(baseline.total_ms is None and "never splits" in str(baseline.problem) for baseline in found.baselines)


def test_shards_that_will_be_merged_are_ranked_as_merged() -> None:
    """Two slices of a cached table on one device seem cheaper than the one they become, and than a baseline."""
    members = [
        table("t0", num_embeddings=100_000, embedding_dim=1024, zipf_exponent=0.0, pooling_factor=30.0),
        table("t1", num_embeddings=10_000, embedding_dim=512, zipf_exponent=0.0, pooling_factor=10.0),
        table("t2", num_embeddings=1_000_000, embedding_dim=256, zipf_exponent=0.6, pooling_factor=60.0),
        table("t3", num_embeddings=1_000_000, embedding_dim=512, zipf_exponent=0.0, pooling_factor=60.0),
    ]

    found = planned(request(*members, num_devices=2, search=SearchSettings(work_budget=200)))

    assert found.predicted.total_ms <= min(baseline.total_ms or np.inf for baseline in found.baselines) * (1 + 1e-6)


@pytest.mark.parametrize("work_budget", [1, 50, 400])
def test_a_small_work_budget_ends_the_search(work_budget: int) -> None:
    """The statistics say so, and the plan is not worse than a baseline's."""
    members = [
        table(f"t{index}", pooling_factor=1.0 + index, num_embeddings=10**5 * (index + 1)) for index in range(40)
    ]

    found = planned(request(*members, search=SearchSettings(work_budget=work_budget)))

    assert found.search.budget_exhausted
    assert found.predicted.total_ms <= min(baseline.total_ms or np.inf for baseline in found.baselines) * (1 + 1e-6)


def test_a_large_budget_is_not_used_up_where_nothing_is_left_to_gain() -> None:
    """The search ends when the plan meets the lower bound."""
    found = planned(request(*tables(4), search=SearchSettings(work_budget=10**9)))

    assert not found.search.budget_exhausted
    assert found.gap < 0.002


def test_more_budget_never_costs_more() -> None:
    """On this case of uneven tables each larger budget finds a plan at most as expensive."""
    members = [
        table(f"t{index}", pooling_factor=1.0 + 3.7 * index % 11, embedding_dim=16 * (index % 5 + 1))
        for index in range(30)
    ]

    totals = [
        planned(request(*members, search=SearchSettings(work_budget=budget))).predicted.total_ms
        for budget in (1, 1000, 20_000)
    ]

    assert totals == sorted(totals, reverse=True)


def test_a_plan_carries_its_request_and_its_source() -> None:
    """It can be checked and made again from itself alone."""
    asked = request()
    costs = ExactCosts(asked.topology.device)

    found = plan(asked, bundle=costs)

    assert found.request == asked
    assert found.predicted.source == found.bundle.source == costs.manifest.source == "simulated:test-80gb"


class MeasuredCosts(ExactCosts):
    """Stands in for a bundle that was fitted to measurements of its device."""

    @property
    def manifest(self) -> BundleManifest:
        """What such a bundle says of itself."""
        return super().manifest.model_copy(update={"source": f"measured:{self.device.product}"})


@pytest.mark.parametrize(("product", "expected"), [("Test Device 80GB", 0.0), ("Test Device 40GB", None)])
def test_measurements_vouch_only_for_the_product_that_was_measured(product: str, expected: float | None) -> None:
    """A plan for other devices than the bundle's has no error on measurements, whatever the bundle was held against."""
    found = plan(request(), bundle=MeasuredCosts(device_type(product=product))).bundle

    assert (found.measured_compute_mape, found.measured_communication_mape) == (expected, expected)


def test_a_plan_warns_of_a_table_that_may_be_of_the_label_and_has_the_remarks_of_its_request() -> None:
    """Two rows, or four of texts, and a name that labels have, whatever the case; others are as usual."""
    named = table("a", num_embeddings=2, feature_names=("Is-Clicked",))
    texts = table("bought", num_embeddings=4, id_rule=IdRule.HASH)
    others = (table("phone", num_embeddings=2), table("clicked", num_embeddings=9))
    asked = request(named, texts, *others, num_devices=2).model_copy(update={"remarks": ("no factors",)})

    warnings = planned(asked).warnings

    assert warnings[-1] == "no factors"
    found, hashed = [each for each in warnings if "named like a label" in each]
    assert hashed.startswith("tables: 'bought' has 4 rows")
    assert found.startswith("tables: 'a' has 2 rows, and its feature 'Is-Clicked' is named like a label")
    assert found.endswith("remove the table (`neuroshard stats --label Is-Clicked`)")
