"""The time of a collective as a convex function of its traffic from below, which lower bounds of placements add up."""

from bisect import bisect_right

import numpy as np

from neuroshard_costs.shards import FloatArray
from neuroshard_costs.step_cost import CollectiveCurve

_MARGIN = 1e-9  # that keeps two loads apart


class CurveHull:
    """The largest convex function below a collective's time, both directions together, between two loads."""

    def __init__(self, cost: CollectiveCurve, least: float, most: float, of_some_device: float) -> None:
        """No traffic below ``least`` or above ``most`` is asked for; the peak is ``of_some_device`` or more."""
        most = max(most, least * (1 + _MARGIN), _MARGIN)
        corners = np.append(cost.knots, of_some_device)
        inside = sorted(set(corners[(corners > least) & (corners < most)].tolist()))
        knots = np.array([least, *inside, most])
        times = np.interp(np.maximum(knots, of_some_device), cost.knots, cost.both)
        self._all = knots, times
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

    def lines(self, most_ms: float, tolerance_ms: float) -> list[tuple[float, float]]:
        """Return lines of which one is below the time of each load that takes no longer than ``most_ms``."""
        knots, times = self._all
        last = max(min(int(np.searchsorted(times, most_ms, side="right")), len(times) - 1), 1)
        found: list[tuple[float, float]] = []
        # Less traffic that takes as long is above the first line, too.
        first = min(max(int(np.searchsorted(times, times[0], side="right")) - 1, 0), last - 1)
        while first < last:
            straight, bent = first + 1, last + 1
            while bent - straight > 1:
                end = (straight + bent) // 2
                over_ms, _ = _over(knots[first : end + 1], times[first : end + 1])
                straight, bent = (end, bent) if np.abs(over_ms).max() <= tolerance_ms else (straight, end)
            over_ms, rate = _over(knots[first : straight + 1], times[first : straight + 1])
            lowered_ms = float(min(over_ms.min(), 0.0))
            found.append((float(times[first] - rate * knots[first]) + lowered_ms, rate))
            first = straight
        return found


def _over(knots: FloatArray, times: FloatArray) -> tuple[FloatArray, float]:
    """Return milliseconds by which each point is above the line between the first and the last, and its rate."""
    rate = float((times[-1] - times[0]) / (knots[-1] - knots[0]))
    over_ms: FloatArray = times - times[0] - rate * (knots - knots[0])
    return over_ms, rate


def _is_above(knots: FloatArray, times: FloatArray, first: int, middle: int, last: int) -> bool:
    """Return whether the middle point is on or above the line between the others."""
    share = (knots[middle] - knots[first]) / (knots[last] - knots[first])
    return bool(times[middle] >= times[first] + share * (times[last] - times[first]))
