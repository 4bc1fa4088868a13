"""Conversions: steps that shard one unit another way, of another family too, until nothing helps.

A step takes all shards of a unit away and places another of its options. Candidates are ranked by additive loads; the
best few are judged by the cost networks on all devices. A step is taken if it lowers the plan's cost, or keeps it and
lowers the smooth cost; both strictly decrease, so that the descent ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from neuroshard_costs.shards import FloatArray
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC
from neuroshard_planner.search.local_search import LEAST_GAIN, MEMORY, State, bounding_devices
from neuroshard_planner.search.placed_options import Forms, PlacedOption, with_options

NUM_UNITS = 32  # tried per step: those that the bounding devices spend most on
NUM_JUDGED = 32  # candidates per step that the networks judge


class Conversions:
    """Converts units of one problem's placements."""

    def __init__(self, problem: Problem, forms: Forms, *, slopes: FloatArray, work_budget: int) -> None:
        """``slopes`` [r, 2] make loads additive; ``work_budget`` is the ``problem.work`` at which descents end."""
        self._problem = problem
        self._forms = forms
        self._slopes = slopes
        self._work_budget = work_budget
        self.improvements = 0
        """Steps taken so far, over all placements."""

    def improve(self, placement: Placement) -> Placement:
        """Return a placement that costs at most as much as the given one."""
        while self._problem.work < self._work_budget:
            found = self._step(placement)
            if found is None:
                break
            placement = found
            self.improvements += 1
        return placement

    def _step(self, placement: Placement) -> Placement | None:
        """Return the placement after the best conversion. None: none is better than staying."""
        problem = self._problem
        state = State(problem, placement)
        prices = np.append(problem.step_cost.prices(state.levels.max(axis=0)[:NUM_LEVELS]), 0.0)
        traits = self._traits()
        options = [
            option
            for unit in self._units(state, traits @ prices)
            for option in self._options(state, unit, traits, prices)
        ]
        if not options:
            return None
        levels = self._after(state, options, traits, state.levels)
        fits = levels[:, :, MEMORY].max(axis=1) <= problem.memory.shard_capacity_bytes
        likely = np.flatnonzero(fits)
        totals = problem.step_cost.total_ms(levels[likely].max(axis=1)[:, :NUM_LEVELS])
        likely = likely[np.argsort(totals, kind="stable")[:NUM_JUDGED]]
        if not len(likely):
            return None
        chosen, judged = [options[row] for row in likely.tolist()], levels[likely][:, :, :NUM_LEVELS]
        sums = self._after(state, chosen, problem.kinds.representation, state.sums)
        judged[:, :, TIMES] = problem.pass_levels(np.maximum(sums, 0.0))
        totals, smooth = problem.step_cost.total_ms(judged.max(axis=1)), problem.step_cost.smooth_ms(judged)
        (smooth_now,) = problem.step_cost.smooth_ms(state.levels[None, :, :NUM_LEVELS])
        better = (totals < state.total_ms * (1 - LEAST_GAIN)) | (
            (totals <= state.total_ms) & (smooth < smooth_now * (1 - LEAST_GAIN))
        )
        if not better.any():
            return None
        return with_options(problem, placement, [chosen[int(np.lexsort((smooth, totals, ~better))[0])]])

    def _units(self, state: State, cost: FloatArray) -> Sequence[int]:
        """Return the units to try: on each device that bounds the plan, those that cost most."""
        unit_of = self._problem.kinds.unit[state.kinds]
        found: dict[int, None] = {}
        for device in bounding_devices(state):
            here = np.flatnonzero(state.devices == device)
            ranked = here[np.argsort(-cost[state.kinds[here]], kind="stable")]
            found.update(dict.fromkeys(unit_of[ranked].tolist()))
        return list(found)[:NUM_UNITS]

    def _options(self, state: State, unit: int, traits: FloatArray, prices: FloatArray) -> list[PlacedOption]:
        """Return the unit's options, each where the devices without the unit have least load."""
        own = self._problem.kinds.unit[state.kinds] == unit
        without = state.levels.copy()
        np.subtract.at(without, state.devices[own], traits[state.kinds[own]])
        room = self._problem.memory.shard_capacity_bytes - without[:, MEMORY]
        load = without @ prices
        placed = sorted(zip(state.kinds[own].tolist(), state.devices[own].tolist(), strict=True))
        return [
            option
            for form in self._forms.of(unit)
            for option in self._forms.placed(unit, form, load, room)
            if sorted(zip(option.kinds.tolist(), option.devices.tolist(), strict=True)) != placed
        ]

    def _after(
        self, state: State, options: Sequence[PlacedOption], values: NDArray[Any], per_device: NDArray[Any]
    ) -> NDArray[Any]:
        """Return [c, devices, v] the sums of ``values`` (a row per kind) on all devices after each conversion."""
        result = np.repeat(per_device[None], len(options), axis=0)
        unit_of = self._problem.kinds.unit[state.kinds]
        for row, option in enumerate(options):
            own = np.flatnonzero(unit_of == option.unit)
            np.subtract.at(result[row], state.devices[own], values[state.kinds[own]])
            np.add.at(result[row], option.devices, values[option.kinds])
        return result

    def _traits(self) -> FloatArray:
        """Return [kinds, levels + 1] additive times, traffic, and memory of all kinds."""
        return additive_traits(self._problem, self._slopes)


def additive_traits(problem: Problem, slopes: FloatArray) -> FloatArray:
    """Return [kinds, levels + 1] what each kind adds to its device: times to first order, traffic, and memory."""
    kinds = problem.kinds
    traits = np.empty((len(kinds), NUM_LEVELS + 1))
    traits[:, TIMES] = problem.step_cost.passes(kinds.representation @ slopes)
    traits[:, TRAFFIC] = kinds.traffic
    traits[:, MEMORY] = kinds.memory_bytes
    return traits
