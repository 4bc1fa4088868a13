"""Estimates: additive loads in place of the cost networks, and what placements promise before they are evened out.

The tangent of the compute networks at the evenly loaded device makes what a shard costs additive, to first order. The
networks themselves judge the few candidates that these loads rank first.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_costs.arithmetic import ordered_product
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.search.options import Forms

MEMORY = NUM_LEVELS
"""Position after the levels that cost time: the bytes of a device or of a kind."""
_LEAST_SLOPE = 1e-12
_SECANT_STEP = 0.05  # of the coordinate; ReLU heads are piecewise linear, so a step must cross some pieces


def most_promising(problem: Problem, placements: Sequence[Placement]) -> list[int]:
    """Return the positions of the placements, those that promise least first."""
    if not placements:
        return []
    order: list[int] = np.argsort(promised_ms(problem, placements), kind="stable").tolist()
    return order


def promised_ms(problem: Problem, placements: Sequence[Placement]) -> FloatArray:
    """Return [p] the cost of a device that has an even share of all levels, or those of the largest shard alone."""
    representation, traffic = problem.kinds.representation, problem.kinds.traffic
    every, row = np.unique(np.concatenate([each.kinds for each in placements]), return_inverse=True)
    alone = np.empty((len(every), NUM_LEVELS))
    alone[:, TIMES] = problem.pass_levels(representation[every], per_work=BULK_PER_EVALUATION)
    alone[:, TRAFFIC] = traffic[every]
    ends = np.cumsum([len(each.kinds) for each in placements])
    largest = np.array([alone[own].max(axis=0) for own in np.split(row, ends[:-1])])
    even = np.empty_like(largest)
    even[:, TIMES] = problem.pass_levels(mean_sums(problem, placements))
    even[:, TRAFFIC] = np.array([_summed(traffic, each.kinds) for each in placements]) / problem.num_devices
    return problem.step_cost.total_ms(np.maximum(even, largest))


def mean_sums(problem: Problem, placements: Sequence[Placement]) -> FloatArray:
    """Return [p, r] the sums of the mean device of each placement."""
    return np.array([_summed(problem.kinds.representation, each.kinds) for each in placements]) / problem.num_devices


def _summed(values: FloatArray, kinds: IndexArray) -> FloatArray:
    """Return [v] the sum of ``values`` (a row per kind) over n shards; many are of one kind where rows are cut."""
    counts = np.bincount(kinds)
    (used,) = counts.nonzero()
    total: FloatArray = (values[used] * counts[used, None]).sum(axis=0)
    return total


def tangent(problem: Problem, sums: FloatArray) -> FloatArray:
    """Return [r, 2] milliseconds of forward and of backward time per unit of representation, at these [r] sums.

    The product with a shard's representation is what the shard adds to such a device, to first order.
    """
    steps = _SECANT_STEP * sums + 1e-6 * sums.sum() + 1e-12
    points = np.vstack([sums, sums + np.diag(steps)])
    times = problem.compute_ms(points)
    slopes: FloatArray = (times[1:] - times[0]) / steps[:, None]
    if problem.host_tables is not None:
        slopes[-2:] = np.eye(2)  # they are milliseconds
    # Tiny tables vanish beside a call's launch; a floor keeps their loads apart and above zero.
    return np.maximum(slopes, _LEAST_SLOPE)


class Traits:
    """What the kinds of a problem add to their devices to first order, also those that are made later."""

    def __init__(self, problem: Problem, slopes: FloatArray) -> None:
        """``slopes`` [r, 2] make loads additive."""
        self._problem, self._slopes = problem, slopes
        self._room: FloatArray = np.empty((0, NUM_LEVELS + 1))
        self._known = self._room

    def __call__(self) -> FloatArray:
        """Return [kinds, levels + 1] additive times, traffic, and memory of all kinds."""
        known, count = len(self._known), len(self._problem.kinds)
        if known < count:
            if count > len(self._room):  # by a half more, so that a few new kinds cost little
                self._room = np.empty((count + count // 2, NUM_LEVELS + 1))
                self._room[:known] = self._known
            self._known = self._room[:count]
            added, kinds = self._known[known:], self._problem.kinds
            times = ordered_product(kinds.representation[known:], self._slopes)
            added[:, TIMES] = self._problem.step_cost.passes(times)
            added[:, TRAFFIC] = kinds.traffic[known:]
            added[:, MEMORY] = kinds.memory_bytes[known:]
        return self._known


def reference_prices(problem: Problem, forms: Forms | None, traits: FloatArray, start: Placement | None) -> FloatArray:
    """Return [levels + 1] milliseconds of one unit more of each peak where all families are in use.

    Families that the start does not use are taken at half of the traffic that all units would bring them by their
    forms. None: no other family is used.
    """
    peaks = traits[problem.whole].sum(axis=0)[:NUM_LEVELS] / problem.num_devices
    if start is not None:
        peaks = problem.device_levels([start])[0].max(axis=0)
    most = np.zeros(len(Collective))
    for own in [] if forms is None else map(forms.of, range(len(problem.units))):
        traffic = [problem.kinds.traffic[form.pieces].sum(axis=0) * form.num_placed for form in own]
        most += np.max(traffic, axis=0) / problem.num_devices
    peaks[TRAFFIC] = np.where(peaks[TRAFFIC] > 0, peaks[TRAFFIC], most / 2)
    return np.append(problem.step_cost.prices(peaks), 0.0)
