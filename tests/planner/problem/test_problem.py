"""A request as arrays: kinds of shards, the transfer cost and the objective."""

import numpy as np
import pytest
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import slice_columns
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_planner.problem.shard_kinds import ShardSize
from support.builders import request, table, tables
from support.planner.exact_costs import ExactCosts
from support.planner.searches import placed, problem_of


def test_equal_shards_are_one_kind() -> None:
    """A kind is represented once, however often it is asked for."""
    problem = problem_of(request())
    size = ShardSize(1_000_000, 32)

    first, again, other = problem.kinds_of([1, 1, 2], [size] * 3)

    assert first == again
    assert first != other
    assert problem.kinds_of([1], [size])[0] == first
    assert problem.kinds.num_columns[first] == 32


@pytest.mark.parametrize("embedding_dim", [64, 8192])
def test_widths_are_found_as_sizes_are(embedding_dim: int) -> None:
    """Those of a unit are represented at once, unless it has more than fit the processor's cache."""
    problem = problem_of(request(table("wide", embedding_dim=embedding_dim), table("narrow", embedding_dim=4)))
    units, widths = np.array([1, 0, 0, 0]), np.array([4, 8, 64, 8])

    found = problem.kinds_by_columns(units, widths)

    again = problem.kinds_by_columns(units[::-1], widths[::-1])
    sizes = [ShardSize(1_000_000, width) for width in widths.tolist()]
    assert found.tolist() == problem.kinds_of(units.tolist(), sizes).tolist() == again[::-1].tolist()
    assert len(problem.kinds) < 64


def test_kinds_survive_growing() -> None:
    """Making room for new kinds keeps the old ones."""
    problem = problem_of(request(table(embedding_dim=8192)))
    first = problem.kinds_of([0], [ShardSize(1_000_000, 4)])[0]
    before = problem.kinds.representation[first].copy()

    problem.kinds_of([0] * 500, [ShardSize(1_000_000, 4 * width) for width in range(1, 501)])

    assert len(problem.kinds) >= 500
    assert np.array_equal(problem.kinds.representation[first], before)


def test_a_groups_representation_and_memory_are_its_tables_sums() -> None:
    """Placing a group adds to a device what its tables add."""
    members = (table("a", embedding_dim=12), table("b", pooling_factor=7.0))
    alone = problem_of(request(*members))
    grouped = problem_of(request(*(member.model_copy(update={"colocation_group": "g"}) for member in members)))

    assert np.allclose(
        grouped.kinds.representation[grouped.whole[0]], alone.kinds.representation[alone.whole].sum(axis=0)
    )
    assert grouped.kinds.memory_bytes[grouped.whole[0]] == alone.kinds.memory_bytes[alone.whole].sum()
    assert grouped.kinds.num_columns[grouped.whole[0]] == 76


@pytest.mark.parametrize("width", [4, 12, 36, 8188])
def test_a_slice_has_exactly_its_columns(width: int) -> None:
    """Shares of a width lose no column to rounding."""
    asked = request(table(embedding_dim=8192, num_embeddings=10**13))
    problem = problem_of(asked)
    tables_ = shard_arrays(asked.tables, global_batch_size=asked.global_batch_size, optimizer=asked.optimizer)

    kind = problem.kinds_of([0], [ShardSize(10**13, width)])[0]

    exact = slice_columns(tables_, np.array([0]), np.array([float(width)]))
    assert np.array_equal(problem.kinds.representation[kind], ExactCosts(asked.topology.device).represent(exact)[0])
    assert problem.kinds.memory_bytes[kind] == problem.memory.shard_bytes(
        np.array([0]), np.array([10**13]), np.array([width])
    )


def test_the_objective_is_compute_of_the_slowest_plus_both_transfers() -> None:
    """Against the simulator, which knows nothing of units and kinds."""
    asked = request(table("a", pooling_factor=30.0), table("b", embedding_dim=128), table("c"), num_devices=3)
    problem = problem_of(asked)
    placement = placed(problem, (0, 64, 0), (1, 64, 0), (1, 64, 1), (2, 64, 1))
    shards = shard_arrays(asked.tables, global_batch_size=asked.global_batch_size, optimizer=asked.optimizer)
    shards = slice_columns(shards, np.array([0, 1, 1, 2]), np.full(4, 64.0))

    compute = DeviceSimulator(asked.topology.device).compute_ms(shards, placement.devices, 3, pipeline=asked.pipeline)

    (total,) = problem.total_ms([placement])
    assert total == pytest.approx(compute.max(axis=0).sum() + problem.step_cost.pooled_ms(np.array([128.0])), rel=1e-5)


def test_placements_are_judged_independently() -> None:
    """Judging several at once gives what each costs alone."""
    problem = problem_of(request(num_devices=2))
    many = [placed(problem, *((unit, 64, unit * step % 2) for unit in range(4))) for step in range(3)]

    assert problem.total_ms(many).tolist() == [float(problem.total_ms([each])[0]) for each in many]
    assert problem.total_ms([]).tolist() == []


def test_an_empty_device_costs_nothing() -> None:
    """Its sum is exactly zero, and so are its times."""
    problem = problem_of(request(*tables(1)))

    sums = problem.device_sums(problem.whole, np.array([2]))

    assert not sums[[0, 1, 3]].any()
    assert problem.compute_ms(sums)[[0, 1, 3]].tolist() == [[0.0, 0.0]] * 3


def test_work_counts_evaluations_and_probes() -> None:
    """A device's evaluation is one, and so are 1,024 probes of greedy placement."""
    problem = problem_of(request())
    before = problem.work

    problem.compute_ms(np.zeros((3, 4, problem.kinds.representation.shape[1])))
    problem.greedy_probes += 2048

    assert problem.work - before == 14
