"""The lower bound: below every plan, and near the best one where it can be."""

import random

import numpy as np
import pytest
from builders import request, table, tables, topology
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.request import Constraints, PlanRequest, TableConstraints
from neuroshard_planner.search.lower_bound import lower_bound_ms
from searches import placed, planned, problem_of, random_placement, search_requests


@settings(max_examples=50)
@given(asked=search_requests(), seed=st.integers(0, 9999))
def test_no_random_split_on_random_devices_costs_less(asked: PlanRequest, seed: int) -> None:
    """Whether or not it fits the memory."""
    problem = problem_of(asked)
    generator = random.Random(seed)  # noqa: S311 - no secret

    totals = problem.total_ms([random_placement(problem, generator) for _ in range(30)])

    assert lower_bound_ms(problem) <= totals.min()


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_it_is_tight_where_equal_tables_fill_the_devices_evenly(num_devices: int) -> None:
    """Whole tables, the same on each device, cost the bound itself but for the lanes, which it takes as fewest."""
    problem = problem_of(
        request(*tables(2 * num_devices, pooling_factor=30.0), num_devices=num_devices, constraints=WHOLE)
    )
    even = placed(problem, *((unit, 64, unit % num_devices) for unit in range(2 * num_devices)))

    assert lower_bound_ms(problem) == pytest.approx(problem.total_ms([even])[0], rel=3e-4)


WHOLE = Constraints(max_shards_per_table=1)


def test_a_table_that_stays_whole_bounds_the_plan_by_itself() -> None:
    """More devices do not help a table that may not be split."""
    hot = table("hot", embedding_dim=256, pooling_factor=80.0)
    problem = problem_of(request(hot, num_devices=8, constraints=WHOLE))

    total = problem.total_ms([placed(problem, (0, 256, 0))])[0]

    compute = problem.compute_ms(problem.kinds.representation[problem.whole]).sum()
    assert compute <= lower_bound_ms(problem) <= total
    assert lower_bound_ms(problem_of(request(hot, num_devices=8))) < compute


def test_a_table_of_most_shards_keeps_a_wide_one() -> None:
    """Of 256 columns in at most two shards one has at least 128."""
    hot = table("hot", embedding_dim=256, pooling_factor=80.0)
    problem = problem_of(request(hot, num_devices=8, constraints=Constraints(max_shards_per_table=2)))

    total = problem.total_ms([placed(problem, (0, 128, 0), (0, 128, 1))])[0]

    assert lower_bound_ms(problem) <= total
    assert lower_bound_ms(problem) > lower_bound_ms(problem_of(request(hot, num_devices=8)))


def test_forbidden_devices_raise_it() -> None:
    """What must fit on fewer devices costs more."""
    members = tables(8, pooling_factor=60.0)
    free, crowded = (
        problem_of(request(*members, constraints=Constraints(forbidden_devices=forbidden)))
        for forbidden in ((), (1, 2, 3))
    )

    assert lower_bound_ms(crowded) > 1.2 * lower_bound_ms(free)


def test_pins_to_one_device_leave_it_valid() -> None:
    """Everything on one of four devices costs at least the bound."""
    pins = {f"t{index}": TableConstraints(devices=(2,)) for index in range(4)}
    problem = problem_of(request(*tables(4, pooling_factor=60.0), constraints=Constraints(tables=pins)))
    only = placed(problem, *((unit, 64, 2) for unit in range(4)))

    assert lower_bound_ms(problem) <= problem.total_ms([only])[0]


def test_thousands_of_tables_on_one_device_round_to_a_valid_bound() -> None:
    """Single-precision sums over many uneven tables stay within the bound's allowance."""
    generator = np.random.default_rng(0)
    members = [
        table(f"t{index}", num_embeddings=int(rows), embedding_dim=4, pooling_factor=float(pooling))
        for index, (rows, pooling) in enumerate(
            zip(generator.integers(10, 10**6, 4000), generator.lognormal(size=4000), strict=True)
        )
    ]

    found = planned(request(*members, topology=topology(1, memory_bytes=10**13)))

    assert 0 <= found.gap < 1e-3
