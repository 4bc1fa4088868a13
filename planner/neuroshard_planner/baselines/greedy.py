"""Baselines: whole tables in descending order of a simple size, each to the device with the least of it so far.

Published heuristics (RecShard, ASPLOS 2022; DreamShard, NeurIPS 2022; NeuroShard, MLSys 2023); none splits a table.
"""

from collections.abc import Callable

import numpy as np
from neuroshard_api.documents.request import Algorithm
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.greedy_placement import GreedyPass, place

Baseline = Callable[[Problem], Placement]
"""Returns a placement that fits. Raises InfeasibleError where the heuristic finds none."""


def dim_greedy(problem: Problem) -> Placement:
    """Even out the columns of returned vectors."""
    vectors = np.array([table.num_vectors for table in problem.request.tables.tables])
    _, columns, _ = _numbers(problem)
    return _greedy(problem, vectors * columns, "dim_greedy")


def size_greedy(problem: Problem) -> Placement:
    """Even out rows times dimension."""
    rows, columns, _ = _numbers(problem)
    return _greedy(problem, rows * columns, "size_greedy")


def lookup_greedy(problem: Problem) -> Placement:
    """Even out dimension times pooling factor."""
    _, columns, pooling = _numbers(problem)
    return _greedy(problem, columns * pooling, "lookup_greedy")


def size_lookup_greedy(problem: Problem) -> Placement:
    """Even out dimension times pooling factor times the logarithm of the rows."""
    rows, columns, pooling = _numbers(problem)
    return _greedy(problem, columns * pooling * np.log10(rows + 1), "size_lookup_greedy")


def random(problem: Problem) -> Placement:
    """Put every table, in random order, on a random device that has memory for it."""
    generator = np.random.default_rng(problem.request.search.seed)
    room = np.full(problem.num_devices, problem.memory.shard_capacity_bytes)
    devices = np.empty(len(problem.whole), dtype=np.int64)
    for unit in generator.permutation(len(problem.whole)):
        needed = problem.kinds.memory_bytes[problem.whole[unit]]
        fits = room >= needed
        if problem.allowed is not None:
            fits &= problem.allowed[unit]
        if not fits.any():
            raise _no_room("random")
        devices[unit] = generator.choice(np.flatnonzero(fits))
        room[devices[unit]] -= needed
    return Placement(kinds=problem.whole, devices=devices)


BASELINES: dict[Algorithm, Baseline] = {
    Algorithm.RANDOM: random,
    Algorithm.DIM_GREEDY: dim_greedy,
    Algorithm.SIZE_GREEDY: size_greedy,
    Algorithm.LOOKUP_GREEDY: lookup_greedy,
    Algorithm.SIZE_LOOKUP_GREEDY: size_lookup_greedy,
}
"""Every baseline that needs nothing beyond the planner."""


def _numbers(problem: Problem) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return [tables] rows, columns and pooling factors."""
    tables = problem.request.tables.tables
    return (
        np.array([table.num_embeddings for table in tables], dtype=np.float64),
        np.array([table.embedding_dim for table in tables], dtype=np.float64),
        np.array([table.pooling_factor for table in tables], dtype=np.float64),
    )


def _greedy(problem: Problem, table_sizes: FloatArray, name: str) -> Placement:
    loads = np.zeros(len(problem.kinds))
    loads[problem.whole] = [table_sizes[list(unit.tables)].sum() for unit in problem.units]
    placement = place(problem, [GreedyPass(kinds=problem.whole, dim_limit=np.inf, memory_price=0.0)], loads)[0]
    if placement is None:
        raise _no_room(name)
    return placement


def _no_room(name: str) -> InfeasibleError:
    return InfeasibleError(
        f"{name} found no device with memory for a whole table; it never splits tables, use the neuroshard algorithm"
    )
