"""Local search: steps that take load off the most loaded device, until nothing helps.

A step touches two devices. Candidates are ranked by additive loads (see placement.py); the best few are judged by
the cost networks. A step is taken if it lowers the plan's cost, or keeps it and evens out the devices; both strictly
decrease, so the search ends.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from neuroshard_api.tables import DIM_MULTIPLE
from numpy.typing import NDArray

from neuroshard_planner.costs.shards import FloatArray, IndexArray
from neuroshard_planner.problem import Placement, Problem, ShardSize
from neuroshard_planner.steps import NONE, Steps, moves, splits, swaps

NUM_TARGETS = 16  # least loaded devices that a step may use; more find little on the public workloads
NUM_SOURCE_SHARDS = 64  # shards of the source tried per step, spread evenly over its loads
NUM_JUDGED = 32  # candidates per step that the networks judge
EVENNESS_POWER = 16  # high enough that the potential follows the most loaded devices
LEAST_GAIN = 1e-5  # relative; smaller steps cost more time than they are worth


class State:
    """A placement with the sums, times and memory of its devices."""

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self._problem = problem
        self.kinds = placement.kinds
        self.devices = placement.devices
        self.sums = problem.device_sums(self.kinds, self.devices)
        self.times: FloatArray = problem.compute_ms(self.sums).astype(np.float64)
        self.columns = self._per_device(problem.kinds.num_columns[self.kinds])
        self.memory = self._per_device(problem.kinds.memory_bytes[self.kinds])
        self.shards_of_unit: IndexArray = np.bincount(problem.kinds.unit[self.kinds], minlength=len(problem.units))

    def _per_device(self, values: IndexArray) -> IndexArray:
        totals = np.zeros(self._problem.num_devices, dtype=np.int64)
        np.add.at(totals, self.devices, values)
        return totals

    @property
    def total_ms(self) -> float:
        """The plan's cost."""
        return float(self.times.max(axis=0).sum() + self._problem.transfer.total_ms(float(self.columns.max())))

    def apply(self, source: int, steps: Steps, choice: int) -> None:
        """Take one step and bring the two devices up to date."""
        target = int(steps.target[choice])
        coming = [(source, int(steps.source_kind[choice])), (target, int(steps.target_kind[choice]))]
        stay = np.ones(len(self.kinds), dtype=np.bool_)
        stay[[shard for shard in (steps.source_shard[choice], steps.target_shard[choice]) if shard != NONE]] = False
        self.kinds = np.append(self.kinds[stay], [kind for _, kind in coming if kind != NONE])
        self.devices = np.append(self.devices[stay], [device for device, kind in coming if kind != NONE])
        kinds = self._problem.kinds
        pair = [source, target]
        for device in pair:
            here = self.kinds[self.devices == device]
            self.sums[device] = kinds.representation[here].sum(axis=0)
            self.columns[device] = kinds.num_columns[here].sum()
            self.memory[device] = kinds.memory_bytes[here].sum()
        self.times[pair] = self._problem.compute_ms(self.sums[pair])
        self.shards_of_unit = np.bincount(kinds.unit[self.kinds], minlength=len(self._problem.units))


class LocalSearch:
    """Improves placements of one problem until nothing helps or the work budget ends."""

    def __init__(self, problem: Problem, *, slopes: FloatArray, work_budget: int) -> None:
        self._problem = problem
        self._slopes = slopes
        self._work_budget = work_budget
        self._known_loads: FloatArray = np.empty((0, 2))
        self.improvements = 0
        """Steps taken so far, over all placements."""

    def improve(self, placement: Placement) -> Placement:
        """Return a placement that costs at most as much."""
        state = State(self._problem, merged(self._problem, placement))
        while self._problem.work < self._work_budget:
            if not any(self._step(state, source) for source in _bounding_devices(state)):
                break
            self.improvements += 1
        return Placement(kinds=state.kinds, devices=state.devices)

    def _step(self, state: State, source: int) -> bool:
        """Take the best step away from a device; return whether there was one."""
        shards = np.flatnonzero(state.devices == source)
        if not len(shards) or self._problem.num_devices == 1:
            return False
        price = self._column_price(state)
        load = self._loads()[state.kinds].sum(axis=1) + price * self._problem.kinds.num_columns[state.kinds]
        loaded = state.times.sum(axis=1) + price * state.columns
        shards = _spread(shards[np.argsort(load[shards], kind="stable")], NUM_SOURCE_SHARDS)
        targets = np.argsort(loaded, kind="stable")
        targets = targets[targets != source][:NUM_TARGETS]
        wanted = (loaded[source] - loaded[targets]) / 2
        whole = Steps.concatenated(
            [
                moves(self._problem, state, shards, targets),
                swaps(self._problem, state, shards, targets, load=load, wanted=wanted),
            ]
        )
        if self._take_best(state, source, whole, price):
            return True
        parts = splits(self._problem, state, shards, targets, load=load, wanted=wanted)
        return self._take_best(state, source, parts, price)

    def _take_best(self, state: State, source: int, steps: Steps, price: float) -> bool:
        """Take the best of the steps that fit the memory, if it is better than staying."""
        if not len(steps.target):
            return False
        capacity = self._problem.memory.shard_capacity_bytes
        memory = _after(self._problem.kinds.memory_bytes, state.kinds, state.memory, source, steps)
        steps = steps.take(np.flatnonzero((memory <= capacity).all(axis=0)))
        times = _after(self._loads(), state.kinds, state.times, source, steps)
        total, evenness = self._outcome(state, source, steps, times, price)
        likely = np.lexsort((evenness, total))[:NUM_JUDGED]
        if not len(likely):
            return False
        steps = steps.take(likely)
        sums = _after(self._problem.kinds.representation, state.kinds, state.sums, source, steps)
        times = self._problem.compute_ms(np.maximum(sums, 0.0)).astype(np.float64)
        total, evenness = self._outcome(state, source, steps, times, price)
        # Evenness is in units of the plan's cost to EVENNESS_POWER, which the source's share of it puts in scale.
        staying = (state.times[source].sum() + price * state.columns[source]) / state.total_ms
        better = (total < state.total_ms * (1 - LEAST_GAIN)) | (
            (total <= state.total_ms) & (evenness < -LEAST_GAIN * staying**EVENNESS_POWER)
        )
        if not better.any():
            return False
        state.apply(source, steps, int(np.lexsort((evenness, total, ~better))[0]))
        return True

    def _outcome(
        self, state: State, source: int, steps: Steps, times: FloatArray, price: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return [c] the plan's cost and [c] the change of its unevenness, given [2, c, 2] times of the two devices."""
        columns = _after(self._problem.kinds.num_columns, state.kinds, state.columns, source, steps)
        largest = [
            np.maximum(_largest_elsewhere(elsewhere, source, steps.target), here.max(axis=0))
            for elsewhere, here in (
                (state.times[:, 0], times[..., 0]),
                (state.times[:, 1], times[..., 1]),
                (state.columns, columns),
            )
        ]
        total = largest[0] + largest[1] + self._problem.transfer.total_ms(largest[2])
        before = ((state.times.sum(axis=1) + price * state.columns) / state.total_ms) ** EVENNESS_POWER
        after = ((times.sum(axis=2) + price * columns) / state.total_ms) ** EVENNESS_POWER
        return total, after.sum(axis=0) - before[source] - before[steps.target]

    def _loads(self) -> FloatArray:
        """Return [k, 2] the additive forward and backward milliseconds of all kinds."""
        new = self._problem.kinds.representation[len(self._known_loads) :]
        if len(new):
            self._known_loads = np.concatenate([self._known_loads, new @ self._slopes])
        return self._known_loads

    def _column_price(self, state: State) -> float:
        """Return the milliseconds that one more column on the widest device costs."""
        widest = float(state.columns.max())
        step = max(float(DIM_MULTIPLE), 0.05 * widest)
        transfer = self._problem.transfer
        return float(transfer.total_ms(widest + step) - transfer.total_ms(widest)) / step


def merged(problem: Problem, placement: Placement) -> Placement:
    """Return the placement with the shards of one unit on one device made one shard."""
    kinds = problem.kinds
    unit, device = kinds.unit[placement.kinds], placement.devices
    _, first, inverse, count = np.unique(
        np.stack([unit, device]), axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    if (count == 1).all():
        return placement
    columns = np.zeros(len(count), dtype=np.int64)
    np.add.at(columns, inverse.reshape(-1), kinds.num_columns[placement.kinds])
    rows = kinds.num_rows[placement.kinds[first]]
    sizes = [ShardSize(int(num_rows), int(num_columns)) for num_rows, num_columns in zip(rows, columns, strict=True)]
    return Placement(kinds=problem.kinds_of(unit[first].tolist(), sizes), devices=device[first])


def _bounding_devices(state: State) -> Iterator[int]:
    """Yield the devices that bound the plan: by both computes together, by each, and by communication."""
    bounding = [state.times.sum(axis=1), state.times[:, 0], state.times[:, 1], state.columns]
    yield from dict.fromkeys(int(values.argmax()) for values in bounding)


def _spread(shards: IndexArray, most: int) -> IndexArray:
    """Return at most ``most`` of the shards, evenly spaced."""
    if len(shards) <= most:
        return shards
    return shards[np.linspace(0, len(shards) - 1, most).astype(np.int64)]


def _after(
    values: NDArray[Any], state_kinds: IndexArray, per_device: NDArray[Any], source: int, steps: Steps
) -> NDArray[Any]:
    """Return [2, c, ...] the sums of ``values`` (one row per kind) on the source and on the target after each step."""
    padded = np.concatenate([values, np.zeros_like(values[:1])])  # row NONE is zero

    def change(shard: IndexArray, kind: IndexArray) -> NDArray[Any]:
        difference: NDArray[Any] = padded[kind] - padded[np.where(shard == NONE, NONE, state_kinds[shard])]
        return difference

    return np.stack(
        [
            per_device[source] + change(steps.source_shard, steps.source_kind),
            per_device[steps.target] + change(steps.target_shard, steps.target_kind),
        ]
    )


def _largest_elsewhere(values: IndexArray | FloatArray, source: int, targets: IndexArray) -> FloatArray:
    """Return [c] the largest value over all devices but the source and each target; 0 if there is no other."""
    others = np.argsort(-values, kind="stable")[:3]
    others = others[others != source]
    result = np.zeros(len(targets))
    if len(others):
        result = np.where(targets == others[0], 0.0, values[others[0]])
    if len(others) > 1:
        result = np.where(targets == others[0], values[others[1]], result)
    return result
