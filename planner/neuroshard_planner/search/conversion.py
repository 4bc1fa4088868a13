"""Conversions: steps that shard one unit another way, of another family too, until nothing helps.

A step takes all shards of a unit away and places another of its options. Candidates are ranked by additive loads; the
best few are judged by the cost networks on all devices. A step is taken if it lowers the plan's cost, or keeps it and
lowers the smooth cost; both strictly decrease, so that the descent ends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray
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

    def converted(self, placement: Placement, generator: np.random.Generator) -> Placement:
        """Return the placement with a random unit in a random other family; as it is where that does not fit.

        Of several ways in the family the one that costs least to first order is taken.
        """
        state = State(self._problem, placement)
        prices = np.append(self._problem.step_cost.prices(state.levels.max(axis=0)[:NUM_LEVELS]), 0.0)
        unit = int(generator.integers(len(self._problem.units)))
        traits, family = self._traits(), self._problem.kinds.family
        now = family[placement.kinds[self._problem.kinds.unit[placement.kinds] == unit][0]]
        options = [
            each for each in self._options(state, placement, unit, traits, prices) if family[each.kinds[0]] != now
        ]
        if not options:
            return placement
        families = sorted({int(family[each.kinds[0]]) for each in options})
        chosen = families[int(generator.integers(len(families)))]
        options = [each for each in options if family[each.kinds[0]] == chosen]
        levels = self._after(placement, options, traits, state.levels)
        totals = self._problem.step_cost.total_ms(levels.max(axis=1)[:, :NUM_LEVELS])
        return with_options(self._problem, placement, [options[int(totals.argmin())]])

    def _step(self, placement: Placement) -> Placement | None:
        """Return the placement after the best conversion. None: none is better than staying."""
        problem = self._problem
        state = State(problem, placement)
        prices = np.append(problem.step_cost.prices(state.levels.max(axis=0)[:NUM_LEVELS]), 0.0)
        traits = self._traits()
        options = [
            option
            for unit in self._units(state, placement, traits @ prices)
            for option in self._options(state, placement, unit, traits, prices)
        ]
        if not options:
            return None
        levels = self._after(placement, options, traits, state.levels)
        fits = levels[:, :, MEMORY].max(axis=1) <= problem.memory.shard_capacity_bytes
        likely = np.flatnonzero(fits)
        totals = problem.step_cost.total_ms(levels[likely].max(axis=1)[:, :NUM_LEVELS])
        likely = likely[np.argsort(totals, kind="stable")[:NUM_JUDGED]]
        if not len(likely):
            return None
        chosen, judged = [options[row] for row in likely.tolist()], levels[likely][:, :, :NUM_LEVELS]
        sums = self._after(placement, chosen, problem.kinds.representation, state.sums)
        judged[:, :, TIMES] = problem.pass_levels(np.maximum(sums, 0.0), in_bulk=True)
        totals, smooth = problem.step_cost.total_ms(judged.max(axis=1)), problem.step_cost.smooth_ms(judged)
        (smooth_now,) = problem.step_cost.smooth_ms(state.levels[None, :, :NUM_LEVELS])
        better = (totals < state.total_ms * (1 - LEAST_GAIN)) | (
            (totals <= state.total_ms) & (smooth < smooth_now * (1 - LEAST_GAIN))
        )
        if not better.any():
            return None
        return with_options(problem, placement, [chosen[int(np.lexsort((smooth, totals, ~better))[0])]])

    def _units(self, state: State, placement: Placement, cost: FloatArray) -> Sequence[int]:
        """Return the units to try: on each device that bounds the plan, those that cost most."""
        found: dict[int, None] = {}
        for device in bounding_devices(state):
            here = placement.kinds[placement.devices == device]
            ranked = here[np.argsort(-cost[here], kind="stable")]
            found.update(dict.fromkeys(self._problem.kinds.unit[ranked].tolist()))
        return list(found)[:NUM_UNITS]

    def _options(
        self, state: State, placement: Placement, unit: int, traits: FloatArray, prices: FloatArray
    ) -> list[PlacedOption]:
        """Return the unit's options, each where the devices without the unit have least load."""
        own = np.flatnonzero(self._problem.kinds.unit[placement.kinds] == unit)
        kinds, devices = placement.kinds[own], placement.devices[own]
        without = state.levels.copy()
        np.subtract.at(without, devices, traits[kinds])
        room = self._problem.memory.shard_capacity_bytes - without[:, MEMORY]
        load = without @ prices
        placed = _in_order(kinds, devices)
        return [
            option
            for form in self._forms.of(unit)
            for option in self._forms.placed(unit, form, load, room)
            if not np.array_equal(_in_order(option.kinds, option.devices), placed)
        ]

    def _after(
        self, placement: Placement, options: Sequence[PlacedOption], values: NDArray[Any], per_device: NDArray[Any]
    ) -> NDArray[Any]:
        """Return [c, devices, v] the sums of ``values`` (a row per kind) on all devices after each conversion."""
        result = np.repeat(per_device[None], len(options), axis=0)
        unit_of = self._problem.kinds.unit[placement.kinds]
        own = {unit: np.flatnonzero(unit_of == unit) for unit in {option.unit for option in options}}
        for row, option in enumerate(options):
            leaving = own[option.unit]
            np.subtract.at(result[row], placement.devices[leaving], values[placement.kinds[leaving]])
            result[row, option.devices] += values[option.kinds]  # no device has two shards of an option
        return result

    def _traits(self) -> FloatArray:
        """Return [kinds, levels + 1] additive times, traffic, and memory of all kinds."""
        return additive_traits(self._problem, self._slopes)


def _in_order(kinds: IndexArray, devices: IndexArray) -> IndexArray:
    """Return [n, 2] shards by device and kind."""
    order = np.lexsort((kinds, devices))
    return np.stack((kinds[order], devices[order]), axis=1)


def additive_traits(problem: Problem, slopes: FloatArray) -> FloatArray:
    """Return [kinds, levels + 1] what each kind adds to its device: times to first order, traffic, and memory."""
    kinds = problem.kinds
    traits = np.empty((len(kinds), NUM_LEVELS + 1))
    traits[:, TIMES] = problem.step_cost.passes(kinds.representation @ slopes)
    traits[:, TRAFFIC] = kinds.traffic
    traits[:, MEMORY] = kinds.memory_bytes
    return traits
