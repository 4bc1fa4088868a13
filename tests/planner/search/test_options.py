"""Sharding options: the ways a unit may be cut."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.units import resolve_units
from neuroshard_planner.search.options import OptionTable, column_cuts
from support.builders import request, table, tables
from support.planner.searches import problem_of


@pytest.mark.parametrize(
    ("embedding_dim", "constraints", "num_devices", "expected"),
    [
        pytest.param(128, Constraints(), 4, [2, 3, 4, 6, 8], id="twice the devices"),
        pytest.param(128, Constraints(), 64, [2, 3, 4, 6, 8, 12, 16, 24, 32], id="down to four columns"),
        pytest.param(128, Constraints(max_shards_per_table=5), 64, [2, 3, 4], id="most shards"),
        pytest.param(128, Constraints(min_shard_width=36), 64, [2, 3], id="least width of the narrowest"),
        pytest.param(12, Constraints(), 64, [2, 3], id="width 12"),
        pytest.param(4, Constraints(), 64, [], id="width 4"),
        pytest.param(128, Constraints(), 1, [2], id="one device"),
        pytest.param(128, Constraints(max_shards_per_table=1), 8, [], id="whole"),
    ],
)
def test_column_splits_grow_by_a_third_to_a_half(
    embedding_dim: int, constraints: Constraints, num_devices: int, expected: list[int]
) -> None:
    """Within the most shards, the least width and twice the devices."""
    (unit,) = resolve_units(request(table(embedding_dim=embedding_dim), constraints=constraints))

    cuts = list(column_cuts(unit, num_devices))

    assert [len(shards) for shards in cuts] == [1, *expected]
    assert all(sum(shard.num_columns for shard in shards) == embedding_dim for shards in cuts)


def test_a_group_has_one_option() -> None:
    """It is placed whole."""
    (unit,) = resolve_units(request(*tables(3, colocation_group="g")))

    assert list(column_cuts(unit, 8)) == [(ShardSize(3_000_000, 192),)]


def test_the_table_of_options_finds_the_shards_of_a_state() -> None:
    """A state takes one option per unit; its shards follow in the units' order, the largest first."""
    problem = problem_of(
        request(table("a", embedding_dim=12), table("b", embedding_dim=4), table("c", embedding_dim=20))
    )
    options = OptionTable(problem)
    kinds = problem.kinds

    assert options.count.tolist() == [1, 2, 3, 1, 1, 2, 3, 4]
    assert (options.first.tolist(), options.last.tolist()) == ([0, 3, 4], [2, 3, 7])
    state = np.array([1, 3, 6])
    assert kinds.num_columns[options.shards(state)].tolist() == [8, 4, 4, 8, 8, 4]
    assert kinds.unit[options.shards(state)].tolist() == [0, 0, 1, 2, 2, 2]
    assert kinds.num_columns[options.largest(state)].tolist() == [8, 4, 8]


def test_the_options_of_some_units_are_states_of_these_alone() -> None:
    """Their kinds are the same, their positions count from 0."""
    problem = problem_of(request(*tables(3), num_devices=4))
    every = OptionTable(problem)

    some = every.only(np.array([0, 2]))

    assert len(some.first) == 2
    assert some.shards(some.first).tolist() == problem.whole[[0, 2]].tolist()
    assert some.shards(some.last).tolist() == [
        *every.kinds[every.start[every.last[0]] :][: every.count[every.last[0]]].tolist(),
        *every.kinds[every.start[every.last[2]] :][: every.count[every.last[2]]].tolist(),
    ]
