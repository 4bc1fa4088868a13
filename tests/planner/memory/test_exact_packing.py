"""Packing as an integer program."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_planner.memory.exact_packing import MOST_CHOICES, PackingProblem, pack_exactly

MAX_NODES = 1_000


def packing(
    quads: Sequence[int],
    *,
    capacity_bytes: int,
    num_devices: int = 2,
    max_shards: Sequence[int] | int = 4,
    min_quads: Sequence[int] | int = 1,
    shard_bytes: int = 0,
    allowed: Sequence[Sequence[bool]] | None = None,
) -> PackingProblem:
    """Return a problem whose units need 10 bytes for each quad, and some for each shard."""
    num_units = len(quads)
    return PackingProblem(
        quads=np.array(quads),
        min_quads=np.broadcast_to(min_quads, num_units).copy(),
        max_shards=np.broadcast_to(max_shards, num_units).copy(),
        shard_bytes=np.full(num_units, shard_bytes),
        quad_bytes=np.full(num_units, 10),
        allowed=np.ones((num_units, num_devices), dtype=np.bool_) if allowed is None else np.array(allowed),
        capacity_bytes=capacity_bytes,
    )


def assert_packed(problem: PackingProblem) -> None:
    """Check that a packing is found and keeps every rule."""
    quads = pack_exactly(problem, max_nodes=MAX_NODES)
    assert quads is not None
    assert quads.sum(axis=1).tolist() == problem.quads.tolist()
    assert ((quads > 0).sum(axis=1) <= problem.max_shards).all()
    assert ((quads == 0) | (quads >= problem.min_quads[:, None])).all()
    assert not quads[~problem.allowed].any()
    assert problem.used_bytes(quads).max() <= problem.capacity_bytes


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(packing([4, 4, 3, 3, 2], capacity_bytes=80, max_shards=1), id="whole, exactly full"),
        pytest.param(packing([16], capacity_bytes=80), id="one in two halves"),
        pytest.param(packing([7, 7, 7], capacity_bytes=112, shard_bytes=1, min_quads=3), id="uneven cut"),
        pytest.param(
            packing([8, 4], capacity_bytes=80, allowed=[[True, True], [True, False]], max_shards=[1, 4]), id="pinned"
        ),
    ],
)
def test_what_fits_is_packed(problem: PackingProblem) -> None:
    """Every unit is there, within its own rules and the capacity."""
    assert_packed(problem)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(packing([6, 6, 6], capacity_bytes=100, max_shards=1), id="whole"),
        pytest.param(packing([8, 8], capacity_bytes=79), id="total"),
        pytest.param(packing([16], capacity_bytes=80, shard_bytes=1), id="bytes of a shard"),
        pytest.param(packing([7, 7, 6], capacity_bytes=100, min_quads=4), id="narrow rest"),
        pytest.param(packing([8, 8], capacity_bytes=90, allowed=[[True, False]] * 2), id="one device"),
    ],
)
def test_what_does_not_fit_is_not_packed(problem: PackingProblem) -> None:
    """None says so."""
    assert pack_exactly(problem, max_nodes=MAX_NODES) is None


def test_a_problem_beyond_its_size_is_left_alone() -> None:
    """Greedy filling has to do there."""
    assert pack_exactly(packing([1] * (MOST_CHOICES // 2 + 1), capacity_bytes=10**9), max_nodes=MAX_NODES) is None


@given(
    held=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any), min_size=1, max_size=6),
    shard_bytes=st.integers(0, 5),
)
def test_every_packing_that_was_made_is_found_again(held: list[list[int]], shard_bytes: int) -> None:
    """Where some way to fill three devices is known, one is found, even without a byte to spare."""
    known = np.array(held)
    problem = packing(
        known.sum(axis=1).tolist(),
        num_devices=3,
        max_shards=(known > 0).sum(axis=1).tolist(),
        shard_bytes=shard_bytes,
        capacity_bytes=0,
    )
    full = int(problem.used_bytes(known).max())

    assert_packed(
        packing(
            known.sum(axis=1).tolist(),
            num_devices=3,
            max_shards=(known > 0).sum(axis=1).tolist(),
            shard_bytes=shard_bytes,
            capacity_bytes=full,
        )
    )
