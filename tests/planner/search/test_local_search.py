"""Local search: every kind of step where it is the best one, and what no step may do."""

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, Pipeline, PlanRequest, TableConstraints
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.step_cost import TRAFFIC, Collective
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.local_search import LocalSearch, State, merged
from support.builders import request, table, tables, topology
from support.depth import generated
from support.planner.searches import MIB, perturbation, placed, problem_of, random_placement, search_requests, shards_of

UNLIMITED = 10**9
WHOLE = Constraints(max_shards_per_table=1)


def local_search(problem: Problem, *, work_budget: int = UNLIMITED) -> LocalSearch:
    """Return a local search with the slopes that the planner would use."""
    sums = problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices
    return LocalSearch(problem, traits=Traits(problem, tangent(problem, sums)), work_budget=work_budget)


def improved(problem: Problem, *shards: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the shards of the improved placement."""
    return shards_of(problem, local_search(problem).improve(placed(problem, *shards)))


def fits(problem: Problem, placement: Placement) -> bool:
    """Return whether no device holds more than its memory."""
    used = np.zeros(problem.num_devices, dtype=np.int64)
    np.add.at(used, placement.devices, problem.kinds.memory_bytes[placement.kinds])
    return bool((used <= problem.memory.shard_capacity_bytes).all())


def test_a_shard_moves_to_an_empty_device() -> None:
    """Two equal tables on one of two devices become one on each."""
    problem = problem_of(request(*tables(2, pooling_factor=20.0), num_devices=2, constraints=WHOLE))

    found = improved(problem, (0, 64, 0), (1, 64, 0))

    assert sorted(device for _, _, device in found) == [0, 1]


def test_shards_are_swapped_where_no_move_helps() -> None:
    """Poolings 50 + 50 against 40 + 10 become 50 + 40 against 50 + 10, or better still."""
    members = [table(f"t{index}", pooling_factor=pooling) for index, pooling in enumerate((50.0, 50.0, 40.0, 10.0))]
    problem = problem_of(request(*members, num_devices=2, constraints=WHOLE))
    start = placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 1), (3, 64, 1))

    found = local_search(problem).improve(start)

    everything = [
        placed(problem, *((unit, 64, device) for unit, device in enumerate(each))) for each in product((0, 1), repeat=4)
    ]
    best = problem.total_ms(everything).min()
    assert problem.total_ms([found])[0] == pytest.approx(best, rel=1e-4)
    assert problem.total_ms([start])[0] > best * 1.02
    on_first = [device == found.devices[0] for device in found.devices]
    assert sum(on_first) == 2


def test_a_dominant_table_is_split_over_the_devices() -> None:
    """One wide hot table leaves the other device idle until it is cut."""
    problem = problem_of(request(table(embedding_dim=256, pooling_factor=60.0), num_devices=2))

    found = improved(problem, (0, 256, 0))

    assert sorted((columns, device) for _, columns, device in found) == [(128, 0), (128, 1)]


LIMITED = Constraints(tables={tables(2)[1].name: TableConstraints(max_shards=1)})


def test_split_columns_come_together_again() -> None:
    """Half a table leaves the loaded device and joins its other half, where the other table stays whole."""
    problem = problem_of(request(*tables(2, embedding_dim=16, pooling_factor=20.0), num_devices=2, constraints=LIMITED))

    found = improved(problem, (0, 8, 0), (0, 8, 1), (1, 16, 0))

    assert found == [(0, 16, 1), (1, 16, 0)]


def test_shards_of_a_table_on_one_device_are_merged_first() -> None:
    """Columns are kept, and rows stay the table's."""
    problem = problem_of(request(table(embedding_dim=128), table("b"), num_devices=2))
    start = placed(problem, (0, 32, 0), (0, 40, 1), (0, 56, 0), (1, 64, 1))

    found = merged(problem, start)

    assert shards_of(problem, found) == [(0, 40, 1), (0, 88, 0), (1, 64, 1)]
    assert problem.kinds.num_rows[found.kinds].tolist() == [1_000_000] * 3
    assert merged(problem, found) is found


@generated(15, 50)
@given(asked=search_requests(), seed=st.integers(0, 9999))
def test_merging_keeps_every_tables_columns_on_every_device(asked: PlanRequest, seed: int) -> None:
    """Only the number of shards falls."""
    problem = problem_of(asked)
    start = random_placement(problem, random.Random(seed))  # noqa: S311 - no secret
    start = Placement(kinds=start.kinds, devices=start.devices // 2)

    found = merged(problem, start)

    def columns(placement: Placement) -> dict[tuple[int, int], int]:
        sums: dict[tuple[int, int], int] = {}
        for unit, width, device in shards_of(problem, placement):
            sums[unit, device] = sums.get((unit, device), 0) + width
        return sums

    assert columns(found) == columns(start)
    assert len(found.kinds) == len(columns(start))


@generated(20, 60)
@given(asked=search_requests(), seed=st.integers(0, 9999), budget=st.sampled_from([1, 30, 2000]))
def test_improving_never_costs_more_and_never_leaves_the_memory(asked: PlanRequest, seed: int, budget: int) -> None:
    """Whatever the start and the budget; a perturbation in between keeps the memory and the tables too."""
    problem = problem_of(asked)
    start = merged(problem, random_placement(problem, random.Random(seed)))  # noqa: S311 - no secret
    assume(fits(problem, start))
    search = local_search(problem, work_budget=problem.work + budget)

    found = search.improve(start)
    perturbed = perturbation(problem, seed).perturbed(found)

    before, after = problem.total_ms([start, found])
    assert after <= before * (1 + 1e-5)
    for placement in (found, perturbed):
        assert fits(problem, placement)
        for index, unit in enumerate(problem.units):
            own = placement.kinds[problem.kinds.unit[placement.kinds] == index]
            devices = placement.devices[problem.kinds.unit[placement.kinds] == index]
            assert problem.kinds.num_columns[own].sum() == unit.num_columns
            assert len(own) <= unit.max_shards
            assert problem.kinds.num_columns[own].min() >= unit.min_shard_width
            assert len(np.unique(devices)) == len(devices)
            assert problem.allowed is None or problem.allowed[index, devices].all()


@generated(10, 40)
@given(asked=search_requests(), seed=st.integers(0, 9999), count=st.integers(2, 12))
def test_placements_descend_side_by_side_as_they_do_alone(asked: PlanRequest, seed: int, count: int) -> None:
    """With fewer lanes than placements, too."""
    problem = problem_of(asked)
    generator = random.Random(seed)  # noqa: S311 - no secret
    starts = [random_placement(problem, generator) for _ in range(count)]

    together = local_search(problem).improve_all(starts)

    alone = [local_search(problem).improve(start) for start in starts]
    assert [shards_of(problem, each) for each in together] == [shards_of(problem, each) for each in alone]


def test_a_start_may_depend_on_descents_that_have_ended() -> None:
    """It is drawn when there is a lane for it, not before."""
    members = [table(f"t{index}", pooling_factor=1.0 + index) for index in range(12)]
    problem = problem_of(request(*members))
    num_lanes, num_ended = problem.tuning.num_lanes, list[int]()
    ended = 0

    def starts() -> Iterator[Placement]:
        for _ in range(3 * num_lanes):
            num_ended.append(ended)
            yield placed(problem, *((unit, 64, 0) for unit in range(12)))

    for _ in local_search(problem).descents(starts()):
        ended += 1

    assert num_ended[:num_lanes] == [0] * num_lanes
    assert all(later > 0 for later in num_ended[num_lanes:])
    assert ended == 3 * num_lanes


def test_a_step_that_does_not_fit_is_not_taken() -> None:
    """The idle device has no room for either table, nor for a part that would help enough to be worth a shard."""
    members = tables(2, pooling_factor=20.0, num_embeddings=1_000_000)
    problem = problem_of(
        request(
            *members,
            table("filler", num_embeddings=2_000_000),
            num_devices=2,
            constraints=WHOLE,
            topology=topology(2, memory_bytes=700 * MIB),
            batch_size_per_device=1,
        )
    )
    start = placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 1))
    assert fits(problem, start)

    found = local_search(problem).improve(start)

    assert shards_of(problem, found) == shards_of(problem, start)


def test_one_device_is_left_alone() -> None:
    """There is nowhere to go."""
    problem = problem_of(request(*tables(3), num_devices=1))

    assert improved(problem, (0, 64, 0), (1, 64, 0), (2, 64, 0)) == [(0, 64, 0), (1, 64, 0), (2, 64, 0)]


def test_pinned_tables_are_left_alone() -> None:
    """However uneven the devices are."""
    constraints = Constraints(tables={f"t{index}": TableConstraints(devices=(0,)) for index in range(4)})
    problem = problem_of(request(*tables(4, pooling_factor=20.0), constraints=constraints))
    start = [(unit, 64, 0) for unit in range(4)]

    assert improved(problem, *start) == start


def test_an_exhausted_budget_takes_no_step() -> None:
    """The placement comes back as it went in."""
    problem = problem_of(request(*tables(2, pooling_factor=20.0), num_devices=2))
    search = local_search(problem, work_budget=0)

    found = search.improve(placed(problem, (0, 64, 0), (1, 64, 0)))

    assert shards_of(problem, found) == [(0, 64, 0), (1, 64, 0)]
    assert search.improvements == 0


def test_the_budget_is_exceeded_by_one_step_at_most() -> None:
    """A step judges a bounded number of candidates for each bounding device."""
    members = [table(f"t{index}", pooling_factor=1.0 + index) for index in range(40)]
    problem = problem_of(request(*members))
    start = placed(problem, *((unit, 64, 0) for unit in range(40)))
    budget = problem.work + 200  # the slopes take some of it
    search = local_search(problem, work_budget=budget)

    search.improve(start)

    most_per_step = 4 * 2 * 2 * 32 + 2  # bounding devices, whole steps and splits, two devices, candidates judged
    assert budget <= problem.work <= budget + most_per_step


def test_a_state_kept_up_to_date_equals_one_made_anew() -> None:
    """Sums and levels after many steps carry no rounding of what has left."""
    members = [table(f"t{index}", pooling_factor=0.01 * 3.0**index) for index in range(9)]
    problem = problem_of(request(*members, num_devices=3))
    search = local_search(problem)

    found = search.improve(placed(problem, *((unit, 64, 0) for unit in range(9))))

    assert search.improvements > 1
    state = State(problem, [found])
    assert state.total_ms[0] == pytest.approx(problem.total_ms([found])[0], rel=1e-6)


def test_columns_are_evened_out_though_the_loads_are_even() -> None:
    """Wide tables of few lookups lie on two devices, narrow ones of many on two; all peaks fall only when all mix."""
    wide = [table(f"wide{index}", embedding_dim=64, pooling_factor=5.0) for index in range(4)]
    narrow = [table(f"narrow{index}", embedding_dim=16, pooling_factor=20.0) for index in range(4)]
    problem = problem_of(request(*wide, *narrow, topology=topology(4), constraints=WHOLE))
    start = placed(
        problem,
        *((unit, 64, unit // 2) for unit in range(4)),
        *((unit, 16, unit // 2) for unit in range(4, 8)),
    )

    found = local_search(problem).improve(start)

    levels = problem.device_levels([found])[0]
    pooled = levels[:, TRAFFIC][:, Collective.POOLED_EMBEDDINGS]
    assert pooled.tolist() == [80.0] * 4
    assert problem.total_ms([found])[0] < problem.total_ms([start])[0]


def test_states_that_each_look_better_from_the_other_end_the_search() -> None:
    """The exchange of indices is hidden in one and not in the other, so that evenness has other prices in each."""
    rng = random.Random(82)  # noqa: S311 - draws test data
    num_tables, num_devices = rng.choice((26, 60, 100)), rng.choice((8, 16))
    members = [
        table(
            f"t{index}",
            num_embeddings=int(10 ** rng.uniform(2, 6)),
            embedding_dim=rng.choice((4, 8, 16, 32, 64, 128, 256, 512)),
            pooling_factor=round(10 ** rng.uniform(0, 2), 3),
        )
        for index in range(num_tables)
    ]
    h100 = preset("h100-80gb")
    problem = Problem(
        request(
            *members,
            topology=h100.topology(num_nodes=2, devices_per_node=num_devices // 2),
            pipeline=Pipeline.SPARSE_DIST,
            batch_size_per_device=512,
        ),
        bundled_bundle("h100-80gb"),
    )
    start = Placement(kinds=problem.whole, devices=np.random.default_rng(82).integers(0, num_devices, num_tables))
    search = local_search(problem, work_budget=20_000)

    found = search.improve(start)

    assert problem.work < 20_000
    assert problem.total_ms([found])[0] < problem.total_ms([start])[0]
