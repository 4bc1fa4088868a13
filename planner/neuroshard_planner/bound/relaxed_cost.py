"""The objective of placements that use exactly some families, bounded below by a convex function of the mean device.

No peak is below the mean over devices, nor below what some device has. The time of a collective at its peak is bounded
by the convex hull of its knots over the loads that the mean device may have, which begins with what the collective
costs at all: a family in use pays its launch whatever it sends. Tables of row_wise and data_parallel families are on
every device, so that some device makes a call for each of them, and one more where further tables are: of the devices
that share those, the mean has at least the load of the mean over all.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from neuroshard_costs.curve_hull import CurveHull
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS, FloatArray
from neuroshard_costs.step_cost import TIMES, TRAFFIC, Collective

from neuroshard_planner.problem.problem import Problem

COLLECTIVES = {
    COLUMNS: (Collective.POOLED_EMBEDDINGS, Collective.INDICES),
    ROWS: (Collective.ROW_SUMS, Collective.INDICES),
    NODE_ROWS: (Collective.NODE_ROW_SUMS, Collective.INDICES),
    REPLICATED: (Collective.GRADIENTS,),
}
"""That a table takes part in, by its family."""


Straight = Mapping[Collective, float]
"""Milliseconds per unit of traffic of collectives that have a line in place of their time."""


class RelaxedCost:
    """A convex, non-decreasing function of a mean device's least demands [q] and traffic [collectives], in one row."""

    def __init__(
        self,
        problem: Problem,
        families: Collection[int],
        least_traffic: FloatArray,
        most_traffic: FloatArray,
        of_some_device: FloatArray,
    ) -> None:
        """Make the function for placements that use all of these families and no other.

        Args:
            problem: whose costs have tangents.
            families: positions in FAMILIES.
            least_traffic: [collectives] of the mean device.
            most_traffic: [collectives] of the mean device.
            of_some_device: [levels] that some device has at least, each for itself.
        """
        self._tangent_ms, self._passes, step_cost = problem.tangent_ms, problem.step_cost.passes, problem.step_cost
        self._single_ms = of_some_device[TIMES]
        self._num_traits = problem.least_demands(problem.whole[:1]).shape[1]
        self._num_calls = len({ROWS, REPLICATED} & set(families)) + bool({COLUMNS, NODE_ROWS} & set(families))
        used = {collective for family in families for collective in COLLECTIVES[family]}
        if step_cost.has_sequences:
            used -= {Collective.ROW_SUMS}  # rows of sequences are not added up
        self.curve = step_cost.collective
        self.least_peaks = np.maximum(least_traffic, of_some_device[TRAFFIC])
        """[collectives]"""
        self._hulls = {
            each: CurveHull(
                self.curve(each),
                *(float(limit[each]) for limit in (least_traffic, most_traffic, of_some_device[TRAFFIC])),
            )
            for each in sorted(used)
        }
        self._fixed_ms = step_cost.fixed_ms
        self._hides_inputs = step_cost.hides_inputs
        self._dense_update_ms = float(step_cost.dense_update_ms(np.eye(len(Collective))[Collective.GRADIENTS]))

    def tangent(self, mean: FloatArray, straight: Straight = MappingProxyType({})) -> tuple[float, FloatArray]:
        """Return the milliseconds at a mean device and the slopes there: no mean device goes below this tangent."""
        times, slopes = self.tangent_of_passes(mean[: self._num_traits])
        total, slope = float(np.maximum(times, self._single_ms).sum()), np.zeros_like(mean)
        slope[: self._num_traits] = slopes[times >= self._single_ms].sum(axis=0)
        if self._hides_inputs and Collective.INDICES in self._hulls:
            place = self._num_traits + Collective.INDICES
            ms, rate = self._hulls[Collective.INDICES].tangent(float(mean[place]))
            if ms > total:  # hidden is what takes no longer than the compute
                total = ms
                slope[:] = 0.0
                slope[place] = rate
        beyond_ms, beyond = self.tangent_beyond_compute(mean, straight)
        return total + beyond_ms, slope + beyond

    def tangent_beyond_compute(
        self, mean: FloatArray, straight: Straight = MappingProxyType({})
    ) -> tuple[float, FloatArray]:
        """Return the tangent of all but compute, and but indices that it may hide."""
        slope = np.zeros_like(mean)
        slope[self._num_traits + Collective.GRADIENTS] = self._dense_update_ms
        total = self._fixed_ms + self._dense_update_ms * float(mean[self._num_traits + Collective.GRADIENTS])
        for collective, hull in self._hulls.items():
            if collective is not Collective.INDICES or not self._hides_inputs:
                place = self._num_traits + collective
                rate = straight.get(collective)
                ms, rate = hull.tangent(float(mean[place])) if rate is None else (rate * float(mean[place]), rate)
                total += ms
                slope[place] += rate
        return total, slope

    def lines(self, collective: Collective, *, most_ms: float, tolerance_ms: float) -> Sequence[tuple[float, float]]:
        """Return lines, as milliseconds without traffic and per unit of it; the time at any load is above one of them.

        A time above ``most_ms`` need not be. None of them is further below it than the tolerance.
        """
        return self._hulls[collective].lines(most_ms, tolerance_ms)

    @property
    def collectives(self) -> list[Collective]:
        """What placements use."""
        return list(self._hulls)

    def tangent_of_passes(self, sums: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return levels [2] of compute and their slopes [2, q] of a device that has these sums, and all calls."""
        found = self._tangent_ms(sums, num_calls=self._num_calls)
        assert found is not None, "asked only of costs that have tangents"
        return self._passes(found[0]), self._passes(found[1].T).T
