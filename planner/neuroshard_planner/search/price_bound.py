"""A lower bound by prices on choices of one family for each unit (Frank-Wolfe on the convex hulls of the choices).

The slopes of a convex cost at any mean device z are prices: a choice with mean device x costs at least
cost(z) + slopes (x - z), and that is least where every unit takes its cheapest family by price. So each z gives a
bound; steps from z towards the cheapest choice raise it to the least cost of mixtures of choices, little below that of
the best choice.
"""

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.relaxed_cost import RelaxedCost

MOST_ROUNDS = 24
LINE_STEPS = 7  # halvings of a step
CLOSE_ENOUGH = 0.002  # share by which the bound may be below the cost of the best mixture


def price_bound(relaxed: RelaxedCost, rows: FloatArray, starts: IndexArray, *, enough_ms: float = np.inf) -> float:
    """Return milliseconds that no choice of one row for each unit costs less than.

    Args:
        relaxed: the cost of a mean device.
        rows: [n, r + collectives] what a choice adds to the mean device, unit by unit.
        starts: [units] the first row of each unit.
        enough_ms: a bound as high as that is not raised further, and none is sought where the cost is less.
    """
    counts = np.diff(starts, append=len(rows))
    mean = (rows / np.repeat(counts, counts)[:, None]).sum(axis=0)
    best_ms = 0.0
    for _ in range(MOST_ROUNDS):
        value_ms, slopes = relaxed.tangent(mean)
        prices = rows @ slopes
        chosen = first_least(prices, starts)
        best_ms = max(best_ms, value_ms + float(prices[chosen].sum()) - float(slopes @ mean))
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
    if relaxed.tangent(end)[1] @ direction <= 0:
        return end
    for _ in range(LINE_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if relaxed.tangent(begin + middle * direction)[1] @ direction < 0 else (low, middle)
    return begin + (low + high) / 2 * direction
