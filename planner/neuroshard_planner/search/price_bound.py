"""A lower bound by prices on the cost of choices of a family and a width for each unit (Frank-Wolfe).

The slopes of a convex cost at any mean device z are prices: a choice with mean device x costs at least
cost(z) + slopes (x - z), which is least where every unit takes its cheapest shards by price.
"""

from typing import NamedTuple

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.relaxed_cost import RelaxedCost

MOST_ROUNDS = 24
LINE_STEPS = 7  # halvings of a step
CLOSE_ENOUGH = 0.002  # share by which the bound may be below the cost of the best mixture


class Choices(NamedTuple):
    """What the units of a problem may be, unit by unit."""

    rows: FloatArray
    """[n, q + collectives] what a choice adds to the mean device."""
    unit: IndexArray
    """[n] ascending."""
    family: IndexArray
    """[n]"""

    def least(self, prices: FloatArray) -> tuple[float, IndexArray]:
        """Return the least price of one choice [units] for each unit, by prices [n], if all families are in use.

        A family that no unit has by price takes the unit that loses least; several may take one, which costs no more.
        """
        starts = np.flatnonzero(np.diff(self.unit, prepend=-1))
        chosen = first_least(prices, starts)
        least = prices[chosen]
        total, missing = float(least.sum()), set(self.family.tolist()) - set(self.family[chosen].tolist())
        for family in sorted(missing):
            own = np.flatnonzero(self.family == family)
            of_unit = np.searchsorted(self.unit[starts], self.unit[own])
            lost = prices[own] - least[of_unit]
            row = int(lost.argmin())
            total += float(lost[row])
            chosen[of_unit[row]] = own[row]
        return total, chosen


def price_bound(relaxed: RelaxedCost, choices: Choices, *, enough_ms: float = np.inf) -> float:
    """Return milliseconds that no choice of one row for each unit costs less than, if all families are in use.

    Args:
        relaxed: the cost of a mean device.
        choices: of every unit.
        enough_ms: a bound as high as that is not raised further, and none is sought where the cost is less.
    """
    rows, counts = choices.rows, np.bincount(choices.unit)
    mean = (rows / counts[choices.unit][:, None]).sum(axis=0)
    best_ms = 0.0
    for _ in range(MOST_ROUNDS):
        value_ms, slopes = relaxed.tangent(mean)
        least, chosen = choices.least(weighted_sum(rows, slopes))
        best_ms = max(best_ms, value_ms + least - float(weighted_sum(slopes, mean)))
        if best_ms >= min(enough_ms, value_ms * (1 - CLOSE_ENOUGH)) or value_ms < enough_ms < np.inf:
            break
        mean = _along(relaxed, mean, rows[chosen].sum(axis=0))
    return best_ms


def first_least(values: FloatArray, starts: IndexArray) -> IndexArray:
    """Return [groups] the row of the least of the values [n] of each group, the first of equals.

    ``starts`` [groups] are the first rows of the groups, which follow each other.
    """
    least = np.minimum.reduceat(values, starts)
    is_least = np.flatnonzero(values <= np.repeat(least, np.diff(starts, append=len(values))))
    rows: IndexArray = is_least[np.searchsorted(is_least, starts)]
    return rows


def _along(relaxed: RelaxedCost, begin: FloatArray, end: FloatArray) -> FloatArray:
    """Return the cheapest point on a line along which the cost falls at first."""
    direction = end - begin
    low, high = 0.0, 1.0
    if weighted_sum(relaxed.tangent(end)[1], direction) <= 0:
        return end
    for _ in range(LINE_STEPS):
        middle = (low + high) / 2
        slope = weighted_sum(relaxed.tangent(begin + middle * direction)[1], direction)
        low, high = (middle, high) if slope < 0 else (low, middle)
    return begin + (low + high) / 2 * direction
