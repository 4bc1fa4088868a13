"""Greedy placement by the networks: the inner search of NeuroShard (MLSys 2023), algorithm 2, many lanes side by side.

Shards are placed in descending order of what each costs alone, each on the device whose compute with it costs least,
among those with memory and below a limit on columns. Unlike greedy_placement, this prices the fusion of kernels at
every step, which takes an evaluation per shard and device.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.problem.step_cost import Collective
from neuroshard_planner.search.greedy_placement import Lane

DIM_FACTORS = tuple(1.0 + 0.05 * step for step in range(11))  # limits over the mean columns of a device, as published


def marginal_placement(
    problem: Problem, kinds: IndexArray, *, dim_factors: Sequence[float] = DIM_FACTORS
) -> Placement | None:
    """Return the cheapest placement of n shards over all limits on columns. None: no limit leaves room for all."""
    mean = problem.kinds.traffic[kinds, Collective.POOLED_EMBEDDINGS].sum() / problem.num_devices
    lanes = [Lane(kinds=kinds, dim_limit=factor * mean, memory_price=0.0) for factor in dim_factors]
    found = [placement for placement in place_by_networks(problem, lanes) if placement is not None]
    return found[int(problem.total_ms(found).argmin())] if found else None


def place_by_networks(problem: Problem, lanes: Sequence[Lane]) -> list[Placement | None]:
    """Place each lane's shards; the limit on columns is strict, and a price of memory plays no part.

    A lane is None where a shard found no device.
    """
    num_lanes, num_devices, width = len(lanes), problem.num_devices, max(len(lane.kinds) for lane in lanes)
    kinds = np.full((num_lanes, width), -1, dtype=np.int64)
    distinct = np.unique(np.concatenate([lane.kinds for lane in lanes]))
    alone = np.zeros(len(problem.kinds))
    alone[distinct] = alone_ms(problem, distinct)
    for row, lane in enumerate(lanes):
        size = alone[lane.kinds] if lane.shuffle is None else alone[lane.kinds] * lane.shuffle
        kinds[row, : len(lane.kinds)] = lane.kinds[np.argsort(-size, kind="stable")]
    rows = np.arange(num_lanes)
    columns = problem.kinds.traffic[kinds, Collective.POOLED_EMBEDDINGS]
    column_room = np.array([lane.dim_limit for lane in lanes])[:, None] - columns
    memory = problem.kinds.memory_bytes[kinds]
    memory_room = problem.memory.shard_capacity_bytes - memory
    sums = np.zeros((num_lanes, num_devices, problem.kinds.representation.shape[1]), dtype=np.float32)
    used_memory = np.zeros((num_lanes, num_devices), dtype=np.int64)
    used_columns = np.zeros((num_lanes, num_devices))
    devices = np.empty((num_lanes, width), dtype=np.int64)
    for step in range(width):
        is_shard = kinds[:, step] >= 0
        added = problem.kinds.representation[kinds[:, step]]
        cost = problem.compute_ms(sums + added[:, None], in_bulk=True).sum(axis=-1)
        fits = (used_memory <= memory_room[:, step, None]) & (used_columns <= column_room[:, step, None])
        if problem.allowed is not None:
            fits &= problem.allowed[problem.kinds.unit[kinds[:, step]]]
        cost = np.where(fits, cost, np.inf)
        device = cost.argmin(axis=1)
        is_placed = np.isfinite(cost[rows, device]) & is_shard
        devices[:, step] = np.where(is_placed, device, -1)
        lane, taken = rows[is_placed], device[is_placed]
        sums[lane, taken] += added[is_placed]
        used_memory[lane, taken] += memory[is_placed, step]
        used_columns[lane, taken] += columns[is_placed, step]
    placements: list[Placement | None] = []
    for row, count in enumerate([len(each.kinds) for each in lanes]):
        is_whole = bool((devices[row, :count] >= 0).all())
        placements.append(Placement(kinds=kinds[row, :count], devices=devices[row, :count]) if is_whole else None)
    return placements


def lane_work(problem: Problem, num_shards: int) -> float:
    """Return the work of placing one lane, in device evaluations (see Problem.work)."""
    return num_shards * problem.num_devices / BULK_PER_EVALUATION


def alone_ms(problem: Problem, kinds: IndexArray) -> FloatArray:
    """Return [n] what each shard costs on a device of its own."""
    alone: FloatArray = problem.compute_ms(problem.kinds.representation[kinds]).sum(axis=-1, dtype=np.float64)
    return alone
