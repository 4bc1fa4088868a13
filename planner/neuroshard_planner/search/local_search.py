"""Local search: moves that take load off the most loaded device, until nothing helps.

A move touches two devices. Candidates are ranked by additive loads (see estimator); the best few are judged by
the cost networks. A move is taken if it lowers the plan's cost, or keeps it and evens out the devices, level by level,
since each level has a peak of its own. How even they are is judged by what each peak costs in the state before the
move, which may be otherwise after it: so two states of equal cost can each look better from the other, and a state that
comes again at the same cost ends the search.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.estimator import MEMORY, Traits
from neuroshard_planner.search.moves import NONE, CandidateMoves, relocations, splits, swaps

EVENNESS_SQUARINGS = 4  # to the power 16: high enough that the potential follows the most loaded devices


class State:
    """A placement with the sums and levels of its devices."""

    def __init__(self, problem: Problem, placement: Placement, *, max_shards: IndexArray | None = None) -> None:
        """``max_shards`` [units] bounds the splits. None: the constraints alone do."""
        self._problem = problem
        self.max_shards: IndexArray = problem.max_shards if max_shards is None else max_shards
        by_columns = problem.is_cut_by_columns(placement)
        self.kinds = placement.kinds[by_columns]
        """[n] shards that may move: those cut by columns. Blocks of rows and copies have devices of their own."""
        self.devices = placement.devices[by_columns]
        self.fixed = placement.at(~by_columns)
        """All other shards."""
        self._fixed_sums = problem.device_sums(self.fixed.kinds, self.fixed.devices)
        self._fixed_levels = _additive_levels(problem, self.fixed)
        self.sums = problem.device_sums(self.kinds, self.devices) + self._fixed_sums
        self.levels: FloatArray = _additive_levels(problem, self.movable) + self._fixed_levels
        """[devices, levels + 1] the levels of the objective, and memory."""
        self.levels[:, TIMES] = problem.pass_levels(self.sums)
        self._further_ms = problem.step_cost.further_ms(np.maximum.reduce(self._fixed_levels)[TRAFFIC])
        self.total_ms = float(self.cost_ms(np.maximum.reduce(self.levels)))
        """The plan's cost."""
        self.changed = set[tuple[int, int]]()
        """Device and kind of shards that have come or gone since it was cleared; equal for equal states."""

    @cached_property
    def shards_of_unit(self) -> IndexArray:
        """[units] shards that may move."""
        return np.bincount(self._problem.kinds.unit.take(self.kinds), minlength=len(self._problem.units))

    @cached_property
    def holds(self) -> NDArray[np.bool_]:
        """[units * devices] whether a device has a shard of a unit that may move, unit by unit."""
        holds = np.zeros(len(self._problem.units) * self._problem.num_devices, dtype=np.bool_)
        holds[self._problem.kinds.unit.take(self.kinds) * self._problem.num_devices + self.devices] = True
        return holds

    @property
    def movable(self) -> Placement:
        """The shards that may move."""
        return Placement(kinds=self.kinds, devices=self.devices)

    @property
    def placement(self) -> Placement:
        """All shards."""
        return Placement.joined(self.fixed, self.movable)

    def cost_ms(self, peaks: FloatArray) -> FloatArray:
        """Return [...] what the placement costs with these peaks [..., levels + 1], whatever the movable shards do."""
        return self._problem.step_cost.total_ms(peaks, self._further_ms)

    def apply(self, source: int, moves: CandidateMoves, choice: int, times: FloatArray) -> None:
        """Make one move, after which the source and the target have these [2, 2] compute levels."""
        problem, kinds = self._problem, self._problem.kinds
        pair = [source, int(moves.target[choice])]
        leaving = [shard for each in (moves.source_shard, moves.target_shard) if (shard := int(each[choice])) != NONE]
        entering = int(moves.source_kind[choice]), int(moves.target_kind[choice])
        coming = [(device, kind) for device, kind in zip(pair, entering, strict=True) if kind != NONE]
        gone = [(int(self.devices[shard]), int(self.kinds[shard])) for shard in leaving]
        for shards, count in ((gone, -1), (coming, 1)):
            self.changed ^= set(shards)
            for device, kind in shards:
                unit = int(kinds.unit[kind])
                self.shards_of_unit[unit] += count
                self.holds[unit * problem.num_devices + device] = count > 0
        stay = np.ones(len(self.kinds), dtype=np.bool_)
        stay[leaving] = False
        self.kinds = np.concatenate((self.kinds[stay], [kind for _, kind in coming]))
        self.devices = np.concatenate((self.devices[stay], [device for device, _ in coming]))
        for device in pair:
            here = self.kinds[self.devices == device]
            self.sums[device] = np.add.reduce(kinds.representation.take(here, axis=0)) + self._fixed_sums[device]
            self.levels[device, TRAFFIC] = np.add.reduce(kinds.traffic.take(here, axis=0))
            self.levels[device, MEMORY] = np.add.reduce(kinds.memory_bytes[here])
            self.levels[device] += self._fixed_levels[device]
        self.levels[pair, TIMES] = times
        problem.evaluations += len(pair)  # work is counted by moves, and budgets are of that
        self.total_ms = float(self.cost_ms(np.maximum.reduce(self.levels)))


class Loads:
    """What the shards and the devices of one state cost by additive loads."""

    def __init__(self, state: State, traits: FloatArray, prices: FloatArray) -> None:
        self.prices = prices
        """[levels + 1] the milliseconds that one unit more of each peak costs; memory costs nothing."""
        self.of_shards: FloatArray = weighted_sum(traits.take(state.kinds, axis=0), prices)
        """[n] what each placed shard adds."""
        self.of_devices_ms: FloatArray = weighted_sum(state.levels, prices)
        """[devices] what the levels of each device cost."""
        peaks = np.maximum.reduce(state.levels)
        costs = prices * peaks
        (self._paid,) = (costs > 0).nonzero()
        self._scale: FloatArray = 1 / peaks[self._paid]
        self._weights: FloatArray = costs[self._paid] / state.total_ms
        self.unevenness: FloatArray = self.unevenness_of(state.levels)
        """[devices] before any move."""

    def unevenness_of(self, levels: FloatArray) -> FloatArray:
        """Return [...] of devices with these [..., levels + 1].

        The levels as shares of the peaks, to the power of evenness, weighted by what each peak costs.
        """
        return weighted_sum(_to_evenness_power(levels.take(self._paid, axis=-1) * self._scale), self._weights)


class View:
    """The levels and loads that every move away from one device is judged by."""

    def __init__(self, state: State, source: int, loads: Loads) -> None:
        self.source = source
        self.loads = loads
        self.largest_elsewhere = _largest_elsewhere(state.levels, source)
        """[devices, levels + 1] the largest levels over all devices but the source and each one."""


class LocalSearch:
    """Improves placements of one problem until nothing helps or the work budget ends."""

    def __init__(self, problem: Problem, *, traits: Traits, work_budget: int) -> None:
        self._problem = problem
        self._traits = traits
        self._work_budget = work_budget
        self.improvements = 0
        """Moves made so far, over all placements."""

    def improve(self, placement: Placement, *, max_shards: IndexArray | None = None) -> Placement:
        """Return a placement that costs at most as much as the merged one; see State for ``max_shards``."""
        state = State(self._problem, merged(self._problem, placement), max_shards=max_shards)
        lowest_ms, seen, failed = np.inf, set[frozenset[tuple[int, int]]](), dict[int, int]()
        while self._problem.work < self._work_budget:
            if state.total_ms < lowest_ms:
                lowest_ms, seen = state.total_ms, set()
                state.changed.clear()
            content = frozenset(state.changed)
            if content in seen:
                break
            seen.add(content)
            loads = Loads(state, self._traits(), peak_prices(self._problem, state))
            # A device that found no move a while ago finds none most often: it is tried when no other one does.
            for source in sorted(bounding_devices(state), key=lambda device: failed.get(device, NONE)):
                if self._move(state, loads, source):
                    failed.pop(source, None)
                    break
                failed[source] = self.improvements
            else:
                break
            self.improvements += 1
        return state.placement

    def _move(self, state: State, loads: Loads, source: int) -> bool:
        """Take the best move away from a device; return whether there was one."""
        tuning, (shards,) = self._problem.tuning, (state.devices == source).nonzero()
        if not len(shards) or self._problem.num_devices == 1:
            return False
        view = View(state, source, loads)
        load, loaded = loads.of_shards, loads.of_devices_ms
        shards = shards[load[shards].argsort(kind="stable")]
        targets = loaded.argsort(kind="stable")
        targets = targets[targets != source][: tuning.num_targets]
        wanted = (loaded[source] - loaded[targets]) / 2
        some = _spread(shards, tuning.num_judged)
        moves = CandidateMoves.concatenated(
            [
                relocations(self._problem, state, some, targets),
                swaps(self._problem, state, some, targets, size=load, wanted=wanted),
                *self._by_traffic(state, source, some),
            ]
        )
        if self._take_best(state, view, moves):
            return True
        largest, near = shards[-tuning.num_targets :], slice(tuning.num_targets // 2)
        parts = splits(self._problem, state, largest, targets[near], load=load, wanted=wanted[near])
        return self._take_best(state, view, parts)

    def _by_traffic(self, state: State, source: int, shards: IndexArray) -> list[CandidateMoves]:
        """Return moves of a source's shards to where there is least of the traffic that the source has most of.

        Empty where the source bounds a pass. What evens out loads need not even out columns: a wide shard of few
        lookups may change with a narrow one of many.
        """
        levels = state.levels[:, :NUM_LEVELS]
        level = int((levels[source] >= np.maximum.reduce(levels)).argmax())
        if level < TRAFFIC.start or not self._problem.tuning.has_moves_by_traffic:
            return []
        targets = levels[:, level].argsort(kind="stable")
        targets = targets[targets != source][: self._problem.tuning.num_targets]
        wanted = (levels[source, level] - levels[targets, level]) / 2
        size = self._traits()[state.kinds, level]
        return [
            swaps(self._problem, state, shards, targets, size=size, wanted=wanted),
            relocations(self._problem, state, shards, targets),
        ]

    def _take_best(self, state: State, view: View, moves: CandidateMoves) -> bool:
        """Take the best of the moves that fit the memory, if it is better than staying."""
        if not len(moves.target):
            return False
        levels = _after(self._traits(), state.kinds, state.levels, view.source, moves)
        moves_fit = np.maximum.reduce(levels[:, :, MEMORY]) <= self._problem.memory.shard_capacity_bytes
        if not moves_fit.all():
            moves, levels = moves.take(moves_fit), levels[:, moves_fit]
            if not len(moves.target):
                return False
        if len(moves.target) > self._problem.tuning.num_judged:
            likely = _least(*self._outcome(state, view, moves, levels), self._problem.tuning.num_judged)
            moves, levels = moves.take(likely), levels.take(likely, axis=1)
        sums = _after(self._problem.kinds.representation, state.kinds, state.sums, view.source, moves)
        levels[:, :, TIMES] = self._problem.pass_levels(np.maximum(sums, 0.0))
        total, unevenness = self._outcome(state, view, moves, levels)
        # Unevenness sums shares of the plan's cost to a power; the source's own share puts a gain in proportion.
        staying = view.loads.unevenness[view.source]
        better = (total < state.total_ms * (1 - self._problem.tuning.least_gain)) | (
            (total <= state.total_ms) & (unevenness < -self._problem.tuning.least_gain * staying)
        )
        if not better.any():
            return False
        best = int(np.lexsort((unevenness, total, ~better))[0])
        state.apply(view.source, moves, best, levels[:, best, TIMES])
        return True

    def _outcome(
        self, state: State, view: View, moves: CandidateMoves, levels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return [c] the plan's cost and [c] the change of its unevenness, given the pair's [2, c, levels + 1]."""
        source, target = levels
        peaks = np.maximum(source, target)
        np.maximum(peaks, view.largest_elsewhere.take(moves.target, axis=0), out=peaks)
        total = state.cost_ms(peaks)
        of_source, of_target = view.loads.unevenness_of(levels)
        after: FloatArray = of_source + of_target
        return total, after - view.loads.unevenness[view.source] - view.loads.unevenness[moves.target]


def peak_prices(problem: Problem, state: State) -> FloatArray:
    """Return [levels + 1] the milliseconds that one unit more of each peak costs; memory costs nothing."""
    prices = np.zeros(NUM_LEVELS + 1)
    prices[:NUM_LEVELS] = problem.step_cost.prices(np.maximum.reduce(state.levels)[:NUM_LEVELS])
    return prices


def _additive_levels(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, levels + 1] traffic and memory of each device; the times, which do not add up, are 0."""
    levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
    if not len(placement.kinds):
        return levels
    levels[:, TRAFFIC] = problem.traffic(placement.kinds, placement.devices, problem.num_devices)
    levels[:, MEMORY] = problem.used_bytes(placement)
    return levels


def merged(problem: Problem, placement: Placement) -> Placement:
    """Return the placement with the shards by columns of one unit on one device made one shard."""
    kinds = problem.kinds
    by_columns = problem.is_cut_by_columns(placement)
    own, devices = placement.kinds[by_columns], placement.devices[by_columns]
    unit = kinds.unit[own]
    _, first, inverse, count = np.unique(
        unit * problem.num_devices + devices, return_index=True, return_inverse=True, return_counts=True
    )
    if len(count) == len(own):
        return placement
    columns = np.zeros(len(count), dtype=np.int64)
    np.add.at(columns, inverse, kinds.num_columns[own])
    sizes = [
        size._replace(num_columns=width)
        for size, width in zip(problem.sizes_of(own[first]), columns.tolist(), strict=True)
    ]
    found = Placement(kinds=problem.kinds_of(unit[first].tolist(), sizes), devices=devices[first])
    return Placement.joined(placement.at(~by_columns), found)


def bounding_devices(state: State) -> Iterator[int]:
    """Yield the devices that bound the plan: by both computes together, by each, and by communication."""
    largest = state.levels.argmax(axis=0)
    both = int(state.levels[:, TIMES].sum(axis=1).argmax())
    yield from dict.fromkeys([both, *largest[:NUM_LEVELS].tolist()])


def _spread(shards: IndexArray, most: int) -> IndexArray:
    """Return at most ``most`` of the shards, evenly spaced."""
    if len(shards) <= most:
        return shards
    return shards[np.linspace(0, len(shards) - 1, most).astype(np.int64)]


def _to_evenness_power(shares: FloatArray) -> FloatArray:
    """Return [...] the shares to the power 16, by squaring: a general power takes several times as long."""
    power = shares * shares
    for _ in range(EVENNESS_SQUARINGS - 1):
        power *= power
    return power


def _least(total: FloatArray, unevenness: FloatArray, count: int) -> IndexArray:
    """Return the positions of the ``count`` least totals, ties by unevenness, ascending."""
    least = total.copy()
    least.partition(count - 1)
    (near,) = (total <= least[count - 1]).nonzero()
    found: IndexArray = near[np.lexsort((unevenness[near], total[near]))[:count]]
    return found


def _after(
    values: NDArray[Any], state_kinds: IndexArray, per_device: NDArray[Any], source: int, moves: CandidateMoves
) -> NDArray[Any]:
    """Return [2, c, v] the sums of ``values`` (a row per kind) on the source and on the target after each move."""
    result = np.empty((2, len(moves.target), per_device.shape[1]), dtype=per_device.dtype)
    np.subtract(per_device[source], values.take(state_kinds[moves.source_shard], axis=0), out=result[0])
    result[0] += _rows(values, moves.source_kind, moves.source_kind == NONE)
    np.add(per_device.take(moves.target, axis=0), values.take(moves.target_kind, axis=0), out=result[1])
    result[1] -= _rows(values, state_kinds[moves.target_shard], moves.target_shard == NONE)
    return result


def _rows(values: NDArray[Any], kinds: IndexArray, is_none: NDArray[np.bool_]) -> NDArray[Any]:
    """Return [c, v] the row of each kind, 0 where there is none."""
    rows = values.take(kinds, axis=0)
    rows[is_none] = 0.0
    return rows


def _largest_elsewhere(levels: FloatArray, source: int) -> FloatArray:
    """Return [devices, v] the largest levels over all devices but the source and each one; 0 if there is no other."""
    others, result = levels.copy(), np.empty_like(levels)
    others[source] = 0.0
    first, columns = others.argmax(axis=0), np.arange(levels.shape[1])
    result[:] = others[first, columns]
    others[first, columns] = 0.0
    result[first, columns] = np.maximum.reduce(others)
    return result
