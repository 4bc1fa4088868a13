"""The published search: NeuroShard (MLSys 2023), algorithm 1, with its placements side by side.

A beam over lists of shards starts from whole tables. At each level one of the shards with the most memory or one of the
most expensive is halved, every list is placed under all limits on columns by the networks (see marginal_placement), and
the cheapest lists go on; lists that two parents lead to count twice, as published. Where the work suffices for all
levels the result is that of the published algorithm.
"""

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.search.marginal_placement import MarginalPlacement, PlacedList, alone_ms

NUM_CANDIDATES = 10  # shards halved per level and criterion, as published
MOST_WORK = 100_000  # of a whole beam; larger sets are given a share of their budget
SHARE_OF_MOST = 0.05  # of all shards, devices and limits, what the beam evaluates: the rest is known from other lists


def published_beam(problem: Problem, *, work_budget: int) -> list[Placement]:
    """Return the cheapest placements of distinct lists, cheapest first, at most the beam's width. Empty: none fits.

    Widths and levels are those of the request. ``work_budget`` is the ``problem.work`` at which the last level ends.
    """
    settings = problem.request.search
    search = MarginalPlacement(problem)
    best: list[PlacedList] = []
    lists = [problem.whole]
    work_per_list = search.most_work(len(problem.whole))
    for _ in range(1 + settings.max_levels):
        before = problem.work
        if not lists or before + work_per_list * len(lists) > work_budget:
            break
        beam = sorted(search.cheapest(lists), key=lambda each: each.total_ms)[: settings.beam_width]
        work_per_list = (problem.work - before) / len(lists)
        best += beam
        lists = [kinds for parent in beam for kinds in halved(problem, parent.kinds)]
    first: dict[bytes, Placement] = {}
    for each in sorted(best, key=lambda each: each.total_ms):
        if each.placement is not None:
            first.setdefault(np.sort(each.kinds).tobytes(), each.placement)
    return list(first.values())[: settings.beam_width]


def published_work(problem: Problem) -> int:
    """Return the work that the whole beam is given where it most likely suffices, else 0."""
    settings = problem.request.search
    num_lists = settings.max_levels * settings.beam_width * 2 * NUM_CANDIDATES
    most = num_lists * MarginalPlacement(problem).most_work(len(problem.units) + settings.max_levels)
    return MOST_WORK if SHARE_OF_MOST * most <= MOST_WORK else 0


def halved(problem: Problem, kinds: IndexArray) -> list[IndexArray]:
    """Return the lists with one more shard cut in halves, of the largest by memory and the most expensive."""
    unit, width = problem.kinds.unit[kinds], problem.kinds.num_columns[kinds]
    num_shards = np.bincount(unit, minlength=len(problem.units))
    splittable = np.flatnonzero(
        ((width // 2) % DIM_MULTIPLE == 0)
        & (width // 2 >= problem.min_shard_width[unit])
        & (num_shards < problem.max_shards)[unit]
    )
    chosen: dict[int, None] = {}
    for criterion in (problem.kinds.memory_bytes[kinds].astype(np.float64), alone_ms(problem, kinds)):
        order = splittable[np.argsort(-criterion[splittable], kind="stable")]
        chosen.update(dict.fromkeys(order[:NUM_CANDIDATES].tolist()))
    positions = list(chosen)
    rows, units = problem.kinds.num_rows[kinds[positions]].tolist(), unit[positions].tolist()
    sizes = [ShardSize(*size) for size in zip(rows, (width[positions] // 2).tolist(), strict=True)]
    halves = problem.kinds_of(units, sizes).tolist()
    return [
        np.append(np.delete(kinds, position), [half, half]) for position, half in zip(positions, halves, strict=True)
    ]
