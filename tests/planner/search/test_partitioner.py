"""Greedy placement of lanes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest, TableConstraints
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.step_cost import Collective
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.search.estimator import tangent
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.partitioner import GreedyPass, place, place_by_networks
from support.builders import GIB, request, table, tables, topology
from support.planner.searches import problem_of, random_placement, search_requests, shards_of

from benchmarks.reference_search import DIM_FACTORS, place_greedily
from benchmarks.tasks import DEVICE_TYPE, task_tables, weights_only_request


def lane_of(problem: Problem, *, dim_limit: float = np.inf, memory_price: float = 0.0) -> GreedyPass:
    """Return a lane of the whole tables."""
    return GreedyPass(kinds=problem.whole, dim_limit=dim_limit, memory_price=memory_price)


def exact_memory(*sizes_gib: float, capacity_gib: float, num_devices: int) -> PlanRequest:
    """Return a request of tables that need about these sizes, on devices that offer this capacity to them."""
    members = [
        table(f"t{index}", num_embeddings=int(size * GIB) // 260, embedding_dim=64)
        for index, size in enumerate(sizes_gib)
    ]
    return request(
        *members,
        topology=topology(num_devices, memory_bytes=int(capacity_gib * GIB)),
        batch_size_per_device=1,
        memory=MemorySettings(reserve_fraction=0.0),
    )


def test_shards_go_in_descending_order_to_the_least_loaded_device() -> None:
    """Loads 5, 4, 3, 3 on two devices come out as 5 + 3 and 4 + 3."""
    problem = problem_of(request(*tables(4), num_devices=2))
    loads = np.array([3.0, 5.0, 4.0, 3.0])

    (placement,) = place(problem, [lane_of(problem)], loads)

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 64, 1), (1, 64, 0), (2, 64, 1), (3, 64, 0)]


def test_a_device_above_the_dimension_limit_is_avoided() -> None:
    """Load alone would put the wide table's neighbour next to it."""
    problem = problem_of(request(table("wide", embedding_dim=256), table("a"), table("b"), num_devices=2))
    loads = np.array([1.0, 3.0, 1.0])

    free, limited = place(problem, [lane_of(problem), lane_of(problem, dim_limit=256.0)], loads)

    assert free is not None
    assert limited is not None
    assert shards_of(problem, free) == [(0, 256, 1), (1, 64, 0), (2, 64, 1)]
    assert shards_of(problem, limited) == [(0, 256, 1), (1, 64, 0), (2, 64, 0)]


def test_the_dimension_limit_yields_to_memory() -> None:
    """Where only the wide device has memory left, the shard goes there."""
    problem = problem_of(exact_memory(6.0, 2.0, 3.0, capacity_gib=7.0, num_devices=2))
    loads = np.array([3.0, 2.0, 1.0])

    (placement,) = place(problem, [lane_of(problem, dim_limit=64.0)], loads)

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 64, 0), (1, 64, 1), (2, 64, 1)]


def halves_and_whole(*, capacity_gib: float) -> tuple[Problem, GreedyPass, FloatArray]:
    """Return a table of 4 GiB in halves and a heavy whole one of 3 GiB, a lane for two devices, and loads."""
    problem = problem_of(exact_memory(4.0, 3.0, capacity_gib=capacity_gib, num_devices=2))
    (half,) = problem.kinds_of([0], [ShardSize(problem.units[0].num_rows, 32)])
    heavy = problem.whole[1]
    loads = np.zeros(len(problem.kinds))
    loads[half], loads[heavy] = 1.0, 5.0
    return problem, GreedyPass(kinds=np.array([half, half, heavy]), dim_limit=np.inf, memory_price=0.0), loads


def test_a_lane_that_spreads_puts_shards_of_a_table_on_devices_of_their_own() -> None:
    """By load both halves go where the heavy table is not; lanes next to it do not change."""
    problem, lane, loads = halves_and_whole(capacity_gib=10.0)

    together, apart = place(problem, [lane, replace(lane, spreads=True)], loads)

    assert together is not None
    assert apart is not None
    assert shards_of(problem, together) == [(0, 32, 1), (0, 32, 1), (1, 64, 0)]
    assert shards_of(problem, apart) == [(0, 32, 0), (0, 32, 1), (1, 64, 0)]


def test_a_lane_that_spreads_yields_to_memory() -> None:
    """Where the heavy table leaves no room, both halves are on the other device."""
    problem, lane, loads = halves_and_whole(capacity_gib=4.5)

    (placement,) = place(problem, [replace(lane, spreads=True)], loads)

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 32, 1), (0, 32, 1), (1, 64, 0)]


def test_a_lane_that_spreads_yields_to_the_dimension_limit() -> None:
    """A device above the limit is left out before one with a shard of the same table."""
    problem, lane, loads = halves_and_whole(capacity_gib=10.0)

    (placement,) = place(problem, [replace(lane, spreads=True, dim_limit=64.0)], loads)

    assert placement is not None
    assert shards_of(problem, placement) == [(0, 32, 1), (0, 32, 1), (1, 64, 0)]


def test_a_lane_that_spreads_counts_shards_that_are_fixed() -> None:
    """The other half of a table goes on the more loaded device."""
    problem, lane, loads = halves_and_whole(capacity_gib=10.0)
    half, heavy = lane.kinds[1:].tolist()
    fixed = Placement(kinds=np.array([heavy, half]), devices=np.array([0, 1]))
    rest = replace(lane, kinds=lane.kinds[:1])

    together, apart = place(problem, [rest, replace(rest, spreads=True)], loads, fixed=fixed)

    assert together is not None
    assert apart is not None
    assert (together.devices.tolist(), apart.devices.tolist()) == ([1], [0])


@pytest.mark.parametrize("num_shards", [2, 3, 4])
def test_the_networks_too_put_shards_of_a_table_on_devices_of_their_own(num_shards: int) -> None:
    """Of as many shards as there are devices at most, no two share one."""
    problem = problem_of(request(*tables(5), num_devices=4))
    options = OptionTable(problem)
    state = np.array([np.flatnonzero((options.unit == unit) & (options.count == num_shards))[0] for unit in range(5)])
    lane = GreedyPass(kinds=options.shards(state), dim_limit=np.inf, memory_price=0.0, spreads=True)

    (placement,) = place_by_networks(problem, [lane])

    assert placement is not None
    places = [(unit, device) for unit, _, device in shards_of(problem, placement)]
    assert len(set(places)) == len(places) == 5 * num_shards


def test_a_price_on_memory_places_big_tables_first() -> None:
    """By load alone small tables fill both devices and the big cold one finds no room."""
    problem = problem_of(exact_memory(6.0, 2.0, 2.0, capacity_gib=7.0, num_devices=2))
    loads = np.array([1.0, 5.0, 5.0])

    by_load, by_memory = place(problem, [lane_of(problem), lane_of(problem, memory_price=8.0)], loads)

    assert by_load is None
    assert by_memory is not None
    assert shards_of(problem, by_memory) == [(0, 64, 0), (1, 64, 1), (2, 64, 1)]


def test_a_device_is_filled_to_the_last_byte_and_not_beyond() -> None:
    """Memory is a hard limit."""
    asked = exact_memory(2.0, 2.0, capacity_gib=10.0, num_devices=1)
    whole = problem_of(asked)
    exact = int(whole.kinds.memory_bytes.sum()) + whole.memory.fixed_bytes
    problems = [
        problem_of(asked.model_copy(update={"constraints": Constraints(max_memory_bytes_per_device=limit)}))
        for limit in (exact, exact - 1)
    ]

    fits, too_much = (place(each, [lane_of(each)], np.ones(len(each.kinds)))[0] for each in problems)

    assert fits is not None
    assert too_much is None


def test_tables_go_only_where_they_may() -> None:
    """Pinned and forbidden devices hold for every lane."""
    constraints = Constraints(forbidden_devices=(0,), tables={"t2": TableConstraints(devices=(3,))})
    problem = problem_of(request(*tables(6), constraints=constraints))

    for placement in place(problem, [lane_of(problem), lane_of(problem, dim_limit=1.0, memory_price=1.0)], np.ones(6)):
        assert placement is not None
        devices = {unit: device for unit, _, device in shards_of(problem, placement)}
        assert 0 not in devices.values()
        assert devices[2] == 3


@settings(max_examples=40)
@given(asked=search_requests(), seed=st.integers(0, 99))
def test_lanes_do_not_touch_each_other(asked: PlanRequest, seed: int) -> None:
    """Placing lanes together, padded to the longest, equals placing each alone."""
    problem = problem_of(asked)
    if problem.memory.shard_capacity_bytes <= 0:
        return
    generator = random.Random(seed)  # noqa: S311 - no secret
    lanes = [
        GreedyPass(
            kinds=random_placement(problem, generator).kinds,
            dim_limit=generator.choice([10.0, 100.0, np.inf]),
            memory_price=generator.choice([0.0, 1.0]),
            spreads=generator.choice([False, True]),
        )
        for _ in range(3)
    ]
    loads = np.random.default_rng(seed).random(len(problem.kinds)) + 0.01

    together = place(problem, lanes, loads)

    for lane, found in zip(lanes, together, strict=True):
        (alone,) = place(problem, [lane], loads)
        assert (found is None) == (alone is None)
        if found is not None and alone is not None:
            assert shards_of(problem, found) == shards_of(problem, alone)


def test_placing_counts_its_look_ups() -> None:
    """Lanes times shards of the longest times devices."""
    problem = problem_of(request())

    place(problem, [lane_of(problem)] * 3, np.ones(4))

    assert problem.greedy_probes == 3 * 4 * 4


def test_the_tangent_predicts_a_small_change() -> None:
    """Adding a hundredth of a shard costs the slopes times its representation."""
    problem = problem_of(request(*tables(4, pooling_factor=50.0)))
    sums = problem.kinds.representation[problem.whole].sum(axis=0)
    small = 0.05 * problem.kinds.representation[0]

    added = problem.compute_ms(np.stack([sums, sums + small])).astype(np.float64)

    assert small @ tangent(problem, sums) == pytest.approx(added[1] - added[0], rel=0.05)


def test_shards_go_beside_those_that_stay() -> None:
    """What a device holds already counts as load, as memory, and as columns."""
    problem = problem_of(request(*tables(3), num_devices=2))
    fixed = Placement(kinds=problem.whole[[0]], devices=np.array([0]))
    lane = GreedyPass(kinds=problem.whole[[1, 2]], dim_limit=np.inf, memory_price=0.0)

    (light,) = place(problem, [lane], np.array([0.5, 3.0, 2.0]), fixed=fixed)
    (heavy,) = place(problem, [lane], np.array([9.0, 3.0, 2.0]), fixed=fixed)
    (limited,) = place(problem, [replace(lane, dim_limit=63.0)], np.array([0.5, 3.0, 0.1]), fixed=fixed)

    assert light is not None
    assert heavy is not None
    assert limited is not None
    assert shards_of(problem, light) == [(1, 64, 1), (2, 64, 0)]
    assert shards_of(problem, heavy) == [(1, 64, 1), (2, 64, 1)]
    assert shards_of(problem, limited) == [(1, 64, 1), (2, 64, 0)]


def test_a_lane_without_room_beside_those_that_stay_is_none() -> None:
    """Their memory is taken."""
    problem = problem_of(exact_memory(1.0, 1.0, 1.0, capacity_gib=2.5, num_devices=1))
    lane = GreedyPass(kinds=problem.whole[[1, 2]], dim_limit=np.inf, memory_price=0.0)
    fixed = Placement(kinds=problem.whole[[0]], devices=np.array([0]))

    assert place(problem, [lane], np.ones(3))[0] is not None
    assert place(problem, [lane], np.ones(3), fixed=fixed)[0] is None


def test_networks_place_as_the_published_algorithm_does() -> None:
    """The cheapest of all limits on columns, next to a shorter list."""
    problem = Problem(weights_only_request(task_tables()[6], 4), bundled_bundle(DEVICE_TYPE))
    mean_dim_sum = problem.kinds.traffic[problem.whole, Collective.POOLED_EMBEDDINGS].sum() / problem.num_devices
    lanes = [lane_of(problem, dim_limit=factor * mean_dim_sum) for factor in DIM_FACTORS.tolist()]
    shorter = replace(lane_of(problem), kinds=problem.whole[:2])

    *placed, short = place_by_networks(problem, [*lanes, shorter])

    assert short is not None
    assert len(short.kinds) == 2
    fitting = [each for each in placed if each is not None]
    cheapest = fitting[int(problem.total_ms(fitting).argmin())]
    reference = place_greedily(problem, problem.whole).placement
    assert reference is not None
    assert shards_of(problem, cheapest) == shards_of(problem, reference)


def test_networks_place_shards_beside_those_that_stay() -> None:
    """What a device holds already counts as time, as memory, and as columns."""
    problem = problem_of(request(*tables(2), table("heavy", pooling_factor=50.0), num_devices=2))
    fixed = Placement(kinds=problem.whole[[2]], devices=np.array([0]))
    lane = GreedyPass(kinds=problem.whole[[0, 1]], dim_limit=np.inf, memory_price=0.0)

    (light,) = place_by_networks(problem, [lane], fixed=fixed)
    (limited,) = place_by_networks(problem, [replace(lane, dim_limit=63.0)], fixed=fixed)

    assert light is not None
    assert shards_of(problem, light) == [(0, 64, 1), (1, 64, 1)]
    assert limited is None
