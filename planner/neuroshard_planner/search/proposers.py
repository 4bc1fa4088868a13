"""Proposers: which units to cut by columns and how often, and random changes to a placement.

Proposals split everything above a share of a device's load. A beam search splits one unit further per level, as in
NeuroShard (MLSys 2023), section 3.3. The beam goes by a smooth cost: where several devices bound the plan, one split
more lowers the cost of none but brings the plan nearer to a lower one. The best states are then placed once more, by
the networks themselves, as NeuroShard places: the tangent is far off for few large shards.

Where no beam follows, shards of a unit go where there is least load. Two on one device are made one when they descend,
which comes to other cuts, and may cost more or less. With the beam they go on devices of their own, in sets that are
not large. Some sets are planned well from the one alone, or the other.

A perturbation (iterated local search) moves a few shards or cuts one unit another way and places its shards again: the
first leads to local optima nearby, the second to splits that no single move reaches. It fits, and its cost is not
judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, PROBES_PER_EVALUATION, Placement, Problem
from neuroshard_planner.search.estimator import mean_sums
from neuroshard_planner.search.local_search import State, bounding_devices
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.partitioner import GreedyPass, place, place_by_networks

LANES_AT_ONCE = 256  # keeps the arrays of one greedy pass within the processor's cache


@dataclass(frozen=True, kw_only=True, slots=True)
class StatePass(GreedyPass):
    """A greedy pass of the shards of a state."""

    state: IndexArray
    """[units] position of each unit's option in the option table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamState:
    """A state of the outer search with its best placement."""

    lane: StatePass
    placement: Placement
    total_ms: float
    smooth_ms: float
    """The cost with a power mean over devices in place of the most expensive one."""


class SplitSearch:
    """Beam search over the options of all units; equal problems give equal candidates."""

    def __init__(
        self,
        problem: Problem,
        options: OptionTable,
        *,
        loads: FloatArray,
        work_budget: int,
        fixed: Placement | None = None,
        known: Sequence[IndexArray] = (),
    ) -> None:
        """Make the search.

        Args:
            problem: what is placed.
            options: of the units that are split and placed.
            loads: [kinds] additive.
            work_budget: ``problem.work`` at which the search ends.
            fixed: the shards of all other units, which stay where they are.
            known: states that are proposed next to the others.
        """
        self._problem = problem
        self._fixed = fixed
        self._known = known
        self._options = options
        self._loads = loads
        self._work_budget = work_budget
        self._judged: list[BeamState] = []
        whole = options.largest(options.first)
        placed = whole if fixed is None else np.concatenate((whole, fixed.kinds))
        self._mean_load = float(loads[placed].sum()) / problem.num_devices
        self._mean_dim_sum = float(problem.step_cost.least_traffic[Collective.POOLED_EMBEDDINGS])
        if fixed is not None:
            columns = problem.kinds.traffic[whole, Collective.POOLED_EMBEDDINGS].sum()
            self._mean_dim_sum = float(columns) / problem.num_devices or 1.0
        self.placements = 0
        """Complete placements tried."""
        self.levels = 0
        """Levels of the beam search."""

    def run(self) -> list[BeamState]:
        """Return up to as many candidates as the beam keeps, of distinct states, cheapest first.

        They are worth refining by local search: the cheapest, and those that could be once they are evened out.
        Empty if no greedy pass found room for every shard.
        """
        tuning = self._problem.tuning
        spreads = not self._problem.is_large  # where many units are would take much memory
        grid = [(limit, price) for limit in tuning.dim_limits for price in tuning.memory_prices]
        beam = self._best(((state, grid) for state in self._proposals()), tuning.num_best, spreads=spreads)
        waited = 0
        while beam and waited < tuning.patience:
            if self._problem.work >= self._work_budget:
                break
            self.levels += 1
            children = [
                (child, [(candidate.lane.dim_limit / self._mean_dim_sum, candidate.lane.memory_price)])
                for candidate in beam
                for child in self._children(candidate.lane.state)
            ]
            found = self._best(children, tuning.num_best, spreads=spreads)
            improved = bool(found) and found[0].smooth_ms < beam[0].smooth_ms
            waited = 0 if improved else waited + 1
            beam = _smoothest([*beam, *found], tuning.num_best)
            if not found:
                break
        promising = self._promising(self._judged, tuning.num_candidates)
        return self._promising([*self._placed_by_networks(promising), *promising], tuning.num_best)

    def proposed(self, grid: Sequence[tuple[float, float]], count: int) -> list[BeamState]:
        """Return up to ``count`` proposals worth refining, each placed with every setting of a grid; no beam search."""
        found = self._best(((state, grid) for state in self._proposals()), self._problem.tuning.num_judged)
        chosen = self._promising(found, count)
        return self._promising([*self._placed_by_networks(chosen), *chosen], count)

    def placed(self, states: Sequence[IndexArray]) -> list[Placement]:
        """Return of each state the cheapest placement by loads, and the cheapest by the networks, where they fit."""
        if not states:
            return []
        lanes = self._lanes((state, [(limit, 0.0) for limit in self._problem.tuning.dim_limits]) for state in states)
        by_networks = self._fitting(lanes, place_by_networks(self._problem, lanes, fixed=self._fixed))
        judged = (self._judge(placed) for placed in (self._placed(lanes), by_networks))
        return [each.placement for own in judged for each in _distinct(sorted(own, key=lambda each: each.total_ms))]

    def _proposals(self) -> list[IndexArray]:
        """Return states in which no shard exceeds a share of a device's load, columns and memory."""
        options, kinds, tuning = self._options, self._problem.kinds, self._problem.tuning
        largest = options.kinds[options.start]
        capacity = self._problem.memory.shard_capacity_bytes
        alone = self._problem.compute_ms(kinds.representation[largest], per_work=BULK_PER_EVALUATION).sum(axis=1)
        is_least = alone <= tuning.near * np.minimum.reduceat(alone, options.first)[options.unit]
        states = []
        is_narrow = [kinds.num_columns[largest] <= width for width in (np.inf, *tuning.widths)]
        for memory_share, narrow, load_share in product(tuning.memory_shares, is_narrow, tuning.longest):
            may_be = narrow & (kinds.memory_bytes[largest] <= memory_share * capacity)
            small = may_be & (self._loads[largest] <= load_share * self._mean_load)
            # The first small option of each unit; where none is, its last, or the first that others hardly better.
            position, least = options.first_of(small), options.first_of(may_be & is_least)
            states += [position, np.where(np.logical_or.reduceat(small, options.first), position, least)]
        return _distinct_states([*self._known, *states])

    def _children(self, state: IndexArray) -> list[IndexArray]:
        """Return the states with one more split of the units largest by memory or most expensive."""
        options = self._options
        largest = options.largest(state)
        splittable = np.flatnonzero(state < options.last)
        chosen: dict[int, None] = {}
        for criterion in (self._loads[largest], self._problem.kinds.memory_bytes[largest]):
            order = splittable[np.argsort(-criterion[splittable], kind="stable")]
            chosen.update(dict.fromkeys(order[: self._problem.tuning.num_candidates].tolist()))
        children = []
        for unit in chosen:
            child = state.copy()
            child[unit] += 1
            children.append(child)
        return children

    def _best(
        self, states: Iterable[tuple[IndexArray, Sequence[tuple[float, float]]]], count: int, *, spreads: bool = False
    ) -> list[BeamState]:
        """Place every state with every setting of its grid; return the best of distinct states."""
        lanes = self._lanes(states, spreads=spreads)
        found: list[BeamState] = []
        for first in range(0, len(lanes), LANES_AT_ONCE):
            batch = lanes[first : first + LANES_AT_ONCE]
            affordable = self._affordable(max(len(lane.kinds) for lane in batch))
            batch = batch[: max(affordable, 0 if found else 1)]
            if not batch:
                break
            # The lane that looks best stands for its state.
            by_state: dict[bytes, tuple[StatePass, Placement]] = {}
            for lane, placement in self._placed(batch):
                by_state.setdefault(lane.state.tobytes(), (lane, placement))
            found += self._judge(list(by_state.values())[: self._problem.tuning.num_judged])
        self._judged += found
        return _smoothest(found, count)

    def _lanes(
        self, states: Iterable[tuple[IndexArray, Sequence[tuple[float, float]]]], *, spreads: bool = False
    ) -> list[StatePass]:
        """Return a lane of each state with each setting of its grid."""
        mean = self._mean_dim_sum
        return [
            StatePass(state=state, kinds=kinds, dim_limit=limit * mean, memory_price=price, spreads=spreads)
            for state, kinds, grid in ((state, self._options.shards(state), grid) for state, grid in states)
            for limit, price in grid
        ]

    def _placed_by_networks(self, candidates: Sequence[BeamState]) -> list[BeamState]:
        """Return the candidates' shards placed by the networks, as many of the first as the work left pays for."""
        problem = self._problem
        limits = [limit * self._mean_dim_sum for limit in problem.tuning.dim_limits]
        lanes = [replace(each.lane, dim_limit=limit) for each in candidates for limit in limits]
        left = BULK_PER_EVALUATION * (self._work_budget - problem.work) // problem.num_devices
        lanes = lanes[: int((np.cumsum([len(lane.kinds) for lane in lanes]) <= left).sum())]
        return self._judge(self._fitting(lanes, place_by_networks(problem, lanes, fixed=self._fixed))) if lanes else []

    def _affordable(self, num_shards: int) -> int:
        """Return the number of lanes of that many shards that the work left pays for."""
        left = self._work_budget - self._problem.work
        return max(0, PROBES_PER_EVALUATION * left // (num_shards * self._problem.num_devices))

    def _placed(self, lanes: Sequence[StatePass]) -> list[tuple[StatePass, Placement]]:
        """Place these lanes side by side; return those that found room, cheapest by additive loads first."""
        fitting = self._fitting(lanes, place(self._problem, lanes, self._loads, fixed=self._fixed))
        order = np.argsort(self._estimates_ms([placement for _, placement in fitting]), kind="stable")
        return [fitting[row] for row in order]

    def _fitting(
        self, lanes: Sequence[StatePass], placements: Sequence[Placement | None]
    ) -> list[tuple[StatePass, Placement]]:
        """Return the lanes that found room, with all shards."""
        self.placements += len(lanes)
        return [
            (lane, placement if self._fixed is None else Placement.joined(self._fixed, placement))
            for lane, placement in zip(lanes, placements, strict=True)
            if placement is not None
        ]

    def _judge(self, placed: Sequence[tuple[StatePass, Placement]]) -> list[BeamState]:
        """Return the placements with their costs by the networks."""
        levels = self._problem.device_levels([placement for _, placement in placed])
        totals_ms = self._problem.step_cost.total_ms(levels.max(axis=1)).tolist()
        smooth_ms = self._problem.step_cost.smooth_ms(levels).tolist()
        return [
            BeamState(lane=lane, placement=placement, total_ms=total, smooth_ms=smooth)
            for (lane, placement), total, smooth in zip(placed, totals_ms, smooth_ms, strict=True)
        ]

    def _promising(self, candidates: Sequence[BeamState], count: int) -> list[BeamState]:
        """Return the cheapest candidates of distinct states, and those that could be cheapest once evened out.

        Few large shards cost less in sum but are harder to even out: greedy placement is bad at it, local
        search better.
        """
        distinct = _distinct(sorted(candidates, key=lambda each: each.total_ms))
        if not distinct:
            return []
        even = self._problem.compute_ms(mean_sums(self._problem, [each.placement for each in distinct])).sum(axis=1)
        hopeful = np.argsort([each.total_ms for each in distinct] + even, kind="stable").tolist()
        chosen = list(dict.fromkeys([*range(min(count // 2, len(distinct))), *hopeful]))[:count]
        return [distinct[position] for position in sorted(chosen)]

    def _estimates_ms(self, placements: Sequence[Placement]) -> FloatArray:
        """Return the cost of each placement by additive loads."""
        if not placements:
            return np.empty(0)
        problem = self._problem
        kinds = np.concatenate([each.kinds for each in placements])
        slots = np.concatenate([each.devices + row * problem.num_devices for row, each in enumerate(placements)])
        num_slots = len(placements) * problem.num_devices
        load = np.bincount(slots, weights=self._loads[kinds], minlength=num_slots)
        traffic = problem.traffic(kinds, slots, num_slots)
        return problem.step_cost.with_compute_ms(
            load.reshape(len(placements), -1).max(axis=1),
            traffic.reshape(len(placements), problem.num_devices, -1).max(axis=1),
        )


def _distinct_states(states: Sequence[IndexArray]) -> list[IndexArray]:
    return list({state.tobytes(): state for state in reversed(states)}.values())[::-1]


def _smoothest(candidates: Sequence[BeamState], count: int) -> list[BeamState]:
    """Return the candidates of least smooth cost and distinct states; ties keep their order."""
    return _distinct(sorted(candidates, key=lambda each: each.smooth_ms))[:count]


def _distinct(candidates: Sequence[BeamState]) -> list[BeamState]:
    """Return the first candidate of each state."""
    first: dict[bytes, BeamState] = {}
    for candidate in candidates:
        first.setdefault(candidate.lane.state.tobytes(), candidate)
    return list(first.values())


class Perturbation:
    """Random changes to placements of one problem; equal generators give equal changes."""

    def __init__(
        self, problem: Problem, options: OptionTable, *, slopes: FloatArray, generator: np.random.Generator
    ) -> None:
        """``slopes`` make loads additive, as for greedy placement."""
        self._problem = problem
        self._options = options
        self._slopes = slopes.sum(axis=1)
        self._generator = generator

    def perturbed(self, placement: Placement) -> Placement:
        """Return a placement that differs in a few shards, on and off a device that bounds the plan."""
        bounding = int(self._generator.choice(list(bounding_devices(State(self._problem, [placement]).levels))))
        if self._generator.random() < 0.5:  # noqa: PLR2004 - both kinds of perturbation are equally likely
            return self._recut(placement, bounding)
        return self._moved(placement, bounding)

    def _moved(self, placement: Placement, bounding: int) -> Placement:
        devices = placement.devices.copy()
        moved = Placement(kinds=placement.kinds, devices=devices)
        is_movable = self._problem.is_cut_by_columns(placement)
        for turn in range(self._problem.tuning.num_random_moves):
            held = np.flatnonzero(is_movable & (devices == bounding) if turn % 2 == 0 else is_movable)
            if not len(held):
                continue
            shard = int(self._generator.choice(held))
            free = self._free_devices(moved, int(moved.kinds[shard]))
            if len(free):
                devices[shard] = self._generator.choice(free)
        return moved

    def _recut(self, placement: Placement, bounding: int) -> Placement:
        """Cut a unit of the bounding device another way; each new shard goes where there is least load."""
        options, kinds = self._options, self._problem.kinds
        held = placement.kinds[(placement.devices == bounding) & self._problem.is_cut_by_columns(placement)]
        held = held[options.last[kinds.unit[held]] > options.first[kinds.unit[held]]]
        if not len(held):
            return self._moved(placement, bounding)
        # What bounds the device is most often its most expensive unit.
        load = weighted_sum(kinds.representation[held], self._slopes)
        unit = int(kinds.unit[self._generator.choice(held, p=load / load.sum())])
        option = int(self._generator.integers(options.first[unit], options.last[unit] + 1))
        recut = placement.at(kinds.unit[placement.kinds] != unit)
        for kind in options.shards_of(option).tolist():
            free = self._free_devices(recut, kind)
            if not len(free):
                return placement
            of_shards = weighted_sum(kinds.representation[recut.kinds], self._slopes)
            of_devices = np.bincount(recut.devices, of_shards, self._problem.num_devices)
            recut = Placement(
                kinds=np.append(recut.kinds, kind), devices=np.append(recut.devices, free[of_devices[free].argmin()])
            )
        return recut

    def _free_devices(self, placement: Placement, kind: int) -> IndexArray:
        """Return the devices that may and can take one more shard of a kind, and hold none of its unit."""
        problem, kinds = self._problem, self._problem.kinds
        unit = kinds.unit[kind]
        free = problem.used_bytes(placement) + kinds.memory_bytes[kind] <= problem.memory.shard_capacity_bytes
        free[placement.devices[kinds.unit[placement.kinds] == unit]] = False
        if problem.allowed is not None:
            free &= problem.allowed[unit]
        devices: IndexArray = np.flatnonzero(free)
        return devices
