"""Plans with tables in host memory: where they are permitted, when they are used, and what they promise."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import Optimizer, Pooling, Table
from neuroshard_api.sharding.kinds import HOST_KERNELS, ComputeKernel, ShardingType
from neuroshard_costs.host import host_work
from neuroshard_costs.host_tables import KERNELS as PROBLEM_KERNELS
from neuroshard_costs.reuse.cached_rows import KEPT_BATCHES
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.problem import Placement
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.workload_store import read_workload
from support.builders import GIB, host_memory, request, table, tables, topology
from support.depth import depth, generated
from support.planner.searches import planned, problem_of, used_bytes

from benchmarks.tasks import workload_request

KERNELS = (ComputeKernel.FUSED, *HOST_KERNELS)
DIRECT, CACHED = HOST_KERNELS
TW, CW, RW, TWRW, GRID, _ = ShardingType
QUICK = SearchSettings(work_budget=1000)
LARGE, HOT = table("large", num_embeddings=300_000_000), table("hot", num_embeddings=30_000_000, pooling_factor=40.0)


def asked(
    *members: Table,
    kernels: tuple[ComputeKernel, ...] | None = KERNELS,
    types: tuple[ShardingType, ...] = BY_COLUMNS,
    host_bytes: int = 512 * GIB,
    memory_bytes: int = 16 * GIB,
    **fields: Any,
) -> PlanRequest:
    """Return a request on two nodes of two devices with host memory."""
    nodes = topology(4, num_nodes=2, memory_bytes=memory_bytes, host_memory=host_memory(host_bytes))
    limits = Constraints(compute_kernels=kernels, sharding_types=types)
    return request(*members, topology=nodes, constraints=limits, search=QUICK, **fields)


def kernels_of(plan: Plan) -> dict[str, ComputeKernel]:
    """Return the kernel of each table."""
    return {placement.name: placement.compute_kernel for placement in plan.tables}


@pytest.mark.parametrize("factor", [0.02, 0.15])
def test_a_named_load_factor_is_the_plans(factor: float) -> None:
    """Its cache's memory is in the ledger; the size of another table's cache is the search's."""
    one = asked(LARGE, HOT, kernels=(CACHED,))
    limits = one.constraints.model_copy(update={"tables": {"large": TableConstraints(cache_load_factor=factor)}})
    plan = planned(one.model_copy(update={"constraints": limits}))

    factors = {each.name: each.cache_load_factor for each in plan.tables}
    assert factors["large"] == factor
    assert factors["hot"] not in {None, factor}
    assert sum(each.cache_bytes for each in plan.memory) >= factor * LARGE.num_embeddings * LARGE.embedding_dim * 4
    assert plan_problems(plan) == []


def test_the_largest_and_coldest_table_leaves_device_memory() -> None:
    """Where 72 GiB of one table do not fit next to a hot one of 7 GiB in 4 x 16 GiB."""
    plan = planned(asked(LARGE, HOT))

    assert kernels_of(plan)["large"].is_on_host
    assert kernels_of(plan)["hot"] is ComputeKernel.FUSED
    assert plan_problems(plan) == []
    assert sum(each.host_bytes for each in plan.memory) == LARGE.num_embeddings * LARGE.embedding_dim * 4
    assert all(used_bytes(each) <= each.capacity_bytes for each in plan.memory)
    assert plan.lower_bound_ms <= plan.predicted.total_ms


def test_what_fits_stays_in_device_memory() -> None:
    """The link is slower than device memory, so that permission alone changes no plan."""
    members = tables(6, pooling_factor=5.0)
    with_host, without = planned(asked(*members)), planned(asked(*members, kernels=None))

    assert with_host.tables == without.tables
    assert with_host.predicted == without.predicted


def test_a_cache_is_taken_where_rows_repeat() -> None:
    """A skewed table of wide rows reads few of them over the link; a single lookup of uniform rows is read directly."""
    skewed = table("skewed", num_embeddings=80_000_000, embedding_dim=256, pooling_factor=50.0, zipf_exponent=1.2)
    uniform = table("uniform", num_embeddings=300_000_000, zipf_exponent=0.0)
    found = {each.name: each for each in planned(asked(skewed, uniform)).tables}

    assert found["skewed"].compute_kernel is CACHED
    assert found["skewed"].cache_load_factor is not None
    assert 0 < found["skewed"].cache_load_factor < 0.1
    assert found["uniform"].compute_kernel.is_on_host


def test_time_on_the_link_is_in_the_price_of_its_device_alone() -> None:
    """Devices without a shard in host memory wait for the others, and for no row."""
    plan = planned(asked(LARGE, HOT))
    holders = {shard.device for each in plan.tables if each.compute_kernel.is_on_host for shard in each.shards}

    for device, cost in enumerate(plan.predicted.devices):
        assert (cost.host_link_ms > 0) == (device in holders)


def test_a_table_bound_to_the_host_is_there_though_it_would_fit() -> None:
    """As with TorchRec's constraints that name one kernel."""
    own = {"bound": TableConstraints(compute_kernels=(CACHED,))}
    limits = Constraints(tables=own)
    nodes = topology(4, num_nodes=2, host_memory=host_memory())
    plan = planned(request(table("bound"), *tables(3), topology=nodes, constraints=limits, search=QUICK))

    assert kernels_of(plan) == {"bound": CACHED, **dict.fromkeys(["t0", "t1", "t2"], ComputeKernel.FUSED)}
    assert {each.problem for each in plan.baselines} == {
        f"{each.algorithm} places no table in host memory, and 'bound' may be nowhere else" for each in plan.baselines
    }


@pytest.mark.parametrize(("batch_size", "is_short"), [(128, True), (16_384, False)])
def test_a_plan_names_cached_calls_that_wait_for_the_host(batch_size: int, *, is_short: bool) -> None:
    """Launching the cache's kernels takes longer than few lookups do; the host's work in a step counts the launches."""
    own = {"bound": TableConstraints(compute_kernels=(CACHED,))}
    nodes = topology(4, num_nodes=2, host_memory=host_memory())
    members = (table("bound", pooling_factor=10.0), *tables(3))
    asked_for = request(*members, topology=nodes, batch_size_per_device=batch_size, search=QUICK)
    plan = planned(asked_for.model_copy(update={"constraints": Constraints(tables=own)}))

    named = [each for each in plan.warnings if "waits for the host" in each]
    assert bool(named) is is_short
    work = host_work(plan.request, plan.tables)
    assert work.cached_calls == 1
    assert work.calls > work.cached_calls


def test_hosts_that_are_too_small_are_named() -> None:
    """The sentence has the memory of both kinds."""
    with pytest.raises(InfeasibleError, match=r"no plan by columns was found with tables in 8 GiB of host"):
        planned(asked(LARGE, HOT, host_bytes=8 * GIB))


def test_host_memory_is_a_remedy_where_it_is_not_permitted() -> None:
    """The sentence names the constraint."""
    with pytest.raises(
        InfeasibleError, match=r"or store tables in host memory: allow fused_uvm_caching in constraints"
    ):
        planned(asked(LARGE, HOT, kernels=None))


def test_kernels_without_host_memory_are_refused_at_once() -> None:
    """Before a search, with table, kernel, and remedy."""
    with pytest.raises(
        RequestError,
        match=r"'user' may run with fused_uvm, and the topology has no host_memory .*"
        r"; hint: give topology.host_memory, or",
    ):
        planned(request(table(), constraints=Constraints(compute_kernels=KERNELS)))


def test_a_co_located_table_cannot_be_bound_to_the_host() -> None:
    """Groups stay whole in device memory."""
    member = table("member", colocation_group="pair")
    with pytest.raises(
        RequestError, match=r"'member' may run with fused_uvm alone, and co-located tables are in device"
    ):
        planned(asked(member, table("other", colocation_group="pair"), kernels=(DIRECT,)))


@generated(3, 8)
@given(
    rows=st.lists(st.integers(1000, 200_000_000), min_size=1, max_size=5),
    pooling=st.sampled_from([1.0, 30.0]),
    optimizer=st.sampled_from(list(Optimizer)),
    host_gib=st.integers(1, 200),
)
def test_every_plan_keeps_both_memories(rows: list[int], pooling: float, optimizer: Optimizer, host_gib: int) -> None:
    """Its own ledger and checks agree, whatever had to leave device memory."""
    members = [table(f"t{index}", num_embeddings=count, pooling_factor=pooling) for index, count in enumerate(rows)]
    try:
        plan = planned(asked(*members, host_bytes=host_gib * GIB, optimizer=optimizer, types=(TW, CW, RW, TWRW, GRID)))
    except InfeasibleError:
        assume(condition=False)
        raise

    assert plan_problems(plan) == []
    for node in (0, 2):
        assert sum(each.host_bytes for each in plan.memory[node : node + 2]) <= host_gib * GIB
    assert plan.lower_bound_ms <= plan.predicted.total_ms * (1 + 1e-6)


def test_470_billion_parameters_fit_on_16_devices_with_host_memory() -> None:
    """HugeCTR's largest public model on two H100 nodes with 1 TB each, which has no plan in device memory."""
    model = workload_request(read_workload("hugectr-embark-7-table-470b"), 16, devices_per_node=8)
    limits = Constraints(sharding_types=(TW, CW, RW, TWRW, GRID), compute_kernels=KERNELS)
    nodes = model.topology.model_copy(update={"host_memory": host_memory(10**12, gb_per_second=63)})
    permitted = model.model_copy(update={"constraints": limits, "topology": nodes, "search": QUICK})

    plan = planned(permitted)

    assert plan_problems(plan) == []
    assert any(kernel.is_on_host for kernel in kernels_of(plan).values())
    with pytest.raises(InfeasibleError):
        planned(permitted.model_copy(update={"constraints": Constraints(sharding_types=limits.sharding_types)}))


def test_rows_of_means_in_host_memory_stay_together() -> None:
    """A table of means is not cut by rows next to sums, wherever its own rows are."""
    mean = table("mean", num_embeddings=300_000_000, pooling=Pooling.MEAN)
    hot = table("hot", num_embeddings=3_000_000, embedding_dim=4, pooling_factor=200.0)

    plan = planned(asked(mean, hot, types=(TW, CW, RW)))

    on_host = {each.name for each in plan.tables if each.compute_kernel in HOST_KERNELS}
    assert on_host == {"mean"}
    assert next(each for each in plan.tables if each.name == "mean").sharding_type in BY_COLUMNS
    assert not plan_problems(plan)


def cheapest_of_all(asked_for: PlanRequest) -> float:
    """Return the least cost over all kernels and devices of whole tables, all caches of one size."""
    problem = problem_of(asked_for)
    assert problem.host_tables is not None
    units = range(len(problem.units))
    costs = []
    for kept in range(len(KEPT_BATCHES)):
        factors = problem.host_tables.caches.load_factors(kept)
        for kernels in product(range(len(PROBLEM_KERNELS)), repeat=len(units)):
            sizes = [
                problem.sizes_of(problem.whole)[unit]._replace(
                    kernel=kernel,
                    cache_load_factor=float(factors[unit]) if PROBLEM_KERNELS[kernel] is CACHED else 0.0,
                )
                for unit, kernel in zip(units, kernels, strict=True)
            ]
            kinds = problem.kinds_of(list(units), sizes)
            placements = [
                Placement(kinds=kinds, devices=np.array(devices))
                for devices in product(range(problem.num_devices), repeat=len(units))
            ]
            fitting = [each for each in placements if problem.fits(each)]
            if fitting:
                costs.append(float(problem.total_ms(fitting).min()))
    return min(costs)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("seed", "optimizer", "reserve"),
    [
        (0, Optimizer.SGD, None),
        (1, Optimizer.SGD, 0.1),
        (1, Optimizer.ADAM, None),
        (2, Optimizer.ROWWISE_ADAGRAD, None),
        (3, Optimizer.ADAM, None),
        (5, Optimizer.SGD, None),
    ][: depth(3, 6)],
)
def test_no_choice_of_kernels_and_devices_is_cheaper(seed: int, optimizer: Optimizer, reserve: float | None) -> None:
    """Four tables that do not all fit on two devices, one of them on none: the best of 5,184 plans of whole tables.

    Caches of several sizes may be cheaper still.
    """
    random = np.random.default_rng(seed)
    members = [
        table(
            f"t{index}",
            num_embeddings=int(random.integers(10, 60)) * 10**6,
            pooling_factor=float(random.choice([1.0, 5.0, 40.0])),
            zipf_exponent=float(random.uniform(0.6, 1.3)),
        )
        for index in range(4)
    ]
    nodes = topology(2, memory_bytes=12 * GIB, host_memory=host_memory(512 * GIB))
    limits = Constraints(compute_kernels=KERNELS, sharding_types=(TW,))
    whole = request(*members, topology=nodes, constraints=limits, search=QUICK, optimizer=optimizer)
    whole = whole.model_copy(update={"memory": MemorySettings(reserve_fraction=reserve)})

    found = planned(whole)

    assert found.predicted.total_ms <= cheapest_of_all(whole) * (1 + 1e-6)
