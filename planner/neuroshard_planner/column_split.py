"""The outer search: which units to split, and how often.

Starts from proposals (split everything above a share of a device's load) and refines the best by a beam search that
splits one unit further per level, as in NeuroShard (MLSys 2023), section 3.3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from neuroshard_planner.costs.shards import FloatArray, IndexArray
from neuroshard_planner.options import OptionTable
from neuroshard_planner.placement import Lane, place
from neuroshard_planner.problem import LOOKUPS_PER_EVALUATION, Placement, Problem

LOAD_SHARES = (np.inf, 1.0, 0.7, 0.5, 0.35, 0.2)  # proposals: largest shard as a share of a device's mean load
COLUMNS_SHARES = (2.0, 1.0)  # the same of a device's mean dimension sum; they matter with many devices
WIDTHS = (64, 32, 16)  # most columns of any shard; even widths suit sets whose tables are much alike
MEMORY_SHARES = (1.0, 0.5)  # the same of a device's memory
DIM_LIMITS = (1.0, 1.05, 1.1, 1.2, 1.35, np.inf)  # of the mean dimension sum; the reference's grid is 1.0 to 1.5
MEMORY_PRICES = (0.0, 1.0)
NUM_CANDIDATES = 10  # units split per level and criterion, as in the reference
NUM_JUDGED = 24  # of the lanes placed together, the cheapest by additive loads are judged by the networks
PATIENCE = 3  # levels without a better plan before the beam search ends
LANES_AT_ONCE = 256  # keeps the arrays of one greedy pass within the processor's cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A state of the outer search with its best placement."""

    state: IndexArray
    """[units] position of each unit's option in the option table."""
    lane: Lane
    placement: Placement
    total_ms: float


class SplitSearch:
    """Beam search over the options of all units."""

    def __init__(self, problem: Problem, options: OptionTable, *, loads: FloatArray, work_budget: int) -> None:
        self._problem = problem
        self._options = options
        self._loads = loads
        self._work_budget = work_budget
        self._mean_dim_sum = sum(unit.num_columns for unit in problem.units) / problem.num_devices
        self.placements = 0
        """Complete placements tried."""
        self.levels = 0
        """Levels of the beam search."""

    def run(self) -> list[Candidate]:
        """Return the best candidates, cheapest first; empty if no greedy pass found room for every shard."""
        settings = self._problem.request.search
        grid = [(limit, price) for limit in DIM_LIMITS for price in MEMORY_PRICES]
        proposed = self._best(((state, grid) for state in self._proposals()), 2 * settings.beam_width)
        beam = proposed[: settings.beam_width]
        waited = 0
        while beam and waited < PATIENCE and self.levels < settings.max_levels:
            if self._problem.work >= self._work_budget:
                break
            self.levels += 1
            children = [
                (child, [(candidate.lane.dim_limit / self._mean_dim_sum, candidate.lane.memory_price)])
                for candidate in beam
                for child in self._children(candidate.state)
            ]
            found = self._best(children, settings.beam_width)
            improved = bool(found) and found[0].total_ms < beam[0].total_ms
            waited = 0 if improved else waited + 1
            beam = _distinct_best([*beam, *found], settings.beam_width)
            if not found:
                break
        return _distinct_best([*beam, *proposed], 2 * settings.beam_width)

    def _proposals(self) -> list[IndexArray]:
        """Return states in which no shard exceeds a share of a device's load, columns and memory."""
        options, kinds = self._options, self._problem.kinds
        largest = options.kinds[options.start]
        mean_load = self._loads[self._problem.whole].sum() / self._problem.num_devices
        capacity = self._problem.memory.shard_capacity_bytes
        states = []
        widths = (np.inf, *WIDTHS, *(share * self._mean_dim_sum for share in COLUMNS_SHARES))
        for memory_share, width, load_share in product(MEMORY_SHARES, widths, LOAD_SHARES):
            small = (
                (self._loads[largest] <= load_share * mean_load)
                & (kinds.num_columns[largest] <= width)
                & (kinds.memory_bytes[largest] <= memory_share * capacity)
            )
            # The first small option of each unit, or its last option if none is small.
            position = np.where(small, np.arange(len(largest)), options.last[options.unit])
            states.append(np.minimum.reduceat(position, options.first))
        return _distinct_states(states)

    def _children(self, state: IndexArray) -> list[IndexArray]:
        """Return the states with one more split of the units largest by memory or most expensive."""
        options = self._options
        largest = options.largest(state)
        splittable = np.flatnonzero(state < options.last)
        chosen: dict[int, None] = {}
        for criterion in (self._loads[largest], self._problem.kinds.memory_bytes[largest]):
            order = splittable[np.argsort(-criterion[splittable], kind="stable")]
            chosen.update(dict.fromkeys(order[:NUM_CANDIDATES].tolist()))
        children = []
        for unit in chosen:
            child = state.copy()
            child[unit] += 1
            children.append(child)
        return children

    def _best(self, states: Iterable[tuple[IndexArray, Sequence[tuple[float, float]]]], count: int) -> list[Candidate]:
        """Place every state with every setting of its grid; return the best of distinct states."""
        lanes = [
            (state, Lane(kinds=self._options.shards(state), dim_limit=limit * self._mean_dim_sum, memory_price=price))
            for state, grid in states
            for limit, price in grid
        ]
        found: list[Candidate] = []
        for first in range(0, len(lanes), LANES_AT_ONCE):
            batch = lanes[first : first + LANES_AT_ONCE]
            width = max(len(lane.kinds) for _, lane in batch)
            left = self._work_budget - self._problem.work
            affordable = LOOKUPS_PER_EVALUATION * left // (width * self._problem.num_devices)
            batch = batch[: max(affordable, 0 if found else 1)]
            if not batch:
                break
            placements = place(self._problem, [lane for _, lane in batch], self._loads)
            self.placements += len(batch)
            fitting = [
                (state, lane, placement)
                for (state, lane), placement in zip(batch, placements, strict=True)
                if placement is not None
            ]
            estimates = self._estimates_ms([placement for _, _, placement in fitting])
            likely = [fitting[row] for row in np.argsort(estimates, kind="stable")[:NUM_JUDGED]]
            totals = self._problem.total_ms([placement for _, _, placement in likely])
            found += [
                Candidate(state=state, lane=lane, placement=placement, total_ms=float(total))
                for (state, lane, placement), total in zip(likely, totals, strict=True)
            ]
        return _distinct_best(found, count)

    def _estimates_ms(self, placements: Sequence[Placement]) -> FloatArray:
        """Return the cost of each placement by additive loads."""
        if not placements:
            return np.empty(0)
        problem = self._problem
        kinds = np.concatenate([each.kinds for each in placements])
        slots = np.concatenate([each.devices + row * problem.num_devices for row, each in enumerate(placements)])
        load, columns = (
            np.bincount(slots, weights=weights, minlength=len(placements) * problem.num_devices)
            .reshape(len(placements), -1)
            .max(axis=1)
            for weights in (self._loads[kinds], problem.kinds.num_columns[kinds])
        )
        estimates: FloatArray = load + problem.transfer.total_ms(columns)
        return estimates


def _distinct_states(states: Sequence[IndexArray]) -> list[IndexArray]:
    return list({state.tobytes(): state for state in reversed(states)}.values())[::-1]


def _distinct_best(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the cheapest candidates of distinct states, cheapest first; ties keep their order."""
    best: dict[bytes, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: each.total_ms):
        best.setdefault(candidate.state.tobytes(), candidate)
        if len(best) == count:
            break
    return list(best.values())
