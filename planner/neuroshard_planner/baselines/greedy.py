"""Baselines: whole tables in descending order of a simple size, each to the device with the least of it so far.

Published heuristics (RecShard, ASPLOS 2022; DreamShard, NeurIPS 2022; NeuroShard, MLSys 2023); none splits a table.
Tables that constraints let be by rows or copies alone are not theirs to place: they are so before the others come.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from neuroshard_api.documents.request import Algorithm
from neuroshard_costs.arithmetic import log2
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.assignments import bound_to_convert
from neuroshard_planner.search.options import Forms
from neuroshard_planner.search.partitioner import GreedyPass, place


class Baseline(Protocol):
    """A heuristic."""

    def __call__(self, problem: Problem, fixed: Placement | None = None) -> Placement:
        """Return a placement that fits. Raises InfeasibleError where the heuristic finds none.

        Args:
            problem: whose units are placed whole.
            fixed: all shards of some units, which are on their devices already.
        """


def bound_placement(problem: Problem) -> Placement | None:
    """Return the units that may not be whole on a device, each in the first form that it may have. None: there is none.

    Raises:
        InfeasibleError: there is no memory for them.
    """
    bound = bound_to_convert(problem)
    if not bound:
        return None
    forms, kinds = Forms(problem, bound), problem.kinds
    used: IndexArray = np.zeros(problem.num_devices, dtype=np.int64)
    found: list[Placement] = []
    for unit in sorted(bound, key=lambda unit: -kinds.memory_bytes[problem.whole[unit]]):
        room = problem.memory.shard_capacity_bytes - used
        option = next(forms.options(unit, used.astype(np.float64), room), None)
        if option is None:
            name = problem.request.tables.tables[problem.units[unit].tables[0]].name
            raise InfeasibleError(
                f"table {name!r} may be {' or '.join(sorted(problem.sharding_types[unit]))} alone, which finds no room"
            )
        used += problem.used_bytes(option.placement)
        found.append(option.placement)
    return Placement.joined(*found)


def random(problem: Problem, fixed: Placement | None = None) -> Placement:
    """Put every table, in random order, on a random device that has memory for it."""
    generator = np.random.default_rng(problem.request.search.seed)
    room = np.full(problem.num_devices, problem.memory.shard_capacity_bytes)
    if fixed is not None:
        room -= problem.used_bytes(fixed)
    free = _free_units(problem, fixed)
    devices = np.empty(len(problem.whole), dtype=np.int64)
    for unit in generator.permutation(free):
        needed = problem.kinds.memory_bytes[problem.whole[unit]]
        fits = room >= needed
        if problem.allowed is not None:
            fits &= problem.allowed[unit]
        if not fits.any():
            raise _no_room("random")
        devices[unit] = generator.choice(np.flatnonzero(fits))
        room[devices[unit]] -= needed
    placed = Placement(kinds=problem.whole[free], devices=devices[free])
    return placed if fixed is None else Placement.joined(fixed, placed)


def _greedy(algorithm: Algorithm, problem: Problem, fixed: Placement | None = None) -> Placement:
    """Place whole units by the size that an algorithm evens out."""
    tables = _Numbers(
        *np.array(
            [
                (each.num_embeddings, each.embedding_dim, each.pooling_factor, each.num_vectors)
                for each in problem.request.tables.tables
            ],
            dtype=np.float64,
        ).T
    )
    table_sizes = _SIZES[algorithm](tables)
    loads = np.zeros(len(problem.kinds))
    loads[problem.whole] = [table_sizes[list(unit.tables)].sum() for unit in problem.units]
    kinds = problem.whole[_free_units(problem, fixed)]
    if fixed is not None and not len(kinds):
        return fixed
    placement = place(problem, [GreedyPass(kinds=kinds, dim_limit=np.inf, memory_price=0.0)], loads, fixed=fixed)[0]
    if placement is None:
        raise _no_room(algorithm)
    return placement if fixed is None else Placement.joined(fixed, placement)


class _Numbers(NamedTuple):
    """Numbers of all tables, [tables] each."""

    rows: FloatArray
    columns: FloatArray
    pooling: FloatArray
    vectors: FloatArray
    """That a sample gets of the table."""


_SIZES: Mapping[Algorithm, Callable[[_Numbers], FloatArray]] = {
    Algorithm.DIM_GREEDY: lambda tables: tables.vectors * tables.columns,
    Algorithm.SIZE_GREEDY: lambda tables: tables.rows * tables.columns,
    Algorithm.LOOKUP_GREEDY: lambda tables: tables.columns * tables.pooling,
    Algorithm.SIZE_LOOKUP_GREEDY: lambda tables: tables.columns * tables.pooling * log2(tables.rows + 1),
}
"""What each algorithm evens out, [tables]."""

BASELINES: Mapping[Algorithm, Baseline] = {
    Algorithm.RANDOM: random,
    **{algorithm: partial(_greedy, algorithm) for algorithm in _SIZES},
}
"""Every baseline that needs nothing beyond the planner."""


def _free_units(problem: Problem, fixed: Placement | None) -> IndexArray:
    """Return the units without fixed shards."""
    units: IndexArray = np.arange(len(problem.units))
    return units if fixed is None else np.setdiff1d(units, problem.kinds.unit[fixed.kinds])


def _no_room(name: str) -> InfeasibleError:
    return InfeasibleError(
        f"{name} found no device with memory for a whole table; it never splits tables, use the neuroshard algorithm"
    )
