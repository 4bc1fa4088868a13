"""NeuroShard's published search, written anew from its description, under this planner's cost networks. A yardstick.

From the paper (MLSys 2023, sections 3.3 and 3.4) and the settings of its published code: a beam of 3 over column
splits, at most 10 levels, at each level the 10 shards largest by memory and the 10 most expensive alone; a split
halves a shard whose half is a multiple of 4. Each list of shards is placed greedily: in descending order of its cost
alone, each shard on the device whose cost with it is lowest, among those with memory and a dimension sum up to s times
the mean, for 11 values of s from 1.0 to 1.5; the best s counts. The cheapest list of all levels wins.

What differs: the 11 values of s are worked out side by side, which changes no result and costs less time than one
after another with the published cost cache; and the costs are those of this planner's networks.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.tables import DIM_MULTIPLE
from neuroshard_costs.shards import IndexArray
from neuroshard_planner.problem.problem import Placement, Problem, ShardSize
from neuroshard_planner.search.marginal_placement import alone_ms, marginal_placement

BEAM_WIDTH = 3
MAX_LEVELS = 10
CANDIDATES_PER_CRITERION = 10


@dataclass(frozen=True, kw_only=True)
class Split:
    """A list of shards and its best placement; infinite where no value of s finds room."""

    kinds: IndexArray
    placement: Placement | None
    total_ms: float


def reference_search(problem: Problem) -> Placement | None:
    """Return the placement that the published search finds, or None."""
    best = place_greedily(problem, problem.whole)
    beam = [best]
    for _ in range(MAX_LEVELS):
        children = [place_greedily(problem, kinds) for split in beam for kinds in _halved(problem, split.kinds)]
        if not children:
            break
        beam = sorted(children, key=lambda split: split.total_ms)[:BEAM_WIDTH]
        best = min([best, beam[0]], key=lambda split: split.total_ms)
    return best.placement


def place_greedily(problem: Problem, kinds: IndexArray) -> Split:
    """Place a list of shards for every s; keep the best."""
    placement = marginal_placement(problem, kinds)
    if placement is None:
        return Split(kinds=kinds, placement=None, total_ms=np.inf)
    return Split(kinds=placement.kinds, placement=placement, total_ms=float(problem.total_ms([placement])[0]))


def _halved(problem: Problem, kinds: IndexArray) -> list[IndexArray]:
    """Return the lists with one more candidate cut in halves."""
    width = problem.kinds.num_columns[kinds]
    splittable = np.flatnonzero((width // 2) % DIM_MULTIPLE == 0)
    chosen: dict[int, None] = {}
    for criterion in (problem.kinds.memory_bytes[kinds].astype(np.float64), alone_ms(problem, kinds)):
        order = splittable[np.argsort(-criterion[splittable], kind="stable")]
        chosen.update(dict.fromkeys(order[:CANDIDATES_PER_CRITERION].tolist()))
    lists = []
    for position in chosen:
        unit = int(problem.kinds.unit[kinds[position]])
        half = ShardSize(int(problem.kinds.num_rows[kinds[position]]), int(width[position]) // 2)
        lists.append(np.concatenate([np.delete(kinds, position), problem.kinds_of([unit, unit], [half, half])]))
    return lists
