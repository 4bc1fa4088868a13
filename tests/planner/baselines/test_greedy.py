"""Baselines: published heuristics on cases small enough to do by hand."""

import numpy as np
import pytest
from hypothesis import given
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.problem import Placement, Problem
from support.builders import GIB, request, table, tables, topology
from support.depth import generated
from support.planner.searches import problem_of, search_requests, shards_of

GREEDY = [algorithm for algorithm in BASELINES if algorithm is not Algorithm.RANDOM]


def devices_of(problem: Problem, placement: Placement) -> list[int]:
    """Return the device of each unit."""
    return [device for _, _, device in shards_of(problem, placement)]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        pytest.param(Algorithm.DIM_GREEDY, [0, 1, 1, 1], id="columns 128, 64, 32, 16"),
        pytest.param(Algorithm.SIZE_GREEDY, [1, 1, 0, 1], id="columns times rows 128, 64, 3200, 16"),
        pytest.param(Algorithm.LOOKUP_GREEDY, [1, 1, 1, 0], id="columns times pooling 128, 64, 32, 1600"),
        pytest.param(Algorithm.SIZE_LOOKUP_GREEDY, [1, 1, 1, 0], id="the same times the logarithm of rows"),
    ],
)
def test_a_greedy_baseline_evens_out_its_own_size(algorithm: Algorithm, expected: list[int]) -> None:
    """In descending order, each table to the device with the least so far."""
    members = (
        table("wide", embedding_dim=128, num_embeddings=1000),
        table("middle", embedding_dim=64, num_embeddings=1000),
        table("long", embedding_dim=32, num_embeddings=100_000),
        table("hot", embedding_dim=16, num_embeddings=1000, pooling_factor=100.0),
    )
    problem = problem_of(request(*members, num_devices=2))

    assert devices_of(problem, BASELINES[algorithm](problem)) == expected


def test_rows_count_by_their_logarithm_beside_lookups() -> None:
    """A table of a million rows weighs twice one of a thousand: 2 against 1 + 1."""
    members = (table("a", num_embeddings=999), table("b", num_embeddings=999_999), table("c", num_embeddings=999))
    problem = problem_of(request(*members, num_devices=2))

    assert devices_of(problem, BASELINES[Algorithm.SIZE_LOOKUP_GREEDY](problem)) == [1, 0, 1]


def test_the_seed_decides_the_random_baseline() -> None:
    """Equal seeds agree, another differs."""
    found = []
    for seed in (0, 0, 1):
        problem = problem_of(request(*tables(20), search=SearchSettings(seed=seed)))
        found.append(devices_of(problem, BASELINES[Algorithm.RANDOM](problem)))

    assert found[0] == found[1] != found[2]
    assert set(found[0]) == {0, 1, 2, 3}


@pytest.mark.parametrize("algorithm", list(BASELINES))
def test_baselines_respect_pins_forbidden_devices_and_groups(algorithm: Algorithm) -> None:
    """Constraints are not the search's privilege."""
    constraints = Constraints(
        forbidden_devices=(0,), tables={"t5": TableConstraints(devices=(3,))}, colocate=(("t0", "t1", "t2"),)
    )
    problem = problem_of(request(*tables(8), constraints=constraints))

    devices = devices_of(problem, BASELINES[algorithm](problem))

    assert len(devices) == 6
    assert 0 not in devices
    assert devices[3] == 3


@pytest.mark.parametrize("algorithm", list(BASELINES))
def test_a_baseline_without_room_says_that_it_never_splits(algorithm: Algorithm) -> None:
    """A table larger than a device is beyond all of them."""
    problem = problem_of(request(table(num_embeddings=10**9), topology=topology(4, memory_bytes=80 * GIB)))

    with pytest.raises(InfeasibleError, match=f"^{algorithm.value} found no device .* never splits"):
        BASELINES[algorithm](problem)


@generated(20, 60)
@given(asked=search_requests())
def test_every_baseline_places_whole_units_within_memory_or_raises(asked: PlanRequest) -> None:
    """Over random requests."""
    problem = problem_of(asked)
    if problem.memory.shard_capacity_bytes <= 0:
        return
    for baseline in BASELINES.values():
        try:
            found = baseline(problem)
        except InfeasibleError:
            continue
        assert [unit for unit, _, _ in shards_of(problem, found)] == list(range(len(problem.units)))
        used = np.zeros(problem.num_devices, dtype=np.int64)
        np.add.at(used, found.devices, problem.kinds.memory_bytes[found.kinds])
        assert used.max() <= problem.memory.shard_capacity_bytes
        unit = problem.kinds.unit[found.kinds]
        assert problem.allowed is None or problem.allowed[unit, found.devices].all()
