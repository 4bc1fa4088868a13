"""NeuroShard's published search, written again from its description, under this planner's cost networks. A yardstick.

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
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize

BEAM_WIDTH = 3
MAX_LEVELS = 10
CANDIDATES_PER_CRITERION = 10
DIM_FACTORS: FloatArray = np.array([1.0 + 0.05 * step for step in range(11)])


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
    order = kinds[np.argsort(-_alone_ms(problem, kinds), kind="stable")]
    placements = [Placement(kinds=order, devices=row) for row in _devices(problem, order)]
    if not placements:
        return Split(kinds=kinds, placement=None, total_ms=np.inf)
    totals = problem.total_ms(placements)
    best = int(totals.argmin())
    return Split(kinds=order, placement=placements[best], total_ms=float(totals[best]))


def _devices(problem: Problem, kinds: IndexArray) -> IndexArray:
    """Return [s, n] the device of each shard in turn, for every s that leaves room for all."""
    columns = problem.kinds.traffic[kinds, Collective.POOLED_EMBEDDINGS]
    memory = problem.kinds.memory_bytes[kinds]
    limits = DIM_FACTORS * columns.sum() / problem.num_devices
    rows = np.arange(len(limits))
    sums = np.zeros((len(limits), problem.num_devices, problem.kinds.representation.shape[1]))
    used_memory = np.zeros((len(limits), problem.num_devices), dtype=np.int64)
    used_columns = np.zeros((len(limits), problem.num_devices))
    devices = np.empty((len(limits), len(kinds)), dtype=np.int64)
    has_room = np.ones(len(limits), dtype=np.bool_)
    for step, kind in enumerate(kinds.tolist()):
        added = problem.kinds.representation[kind]
        cost = problem.compute_ms(sums + added).sum(axis=-1)
        cost[used_memory + memory[step] > problem.memory.shard_capacity_bytes] = np.inf
        cost[used_columns + columns[step] > limits[:, None]] = np.inf
        devices[:, step] = device = cost.argmin(axis=1)
        has_room &= np.isfinite(cost[rows, device])
        sums[rows, device] += added
        used_memory[rows, device] += memory[step]
        used_columns[rows, device] += columns[step]
    return devices[has_room]


def _alone_ms(problem: Problem, kinds: IndexArray) -> FloatArray:
    """Return [n] what each shard costs on a device of its own."""
    alone: FloatArray = problem.compute_ms(problem.kinds.representation[kinds]).sum(axis=-1, dtype=np.float64)
    return alone


def _halved(problem: Problem, kinds: IndexArray) -> list[IndexArray]:
    """Return the lists with one more candidate cut in halves."""
    width = problem.kinds.num_columns[kinds]
    splittable = np.flatnonzero((width // 2) % DIM_MULTIPLE == 0)
    chosen: dict[int, None] = {}
    for criterion in (problem.kinds.memory_bytes[kinds].astype(np.float64), _alone_ms(problem, kinds)):
        order = splittable[np.argsort(-criterion[splittable], kind="stable")]
        chosen.update(dict.fromkeys(order[:CANDIDATES_PER_CRITERION].tolist()))
    lists = []
    for position in chosen:
        unit = int(problem.kinds.unit[kinds[position]])
        half = ShardSize(int(problem.kinds.num_rows[kinds[position]]), int(width[position]) // 2)
        lists.append(np.concatenate([np.delete(kinds, position), problem.kinds_of([unit, unit], [half, half])]))
    return lists
