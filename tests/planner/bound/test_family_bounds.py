"""The lower bound: below every plan, and near the best one where it can be."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.bundle import Calibration
from neuroshard_api.documents.request import (
    ComputePeak,
    Constraints,
    Pipeline,
    PlanRequest,
    SearchSettings,
    TableConstraints,
)
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.step_cost import TRAFFIC, Collective
from neuroshard_planner.bound.family_bounds import ROUNDING, FamilyBounds
from neuroshard_planner.planning import attempts, find
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.workload_store import read_workload
from support.builders import request, table, tables, topology
from support.depth import generated
from support.planner.searches import placed, planned, problem_of, random_placement, search_requests

from benchmarks.exhaustion import least_ms
from benchmarks.tasks import workload_request

H100 = bundled_bundle("h100-80gb")


@generated(15, 50)
@given(asked=search_requests(), seed=st.integers(0, 9999))
def test_no_random_split_on_random_devices_costs_less(asked: PlanRequest, seed: int) -> None:
    """Whether or not it fits the memory."""
    problem = problem_of(asked)
    generator = random.Random(seed)  # noqa: S311 - no secret

    totals = problem.total_ms([random_placement(problem, generator) for _ in range(30)])

    assert FamilyBounds(problem).least_ms <= totals.min()
    assert FamilyBounds(problem, is_loose=True).least_ms <= totals.min()


def test_loose_bounds_exclude_less() -> None:
    """They are below the others, and not by so much that they exclude nothing."""
    problem = Problem(request(*tables(6, embedding_dim=64), num_devices=4), H100)

    loose_ms, least_ms = FamilyBounds(problem, is_loose=True).least_ms, FamilyBounds(problem).least_ms

    assert 0.5 * least_ms < loose_ms < least_ms


@pytest.mark.parametrize("exponent", [1.0, 0.7, 1.3])
@generated(5, 15)
@given(asked=search_requests(), seed=st.integers(0, 9999))
def test_no_random_split_costs_less_under_trained_networks(exponent: float, asked: PlanRequest, seed: int) -> None:
    """Under a bundle, also where a calibration bends its times: mixed types, both pipelines, and both peaks."""
    problem = Problem(asked, _scaled_bundle(exponent))
    generator = random.Random(seed)  # noqa: S311 - no secret

    totals = problem.total_ms([random_placement(problem, generator) for _ in range(15)])

    assert FamilyBounds(problem).least_ms <= totals.min() * (1 + ROUNDING)
    assert FamilyBounds(problem, is_loose=True).least_ms <= totals.min() * (1 + ROUNDING)


@generated(6, 40)
@given(
    widths=st.lists(st.sampled_from([16, 32, 64, 128]), min_size=2, max_size=3),
    rows=st.lists(st.sampled_from([20, 3_000, 400_000]), min_size=3, max_size=3),
    lookups=st.lists(st.sampled_from([1.0, 8.0, 60.0]), min_size=3, max_size=3),
    num_devices=st.sampled_from([2, 2, 3]),
    pipeline=st.sampled_from(Pipeline),
)
def test_the_cheapest_plan_of_all_costs_no_less_where_rows_and_copies_widen_all_devices(
    widths: list[int], rows: list[int], lookups: list[float], num_devices: int, pipeline: Pipeline
) -> None:
    """Against all plans of tables of few and of many lanes: those on all devices give all others theirs."""
    members = [
        table(f"t{index}", num_embeddings=rows[index], embedding_dim=width, pooling_factor=lookups[index])
        for index, width in enumerate(widths[: 4 - num_devices + 1])
    ]
    kinds = (*BY_COLUMNS, ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL)
    asked = request(
        *members,
        num_devices=num_devices,
        batch_size_per_device=4096,
        pipeline=pipeline,
        constraints=Constraints(sharding_types=kinds),
    )
    problem = Problem(asked, bundled_bundle("h100-80gb"))

    assert FamilyBounds(problem).least_ms <= least_ms(problem) * (1 + ROUNDING)


@cache
def _scaled_bundle(exponent: float) -> CostBundle:
    """Return a bundle whose compute times are raised to an exponent."""
    bundle = bundled_bundle("h100-80gb")
    calibration = Calibration(
        source="measured:H100", num_records=8, compute_scale=(exponent, 1.0), mape_before=0.0, mape_after=0.0
    )
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"calibration": calibration}))


@pytest.mark.parametrize("pipeline", list(Pipeline))
@pytest.mark.parametrize("compute_peak", list(ComputePeak))
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_it_is_tight_where_equal_tables_fill_the_devices_evenly(
    num_devices: int, compute_peak: ComputePeak, pipeline: Pipeline
) -> None:
    """Whole tables, the same on each device, cost the bound itself where they use the fewest lanes, as it assumes."""
    problem = problem_of(
        request(
            *tables(2 * num_devices, embedding_dim=32, pooling_factor=30.0),
            num_devices=num_devices,
            constraints=WHOLE,
            compute_peak=compute_peak,
            pipeline=pipeline,
        )
    )
    even = placed(problem, *((unit, 32, unit % num_devices) for unit in range(2 * num_devices)))

    assert FamilyBounds(problem).least_ms == pytest.approx(problem.total_ms([even])[0], rel=3e-4)


WHOLE = Constraints(sharding_types=BY_COLUMNS, max_shards_per_table=1)


def test_a_table_that_stays_whole_bounds_the_plan_by_itself() -> None:
    """More devices do not help a table that may not be split."""
    hot = table("hot", embedding_dim=256, pooling_factor=80.0)
    problem = problem_of(request(hot, num_devices=8, constraints=WHOLE))

    total = problem.total_ms([placed(problem, (0, 256, 0))])[0]

    compute = problem.compute_ms(problem.kinds.representation[problem.whole]).sum()
    assert compute <= FamilyBounds(problem).least_ms <= total
    assert FamilyBounds(problem_of(request(hot, num_devices=8))).least_ms < compute


def test_a_table_of_most_shards_keeps_a_wide_one() -> None:
    """Of 256 columns in at most two shards one has at least 128."""
    hot = table("hot", embedding_dim=256, pooling_factor=80.0)
    problem = problem_of(
        request(hot, num_devices=8, constraints=Constraints(sharding_types=BY_COLUMNS, max_shards_per_table=2))
    )

    total = problem.total_ms([placed(problem, (0, 128, 0), (0, 128, 1))])[0]

    assert FamilyBounds(problem).least_ms <= total
    assert FamilyBounds(problem).least_ms > FamilyBounds(problem_of(request(hot, num_devices=8))).least_ms


def test_forbidden_devices_raise_it() -> None:
    """What must fit on fewer devices costs more."""
    members = tables(8, pooling_factor=60.0)
    free, crowded = (
        problem_of(request(*members, constraints=Constraints(forbidden_devices=forbidden)))
        for forbidden in ((), (1, 2, 3))
    )

    assert FamilyBounds(crowded).least_ms > 1.2 * FamilyBounds(free).least_ms


def test_pins_to_one_device_leave_it_valid() -> None:
    """Everything on one of four devices costs at least the bound."""
    pins = {f"t{index}": TableConstraints(devices=(2,)) for index in range(4)}
    problem = problem_of(request(*tables(4, pooling_factor=60.0), constraints=Constraints(tables=pins)))
    only = placed(problem, *((unit, 64, 2) for unit in range(4)))

    assert FamilyBounds(problem).least_ms <= problem.total_ms([only])[0]


def test_thousands_of_tables_on_two_devices_round_to_a_valid_bound() -> None:
    """Single-precision sums over many uneven tables stay within the bound's allowance."""
    generator = np.random.default_rng(0)
    members = [
        table(f"t{index}", num_embeddings=int(rows), embedding_dim=4, pooling_factor=float(pooling))
        for index, (rows, pooling) in enumerate(
            zip(generator.integers(10, 10**6, 4000), generator.lognormal(size=4000), strict=True)
        )
    ]

    hasty = SearchSettings(work_budget=1)
    by_columns = Constraints(sharding_types=BY_COLUMNS)
    found = planned(request(*members, topology=topology(2, memory_bytes=10**13), search=hasty, constraints=by_columns))

    assert 0 <= found.gap < 1e-3


@pytest.mark.parametrize("types", [(ShardingType.TABLE_WISE,), (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)])
def test_fewer_tables_than_devices_cost_the_exchange_of_a_whole_one(types: tuple[ShardingType, ...]) -> None:
    """Though the mean device has an eighth of it: some device has the table that no other type may have."""
    wide = table(embedding_dim=256, name="wide")
    constraints = Constraints(
        sharding_types=types, tables={"wide": TableConstraints(sharding_types=(ShardingType.TABLE_WISE,))}
    )
    asked = request(
        wide, *tables(1), topology=topology(16, num_nodes=2), constraints=constraints, pipeline=Pipeline.NONE
    )
    problem = Problem(asked, bundled_bundle("h100-80gb"))
    exchange = problem.step_cost.collective(Collective.POOLED_EMBEDDINGS)

    assert FamilyBounds(problem).least_ms > float(exchange.total_ms(np.array(256.0)))


@generated(4, 10)
@given(asked=search_requests(), factors=st.lists(st.floats(1.0, 20.0), min_size=2, max_size=4))
def test_the_bound_of_a_set_of_families_does_not_grow_with_the_limit(asked: PlanRequest, factors: list[float]) -> None:
    """A lower limit leaves fewer shards; where it leaves a family none, no plan has exactly these families."""
    bounds = FamilyBounds(Problem(asked, bundled_bundle("h100-80gb")))
    limits = sorted(bounds.least_ms * factor for factor in factors)

    for families in bounds.sets:
        found = [bounds.of(families, limit) for limit in limits]
        assert all(later <= earlier * (1 + 0.005) for earlier, later in pairwise(found))


@pytest.mark.parametrize("name", ["criteo-kaggle", "mlperf-dlrm-v1"])
def test_no_plan_that_a_search_prices_costs_less_than_the_bound_of_its_families(name: str) -> None:
    """Under a limit of its own cost, which leaves out most shards; 16 devices on two nodes."""
    settings = {
        "constraints": Constraints(sharding_types=tuple(ShardingType)),
        "search": SearchSettings(work_budget=12_000),
        "batch_size_per_device": 8192,
    }
    asked = workload_request(read_workload(name), 16, devices_per_node=8).model_copy(update=settings)
    problem = Problem(asked, H100)
    cheapest: dict[tuple[int, ...], float] = {}

    def take(problem: Problem, placements: Sequence[Placement], totals_ms: FloatArray) -> None:
        for placement, total_ms in zip(placements, totals_ms.tolist(), strict=True):
            families = tuple(sorted(set(problem.kinds.family[placement.kinds].tolist())))
            cheapest[families] = min(cheapest.get(families, np.inf), total_ms)

    problem.watched, bounds = take, FamilyBounds(problem)
    find(problem, baselines=attempts(problem), bounds=bounds)

    assert len(cheapest) > 1
    for families, total_ms in cheapest.items():
        assert bounds.of(families, total_ms * (1 + ROUNDING)) <= total_ms * (1 + ROUNDING)


@pytest.mark.parametrize("types", [BY_COLUMNS, (*BY_COLUMNS, ShardingType.DATA_PARALLEL)])
def test_columns_of_a_device_come_in_the_steps_of_their_widths(types: tuple[ShardingType, ...]) -> None:
    """Nine tables of four columns on eight devices: some device has eight columns, or some tables are copied."""
    wide = [table(f"t{index}", num_embeddings=10_000_000, embedding_dim=4) for index in range(9)]
    problem = Problem(
        request(*wide, num_devices=8, constraints=Constraints(sharding_types=types), pipeline=Pipeline.NONE), H100
    )
    even = placed(problem, *((unit, 4, unit % 8) for unit in range(9)))
    levels = problem.device_levels([even]).max(axis=1)

    exchange_ms = problem.step_cost.pooled_ms(levels[:, TRAFFIC])[0]
    uneven_ms = FamilyBounds(problem).least_ms - exchange_ms

    assert 0 < uneven_ms <= problem.total_ms([even])[0] - exchange_ms
    assert FamilyBounds(problem).least_ms > 0.8 * problem.total_ms([even])[0]


@generated(6, 40)
@given(
    widths=st.lists(st.sampled_from([8, 16, 32]), min_size=6, max_size=6),
    lookups=st.lists(st.sampled_from([1.0, 4.0, 40.0]), min_size=6, max_size=6),
    pipeline=st.sampled_from(Pipeline),
)
def test_no_way_to_put_whole_tables_on_devices_costs_less(
    widths: list[int], lookups: list[float], pipeline: Pipeline
) -> None:
    """Against all of them: six tables on three devices."""
    members = [
        table(f"t{index}", num_embeddings=400_000, embedding_dim=width, pooling_factor=pooling)
        for index, (width, pooling) in enumerate(zip(widths, lookups, strict=True))
    ]
    asked = request(*members, num_devices=3, batch_size_per_device=4096, pipeline=pipeline, constraints=WHOLE)
    problem = Problem(asked, H100)
    every = [Placement(kinds=problem.whole, devices=np.array(each)) for each in product(range(3), repeat=6)]

    assert FamilyBounds(problem).least_ms <= problem.total_ms(every).min() * (1 + ROUNDING)


@pytest.mark.parametrize("lookups", [1.0, 60.0])
def test_devices_hold_whole_tables(lookups: float) -> None:
    """Ten on eight devices: two have two, which the mean device does not say. One may be dearer than all others."""
    members = [
        table(f"t{index}", num_embeddings=10_000_000, embedding_dim=64, pooling_factor=1.0 if index else lookups)
        for index in range(10)
    ]
    problem = Problem(request(*members, num_devices=8, constraints=WHOLE), H100)
    best = placed(problem, *((unit, 64, unit if unit < 8 else unit - 2) for unit in range(10)))

    assert FamilyBounds(problem).least_ms == pytest.approx(problem.total_ms([best])[0], rel=0.01)
