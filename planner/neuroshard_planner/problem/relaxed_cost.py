"""The objective of placements that use exactly some families, bounded below by a convex function of the mean device.

No peak is below the mean over devices, nor below what some device has. The time of a collective at its peak is bounded
by the convex hull of its knots over the loads that the mean device may have, which begins with what the collective
costs at all: a family in use pays its launch whatever it sends. Tables of row_wise and data_parallel families are on
every device, so that some device makes a call for each of them, and one more where further tables are: of the devices
that share those, the mean has at least the load of the mean over all.
"""

from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS, FloatArray
from neuroshard_costs.step_cost import Collective, CollectiveCurve

from neuroshard_planner.problem.problem import Problem

_MARGIN = 1e-9  # that keeps two loads apart
COLLECTIVES = {
    COLUMNS: (Collective.POOLED_EMBEDDINGS, Collective.INDICES),
    ROWS: (Collective.ROW_SUMS, Collective.INDICES),
    NODE_ROWS: (Collective.NODE_ROW_SUMS, Collective.INDICES),
    REPLICATED: (Collective.GRADIENTS,),
}
"""That a table takes part in, by its family."""


class TrafficLimits(NamedTuple):
    """What is known of traffic before a choice, each [collectives]."""

    least: FloatArray
    """Of the mean device."""
    most: FloatArray
    """Of the mean device."""
    of_some_device: FloatArray
    """At least that much has some device."""


class RelaxedCost:
    """A convex, non-decreasing function of a mean device's least demands [q] and traffic [collectives], in one row."""

    def __init__(self, problem: Problem, families: Collection[int], limits: TrafficLimits) -> None:
        """Make the function for placements that use all of these families and no other.

        Args:
            problem: whose costs have tangents.
            families: positions in FAMILIES.
            limits: of the traffic of these placements.
        """
        self._tangent_ms = problem.tangent_ms
        self._num_calls = len({ROWS, REPLICATED} & set(families)) + bool({COLUMNS, NODE_ROWS} & set(families))
        step_cost = problem.step_cost
        used = {collective for family in families for collective in COLLECTIVES[family]}
        if step_cost.has_sequences:
            used -= {Collective.ROW_SUMS}  # rows of sequences are not added up
        # Indices first: compute alone hides them.
        in_order = sorted(used, key=lambda each: (each is not Collective.INDICES, each))
        self._hulls = {
            each: _Hull(step_cost.collective(each), *(float(limit[each]) for limit in limits)) for each in in_order
        }
        self._fixed_ms = step_cost.fixed_ms
        self._hides_inputs = step_cost.hides_inputs
        self._dense_update_ms = float(step_cost.dense_update_ms(np.eye(len(Collective))[Collective.GRADIENTS]))

    def tangent(self, mean: FloatArray) -> tuple[float, FloatArray]:
        """Return the milliseconds at a mean device and the slopes there: no mean device goes below this tangent."""
        num_traits = len(mean) - len(Collective)
        sums, traffic = mean[:num_traits], mean[num_traits:]
        found = self._tangent_ms(sums, num_calls=self._num_calls)
        assert found is not None, "asked only of costs that have tangents"
        times, slopes = found
        total, slope = float(times.sum()), np.zeros_like(mean)
        slope[:num_traits] = slopes.sum(axis=0)
        for collective, hull in self._hulls.items():
            ms, rate = hull.tangent(float(traffic[collective]))
            if collective is not Collective.INDICES or not self._hides_inputs:
                total += ms
            elif ms > total:  # hidden is what takes no longer than the compute
                total = ms
                slope[:] = 0.0
            else:
                continue
            slope[num_traits + collective] += rate
        gradients = num_traits + Collective.GRADIENTS
        slope[gradients] += self._dense_update_ms
        return total + self._fixed_ms + self._dense_update_ms * float(mean[gradients]), slope


class _Hull:
    """The largest convex function below a collective's time, both directions together, between two loads."""

    def __init__(self, cost: CollectiveCurve, least: float, most: float, of_some_device: float) -> None:
        """No traffic below ``least`` or above ``most`` is asked for; the peak is ``of_some_device`` or more."""
        most = max(most, least * (1 + _MARGIN), _MARGIN)
        corners = np.append(cost.knots, of_some_device)
        inside = sorted(set(corners[(corners > least) & (corners < most)].tolist()))
        knots = np.array([least, *inside, most])
        times = np.interp(np.maximum(knots, of_some_device), cost.knots, cost.both)
        kept: list[int] = []
        for point in range(len(knots)):
            while len(kept) > 1 and _is_above(knots, times, kept[-2], kept[-1], point):
                kept.pop()
            kept.append(point)
        knots, times = knots[kept], times[kept]
        self._knots: list[float] = knots.tolist()
        self._times: list[float] = times.tolist()
        self._rates: list[float] = (np.diff(times) / np.diff(knots)).tolist()

    def tangent(self, traffic: float) -> tuple[float, float]:
        """Return milliseconds and milliseconds per unit of traffic."""
        piece = min(max(bisect_right(self._knots, traffic) - 1, 0), len(self._rates) - 1)
        rate = self._rates[piece]
        return self._times[piece] + rate * (traffic - self._knots[piece]), rate


def _is_above(knots: FloatArray, times: FloatArray, first: int, middle: int, last: int) -> bool:
    """Return whether the middle point is on or above the line between the others."""
    share = (knots[middle] - knots[first]) / (knots[last] - knots[first])
    return bool(times[middle] >= times[first] + share * (times[last] - times[first]))
