"""Greedy placement by the networks: the inner search of NeuroShard (MLSys 2023), algorithm 2, for many lists at once.

Shards are placed in descending order of what each costs alone, each on the device whose compute with it costs least,
among those with memory and below a limit on columns. Unlike greedy_placement, this prices the fusion of kernels at
every step. As in the published code, what a device with a certain content costs is computed once, for all lists, limits
and devices; lists and limits that have led to the same placement so far are one lane until they part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.problem.step_cost import TIMES, TRAFFIC, Collective
from neuroshard_planner.search.device_contents import EMPTY, DeviceContents

COLUMNS = TRAFFIC.start + Collective.POOLED_EMBEDDINGS
DIM_FACTORS = tuple(1.0 + 0.05 * step for step in range(11))  # limits over the mean columns of a device, as published


class PlacedList(NamedTuple):
    """A list of shards at its cheapest."""

    kinds: IndexArray
    """In the order in which they were placed."""
    placement: Placement | None
    """None: no limit on columns leaves room for all shards."""
    total_ms: float
    """Infinite without a placement."""


class MarginalPlacement:
    """Places lists of shards of one problem under several limits on columns."""

    def __init__(self, problem: Problem, *, dim_factors: Sequence[float] = DIM_FACTORS) -> None:
        """``dim_factors`` are limits over the mean columns of a device."""
        self._problem = problem
        self._contents = DeviceContents(problem)
        columns = problem.kinds.traffic[problem.whole, Collective.POOLED_EMBEDDINGS].sum()
        self._limits: FloatArray = np.array(dim_factors) * columns / problem.num_devices

    def cheapest(self, lists: Sequence[IndexArray]) -> list[PlacedList]:
        """Return each list with its cheapest placement over the limits; all have equally many shards."""
        alone = np.zeros(len(self._problem.kinds))
        distinct = np.flatnonzero(np.bincount(np.concatenate(lists)))
        alone[distinct] = alone_ms(self._problem, distinct)
        kinds = np.array([each[np.argsort(-alone[each], kind="stable")] for each in lists])
        rows, devices, contents = self._placed(kinds)
        totals = self._problem.step_cost.total_ms(self._contents.levels[contents].max(axis=1))
        found = [PlacedList(each, None, np.inf) for each in kinds]
        for row, own, total in zip(rows.tolist(), devices, totals.tolist(), strict=True):
            if total < found[row].total_ms:
                found[row] = PlacedList(kinds[row], Placement(kinds=kinds[row], devices=own), total)
        return found

    def most_work(self, num_shards: int) -> float:
        """Return the most that placing one list takes, in device evaluations (see Problem.work)."""
        return num_shards * self._problem.num_devices * len(self._limits) / BULK_PER_EVALUATION

    def _placed(self, kinds: IndexArray) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Place [lists, n] shards under every limit.

        Return the list [p], devices [p, n] and contents [p, devices] of every different placement that has room.
        A pair of list and limit is a row here; rows of equal contents are in one lane.
        """
        num_devices, num_kinds = self._problem.num_devices, len(self._problem.kinds)
        columns = self._problem.kinds.traffic[:, Collective.POOLED_EMBEDDINGS]
        lists = np.repeat(np.arange(len(kinds)), len(self._limits))
        limits = np.tile(self._limits, len(kinds))
        lane_of: IndexArray = np.zeros(len(lists), dtype=np.int64)
        lanes: IndexArray = np.full((1, num_devices), EMPTY)
        devices = np.empty((len(lists), kinds.shape[1]), dtype=np.int64)
        for step in range(kinds.shape[1]):
            pairs, pair_of = np.unique(lane_of * num_kinds + kinds[lists, step], return_inverse=True)
            before, added = lanes[pairs // num_kinds], pairs % num_kinds
            room = limits - columns[added][pair_of]
            most_room = np.full(len(pairs), -np.inf)
            np.maximum.at(most_room, pair_of, room)
            used = self._contents.levels[before, COLUMNS]
            asked = used <= most_room[:, None]
            if self._problem.allowed is not None:
                asked &= self._problem.allowed[self._problem.kinds.unit[added]]
            after = self._contents.grown(before, added, asked)
            cost = self._contents.levels[after, TIMES].sum(axis=-1)
            cost = np.where(used[pair_of] <= room[:, None], cost[pair_of], np.inf)
            device = cost.argmin(axis=1)
            fits = np.isfinite(cost[np.arange(len(cost)), device])
            devices[:, step] = device
            lists, limits, devices, state = (
                values[fits] for values in (lists, limits, devices, pair_of * num_devices + device)
            )
            states, lane_of = np.unique(state, return_inverse=True)
            pair, changed = np.divmod(states, num_devices)
            lanes = before[pair]
            lanes[np.arange(len(lanes)), changed] = after[pair, changed]
        first = np.unique(lists * (len(lanes) + 1) + lane_of, return_index=True)[1]
        return lists[first], devices[first], lanes[lane_of[first]]


def alone_ms(problem: Problem, kinds: IndexArray) -> FloatArray:
    """Return [n] what each shard costs on a device of its own."""
    alone: FloatArray = problem.compute_ms(problem.kinds.representation[kinds]).sum(axis=-1, dtype=np.float64)
    return alone
