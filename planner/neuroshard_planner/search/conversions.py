"""Conversions: steps that shard one unit another way, of another family too, until nothing helps.

A step takes all shards of a unit away and places another of its options. Candidates are ranked by additive loads; the
best few are judged by the cost networks on all devices. A step is taken if it lowers the plan's cost, or keeps it and
lowers the smooth cost; both strictly decrease, so that the descent ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.search.estimator import MEMORY, Traits
from neuroshard_planner.search.local_search import State, bounding_devices, peak_prices
from neuroshard_planner.search.options import Forms, PlacedOption, with_options


class Conversions:
    """Converts units of one problem's placements."""

    def __init__(self, problem: Problem, forms: Forms, *, traits: Traits, work_budget: int) -> None:
        """``work_budget`` is the ``problem.work`` at which descents end."""
        self._problem = problem
        self._forms = forms
        self._traits = traits
        self._work_budget = work_budget
        self.improvements = 0
        """Conversions made so far, over all placements."""

    def improve(self, placement: Placement) -> Placement:
        """Return a placement that costs at most as much as the given one."""
        while self._problem.work < self._work_budget:
            found = self._step(placement)
            if found is None:
                break
            placement = found
            self.improvements += 1
        return placement

    def converted(self, placement: Placement, generator: np.random.Generator) -> Placement:
        """Return the placement with a random unit in a random other family; as it is where that does not fit.

        Of several ways in the family the one that costs least to first order is taken.
        """
        unit = int(generator.integers(len(self._problem.units)))
        state = State(self._problem, [placement])
        candidates = _Candidates(self._problem, state, placement, [unit], self._traits())
        candidates.add_all(self._forms, peak_prices(self._problem, state.peaks[0]))
        family = self._problem.kinds.family
        now = family[candidates.own_kinds[0][0]]
        found = [(row, int(family[each.kinds[0]])) for row, each in enumerate(candidates.options)]
        families = sorted({other for _, other in found if other != now})
        if not families:
            return placement
        chosen = families[int(generator.integers(len(families)))]
        rows = np.array([row for row, other in found if other == chosen])
        levels = candidates.levels_after(rows)
        totals = self._problem.step_cost.total_ms(levels.max(axis=1)[:, :NUM_LEVELS])
        return with_options(self._problem, placement, [candidates.options[rows[totals.argmin()]]])

    def _step(self, placement: Placement) -> Placement | None:
        """Return the placement after the best conversion. None: none is better than staying."""
        problem = self._problem
        state = State(problem, [placement])
        prices = peak_prices(problem, state.peaks[0])
        units = self._units(state, placement, weighted_sum(self._traits(), prices))
        candidates = _Candidates(problem, state, placement, units, self._traits())
        candidates.add_all(self._forms, prices)
        if not candidates.options:
            return None
        levels = candidates.levels_after(np.arange(len(candidates.options)))
        peaks = levels.max(axis=1)
        likely = np.flatnonzero(peaks[:, MEMORY] <= problem.memory.shard_capacity_bytes)
        totals = problem.step_cost.total_ms(peaks[likely][:, :NUM_LEVELS])
        likely = likely[np.argsort(totals, kind="stable")[: problem.tuning.num_judged]]
        if not len(likely):
            return None
        judged = levels[likely][:, :, :NUM_LEVELS]
        sums = candidates.after(likely, problem.kinds.representation, state.sums)
        judged[:, :, TIMES] = problem.pass_levels(np.maximum(sums, 0.0), per_work=BULK_PER_EVALUATION)
        totals, smooth = problem.step_cost.total_ms(judged.max(axis=1)), problem.step_cost.smooth_ms(judged)
        (smooth_now,) = problem.step_cost.smooth_ms(state.levels[None, :, :NUM_LEVELS])
        better = (totals < state.total_ms[0] * (1 - problem.tuning.least_gain)) | (
            (totals <= state.total_ms[0]) & (smooth < smooth_now * (1 - problem.tuning.least_gain))
        )
        if not better.any():
            return None
        best = likely[np.lexsort((smooth, totals, ~better))[0]]
        return with_options(problem, placement, [candidates.options[best]])

    def _units(self, state: State, placement: Placement, cost: FloatArray) -> Sequence[int]:
        """Return the units to try: on each device that bounds the plan, those that cost most."""
        found: dict[int, None] = {}
        for device in bounding_devices(state.levels):
            here = placement.kinds[placement.devices == device]
            ranked = here[np.argsort(-cost[here], kind="stable")]
            found.update(dict.fromkeys(self._problem.kinds.unit[ranked].tolist()))
        return list(found)[: self._problem.tuning.num_judged]


class _Candidates:
    """Conversions of some units of one placement, with what all devices have after each."""

    def __init__(
        self, problem: Problem, state: State, placement: Placement, units: Sequence[int], traits: FloatArray
    ) -> None:
        self._problem, self._units = problem, units
        self._traits = traits
        unit_of = problem.kinds.unit[placement.kinds]
        own = [np.flatnonzero(unit_of == unit) for unit in units]
        self.own_kinds = [placement.kinds[rows] for rows in own]
        """[units] kinds of the shards that a conversion takes away."""
        self._own_devices = [placement.devices[rows] for rows in own]
        self._levels_without = self._without(self._traits, state.levels)
        self.options: list[PlacedOption] = []
        """Other than what the units are now."""
        self._position: list[int] = []
        """[options] of the unit."""

    def add_all(self, forms: Forms, prices: FloatArray) -> None:
        """Add all options of all units, each where devices without the unit have least load by prices [levels + 1]."""
        problem = self._problem
        for position, unit in enumerate(self._units):
            kinds, devices = self.own_kinds[position], self._own_devices[position]
            placed: IndexArray | None = None
            own = set(kinds.tolist())
            without = self._levels_without[position]
            room = problem.memory.shard_capacity_bytes - without[:, MEMORY]
            for option in forms.options(unit, weighted_sum(without, prices), room):
                if len(option.kinds) == len(kinds) and int(option.kinds[0]) in own:
                    placed = _in_order(kinds, devices) if placed is None else placed
                    if np.array_equal(_in_order(option.kinds, option.devices), placed):
                        continue
                self.options.append(option)
                self._position.append(position)

    def levels_after(self, rows: IndexArray) -> FloatArray:
        """Return [c, devices, levels + 1] additive levels and memory after the options of these rows [c]."""
        levels: FloatArray = self._placed(rows, self._levels_without, self._traits)
        return levels

    def after(self, rows: IndexArray, values: NDArray[Any], per_device: NDArray[Any]) -> NDArray[Any]:
        """Return [c, devices, v] the sums of ``values`` (a row per kind) after the options of these rows [c]."""
        return self._placed(rows, self._without(values, per_device), values)

    def _without(self, values: NDArray[Any], per_device: NDArray[Any]) -> NDArray[Any]:
        """Return [units, devices, v] the sums of devices without each unit."""
        result = np.repeat(per_device[None], len(self._units), axis=0)
        for row, (kinds, devices) in enumerate(zip(self.own_kinds, self._own_devices, strict=True)):
            np.subtract.at(result[row], devices, values[kinds])
        return result

    def _placed(self, rows: IndexArray, without: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        chosen = [self.options[row] for row in rows.tolist()]
        result: NDArray[Any] = without[np.array(self._position)[rows]]
        counts = [len(option.kinds) for option in chosen]
        devices = np.concatenate([option.devices for option in chosen])
        # No device has two shards of an option.
        result[np.repeat(np.arange(len(chosen)), counts), devices] += values[
            np.concatenate([option.kinds for option in chosen])
        ]
        return result


def _in_order(kinds: IndexArray, devices: IndexArray) -> IndexArray:
    """Return [n, 2] shards by device and kind."""
    order = np.lexsort((kinds, devices))
    return np.stack((kinds[order], devices[order]), axis=1)
