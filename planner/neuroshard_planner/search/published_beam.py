"""The published search: NeuroShard (MLSys 2023), algorithm 1, with its placements side by side.

A beam over lists of shards starts from whole tables. At each level one of the shards with the most memory or one of the
most expensive is halved, every list is placed by the networks (see marginal_placement), and the cheapest lists go on.
What differs is the limits on columns: where the work does not suffice for all of them, a list is placed under the best
limit of the list that it comes from and that limit's neighbors.
"""

from dataclasses import dataclass, replace

import numpy as np
from neuroshard_api.tables import DIM_MULTIPLE
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.problem import Placement, Problem, ShardSize
from neuroshard_planner.problem.step_cost import Collective
from neuroshard_planner.search.greedy_placement import Lane
from neuroshard_planner.search.marginal_placement import DIM_FACTORS, alone_ms, lane_work, place_by_networks

NUM_CANDIDATES = 10  # shards halved per level and criterion, as published
RADII = (len(DIM_FACTORS), 2, 1, 0)  # neighbors of a limit on each side; the most that the work allows
LANES_AT_ONCE = 256  # keeps the arrays of one greedy pass within the processor's cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A list of shards at its cheapest."""

    kinds: IndexArray
    placement: Placement | None = None
    """None: it fits under no limit that was tried."""
    factor: int | None = None
    """Position of its limit in DIM_FACTORS."""
    total_ms: float = np.inf


def published_beam(problem: Problem, *, work_budget: int) -> list[Placement]:
    """Return the cheapest placements of the beam, cheapest first, at most the beam's width. Empty: none fits.

    Widths and levels are those of the request. ``work_budget`` is the ``problem.work`` at which the last level ends.
    """
    settings = problem.request.search
    radius = _radius(problem, work_budget - problem.work)
    lanes = [(problem.whole, factor) for factor in range(len(DIM_FACTORS))]
    beam: list[Placed] = []
    best: list[Placed] = []
    for _ in range(1 + settings.max_levels):
        if not lanes or problem.work + sum(lane_work(problem, len(kinds)) for kinds, _ in lanes) > work_budget:
            break
        beam = _placed(problem, lanes)[: settings.beam_width]
        best = sorted([*best, *beam], key=lambda each: each.total_ms)[: settings.beam_width]
        lanes = [
            (kinds, factor)
            for parent in beam
            for kinds in halved(problem, parent.kinds)
            for factor in _near(parent.factor, radius)
        ]
    return [each.placement for each in best if each.placement is not None]


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
    lists = []
    for position in chosen:
        size = ShardSize(int(problem.kinds.num_rows[kinds[position]]), int(width[position]) // 2)
        halves = problem.kinds_of([int(unit[position])] * 2, [size, size])
        lists.append(np.concatenate([np.delete(kinds, position), halves]))
    return lists


def _radius(problem: Problem, work: int) -> int:
    """Return how many neighbors of a limit all levels can try."""
    settings = problem.request.search
    most_shards = len(problem.units) + settings.max_levels
    num_lists = settings.max_levels * settings.beam_width * min(2 * NUM_CANDIDATES, most_shards)
    least = num_lists * lane_work(problem, most_shards)
    affordable = [radius for radius in RADII if least * min(2 * radius + 1, len(DIM_FACTORS)) <= work]
    return max(affordable, default=0)


def _near(factor: int | None, radius: int) -> range:
    """Return the limits within a radius of one, or all of them."""
    if factor is None:
        return range(len(DIM_FACTORS))
    return range(max(factor - radius, 0), min(factor + radius + 1, len(DIM_FACTORS)))


def _placed(problem: Problem, lists: list[tuple[IndexArray, int]]) -> list[Placed]:
    """Place lists of shards under limits; return each distinct list at its cheapest, cheapest first."""
    mean = problem.kinds.traffic[problem.whole, Collective.POOLED_EMBEDDINGS].sum() / problem.num_devices
    cheapest = {np.sort(kinds).tobytes(): Placed(kinds=kinds) for kinds, _ in lists}
    for first in range(0, len(lists), LANES_AT_ONCE):
        batch = lists[first : first + LANES_AT_ONCE]
        lanes = [Lane(kinds=kinds, dim_limit=DIM_FACTORS[factor] * mean, memory_price=0.0) for kinds, factor in batch]
        fitting = [
            Placed(kinds=kinds, factor=factor, placement=placement)
            for (kinds, factor), placement in zip(batch, place_by_networks(problem, lanes), strict=True)
            if placement is not None
        ]
        totals = problem.total_ms([each.placement for each in fitting if each.placement is not None]).tolist()
        for each, total_ms in zip(fitting, totals, strict=True):
            key = np.sort(each.kinds).tobytes()
            if total_ms < cheapest[key].total_ms:
                cheapest[key] = replace(each, total_ms=total_ms)
    return sorted(cheapest.values(), key=lambda each: each.total_ms)
