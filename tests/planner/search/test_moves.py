"""Candidate moves between a source and its targets."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_costs.shards import FloatArray
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.local_search import State, merged
from neuroshard_planner.search.moves import NONE, CandidateMoves, relocations, shard_on, splits, swaps
from support.builders import request, table, tables
from support.depth import generated
from support.planner.searches import placed, problem_of, random_placement, search_requests, shards_of

Shards = list[tuple[int, int, int]]


def outcomes(problem: Problem, placement: Placement, moves: CandidateMoves) -> list[Shards]:
    """Return the shards as (unit, columns, device) after each move."""
    results = []
    for choice in range(len(moves.target)):
        state = State(problem, [placement])
        state.apply(moves.take(np.array([choice])), np.zeros((2, 1, 2)))
        results.append(shards_of(problem, state.placements()[0]))
    return results


def swaps_of_first(
    problem: Problem, placement: Placement, wanted: dict[int, float], *, load: FloatArray
) -> CandidateMoves:
    """Return the swaps of the first shard with those of targets, from each of which some load is wanted."""
    return swaps(
        problem,
        State(problem, [placement]),
        np.array([0]),
        np.array([list(wanted)]),
        place=np.array([0]),
        size=load,
        wanted=np.array([list(wanted.values())]),
    )


def all_splits(problem: Problem, placement: Placement, source: int, *, wanted: float) -> list[Shards]:
    """Return the outcomes of splitting every shard of the source towards every other device; loads are columns."""
    state = State(problem, [placement])
    targets = np.array([device for device in range(problem.num_devices) if device != source])
    load = problem.kinds.num_columns[state.kinds].astype(np.float64)
    held = np.flatnonzero(state.slots == source)
    targets = np.tile(targets, (len(held), 1))
    moves = splits(problem, state, held, targets, load=load, wanted=np.full(targets.shape, wanted))
    return outcomes(problem, placement, moves)


def test_a_shard_may_move_to_any_device_without_a_shard_of_its_table() -> None:
    """Two shards of a table never meet by a move."""
    problem = problem_of(request(table(embedding_dim=128), num_devices=3))
    placement = placed(problem, (0, 64, 0), (0, 64, 1))
    state = State(problem, [placement])

    moves = relocations(problem, state, np.array([0]), np.array([[1, 2]]))

    assert outcomes(problem, placement, moves) == [[(0, 64, 1), (0, 64, 2)]]


def test_a_move_keeps_to_allowed_devices() -> None:
    """A pinned table has nowhere to go."""
    constraints = Constraints(forbidden_devices=(3,), tables={"t0": TableConstraints(devices=(0,))})
    problem = problem_of(request(*tables(2), constraints=constraints))
    state = State(problem, [placed(problem, (0, 64, 0), (1, 64, 0))])

    moves = relocations(problem, state, np.array([0, 1]), np.array([[1, 2, 3]] * 2))

    assert list(zip(moves.source_shard.tolist(), moves.target.tolist(), strict=True)) == [(1, 1), (1, 2)]


def test_the_swaps_next_to_the_wanted_load_are_given() -> None:
    """To hand over 3 of load, a shard of 10 looks for partners next to 7: those of 6 and 8."""
    problem = problem_of(request(*tables(6), num_devices=2))
    placement = placed(problem, (0, 64, 0), *((unit, 64, 1) for unit in range(1, 6)))
    load = np.array([10.0, 1.0, 6.0, 8.0, 9.0, 12.0])

    moves = swaps_of_first(problem, placement, {1: 3.0}, load=load)

    assert sorted(load[moves.target_shard].tolist()) == [6.0, 8.0]
    assert (moves.source_kind == problem.whole[moves.target_shard]).all()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(0.0, {9.0, 11.0}, id="none: the next on both sides"),
        pytest.param(100.0, {1.0}, id="more than there is: the lightest"),
    ],
)
def test_a_want_beyond_what_is_there_gives_the_nearest(wanted: float, expected: set[float]) -> None:
    """At either end of the target's sizes there is one neighbour less."""
    problem = problem_of(request(*tables(4), num_devices=2))
    placement = placed(problem, (0, 64, 0), (1, 64, 1), (2, 64, 1), (3, 64, 1))
    load = np.array([10.0, 1.0, 9.0, 11.0])

    moves = swaps_of_first(problem, placement, {1: wanted}, load=load)

    assert set(load[moves.target_shard].tolist()) == expected


def test_a_swap_looks_at_each_target_apart() -> None:
    """Partners come from the target's own shards, whatever others hold."""
    problem = problem_of(request(*tables(5), num_devices=4))
    placement = placed(problem, (0, 64, 0), (1, 64, 2), (2, 64, 2), (3, 64, 1), (4, 64, 1))
    load = np.array([10.0, 7.0, 2.0, 6.0, 3.0])

    moves = swaps_of_first(problem, placement, {2: 3.0, 3: 3.0, 1: 7.0}, load=load)

    found = sorted(zip(moves.target.tolist(), load[moves.target_shard].tolist(), strict=True))
    assert found == [(1, 3.0), (2, 2.0), (2, 7.0)]


def test_a_swap_brings_no_two_shards_of_a_table_together() -> None:
    """Neither on the target nor on the source."""
    problem = problem_of(request(*tables(2, embedding_dim=128), num_devices=2))
    placement = placed(problem, (0, 64, 0), (0, 64, 1), (1, 128, 1))
    load = np.array([5.0, 4.0, 1.0])

    moves = swaps_of_first(problem, placement, {1: 4.0}, load=load)

    assert outcomes(problem, placement, moves) in ([], [[(0, 64, 0), (0, 64, 1), (1, 128, 1)]])


def test_a_swap_keeps_both_tables_on_their_devices() -> None:
    """A partner that may not be on the source is not a partner."""
    constraints = Constraints(tables={"t1": TableConstraints(devices=(1,))})
    problem = problem_of(request(*tables(3), num_devices=2, constraints=constraints))
    placement = placed(problem, (0, 64, 0), (1, 64, 1), (2, 64, 1))
    load = np.array([10.0, 5.0, 4.0])

    moves = swaps_of_first(problem, placement, {1: 5.5}, load=load)

    assert moves.target_shard.tolist() == [2]


@pytest.mark.parametrize(
    ("wanted", "moving"), [(0.0, 4), (1.0, 4), (31.0, 32), (64.0, 64), (127.0, 124), (1000.0, 124)]
)
def test_a_split_moves_about_the_wanted_load(wanted: float, moving: int) -> None:
    """In whole vectors of four, and leaving one."""
    problem = problem_of(request(table(embedding_dim=128), num_devices=2))

    found = all_splits(problem, placed(problem, (0, 128, 0)), 0, wanted=wanted)

    assert found == [sorted([(0, 128 - moving, 0), (0, moving, 1)])]


def test_columns_that_meet_their_table_are_merged() -> None:
    """A vector of four may move on its own where it joins a shard."""
    problem = problem_of(request(table(embedding_dim=128), num_devices=2, constraints=Constraints(min_shard_width=32)))

    found = all_splits(problem, placed(problem, (0, 88, 0), (0, 40, 1)), 0, wanted=4.0)

    assert found == [[(0, 44, 1), (0, 84, 0)]]


def test_a_rest_too_narrow_goes_along() -> None:
    """The shard leaves as a whole and is merged: one shard less."""
    problem = problem_of(request(table(embedding_dim=128), num_devices=2, constraints=Constraints(min_shard_width=32)))

    found = all_splits(problem, placed(problem, (0, 40, 0), (0, 88, 1)), 0, wanted=12.0)

    assert found == [[(0, 128, 1)]]


@pytest.mark.parametrize(
    "constraints",
    [
        pytest.param(Constraints(max_shards_per_table=1), id="whole"),
        pytest.param(Constraints(min_shard_width=68), id="halves too narrow"),
        pytest.param(Constraints(colocate=(("user",),)), id="group"),
        pytest.param(Constraints(tables={"user": TableConstraints(devices=(0,))}), id="pinned"),
    ],
)
def test_a_table_that_may_not_be_split_is_not(constraints: Constraints) -> None:
    """There is no candidate at all."""
    problem = problem_of(request(table(embedding_dim=128), num_devices=3, constraints=constraints))

    assert all_splits(problem, placed(problem, (0, 128, 0)), 0, wanted=64.0) == []


def test_a_table_of_most_shards_only_shifts_columns() -> None:
    """A further device gets none; the device of the other shard may."""
    problem = problem_of(
        request(table(embedding_dim=128), num_devices=3, constraints=Constraints(max_shards_per_table=2))
    )

    found = all_splits(problem, placed(problem, (0, 96, 0), (0, 32, 1)), 0, wanted=32.0)

    assert found == [[(0, 64, 0), (0, 64, 1)]]


def test_a_shard_is_found_by_unit_and_device() -> None:
    """NONE where there is none, also beyond the last key."""
    problem = problem_of(request(*tables(3)))
    state = State(problem, [placed(problem, (2, 64, 0), (0, 64, 3), (1, 64, 1))])

    found = shard_on(problem, state, np.array([0, 0, 1, 2, 2]), np.array([3, 2, 1, 0, 3]))

    assert found.tolist() == [1, NONE, 2, 0, NONE]


@generated(20, 60)
@given(asked=search_requests(), seed=st.integers(0, 9999))
def test_no_step_breaks_a_constraint_or_loses_a_column(asked: PlanRequest, seed: int) -> None:
    """Over random placements, sources, loads and wants."""
    problem = problem_of(asked)
    generator = random.Random(seed)  # noqa: S311 - no secret
    placement = merged(problem, random_placement(problem, generator))
    state = State(problem, [placement])
    source = int(generator.choice(placement.devices.tolist()))
    targets = np.array([device for device in range(problem.num_devices) if device != source], dtype=np.int64)
    if not len(targets):
        return
    held = np.flatnonzero(state.slots == source)
    load = np.random.default_rng(seed).random(len(state.kinds)) + 0.1
    wanted = np.random.default_rng(seed).random((1, len(targets))) - 0.2
    place = np.zeros(len(held), dtype=np.int64)
    moves = CandidateMoves.concatenated(
        [
            relocations(problem, state, held, targets[None][place]),
            swaps(problem, state, held, targets[None], place=place, size=load, wanted=wanted),
            splits(problem, state, held, targets[None][place], load=load, wanted=wanted[place]),
        ]
    )

    for shards in outcomes(problem, placement, moves.take(np.arange(len(moves.target))[:20])):
        for index, unit in enumerate(problem.units):
            own = [(columns, device) for position, columns, device in shards if position == index]
            devices = [device for _, device in own]
            assert sum(columns for columns, _ in own) == unit.num_columns
            assert len(set(devices)) == len(devices)
            assert len(own) <= unit.max_shards
            assert min(columns for columns, _ in own) >= unit.min_shard_width
            assert all(columns % 4 == 0 for columns, _ in own)
            assert problem.allowed is None or problem.allowed[index, devices].all()
