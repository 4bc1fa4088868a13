"""Perturbations: random changes to a placement between two descents (iterated local search).

A perturbation either moves a few shards or cuts one unit another way and places its shards again. The first leads to
local optima nearby, the second to splits that no single move reaches. The result fits; its cost is not judged.
"""

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.local_search import State, bounding_devices
from neuroshard_planner.search.sharding_options import OptionTable


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
        bounding = int(self._generator.choice(list(bounding_devices(State(self._problem, placement)))))
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
        load = kinds.representation[held].astype(np.float64) @ self._slopes
        unit = int(kinds.unit[self._generator.choice(held, p=load / load.sum())])
        option = int(self._generator.integers(options.first[unit], options.last[unit] + 1))
        rest = kinds.unit[placement.kinds] != unit
        recut = Placement(kinds=placement.kinds[rest], devices=placement.devices[rest])
        for kind in options.kinds[options.start[option] : options.start[option] + options.count[option]]:
            free = self._free_devices(recut, int(kind))
            if not len(free):
                return placement
            shard_loads = kinds.representation[recut.kinds] @ self._slopes
            load = np.bincount(recut.devices, weights=shard_loads, minlength=self._problem.num_devices)
            recut = Placement(
                kinds=np.append(recut.kinds, kind), devices=np.append(recut.devices, free[load[free].argmin()])
            )
        return recut

    def _free_devices(self, placement: Placement, kind: int) -> IndexArray:
        """Return the devices that may and can take one more shard of a kind, and hold none of its unit."""
        problem, kinds = self._problem, self._problem.kinds
        unit = kinds.unit[kind]
        memory = np.zeros(problem.num_devices, dtype=np.int64)
        np.add.at(memory, placement.devices, kinds.memory_bytes[placement.kinds])
        free = memory + kinds.memory_bytes[kind] <= problem.memory.shard_capacity_bytes
        free[placement.devices[kinds.unit[placement.kinds] == unit]] = False
        if problem.allowed is not None:
            free &= problem.allowed[unit]
        devices: IndexArray = np.flatnonzero(free)
        return devices
