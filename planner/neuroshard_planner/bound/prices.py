"""A lower bound by prices on the cost of choices of a family and a width for each unit.

The slopes of a convex cost at any mean device z are prices: a choice with mean device x costs at least
cost(z) + slopes (x - z), which is least where every unit takes its cheapest shards by price. Steps from z towards that
choice raise the bound (Frank-Wolfe).
"""

from collections.abc import Callable

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.bound.choices import Choices

MOST_ROUNDS = 24
LINE_STEPS = 7  # halvings of a step
CLOSE_ENOUGH = 0.002  # share by which the bound may be below the cost of the best mixture


Tangent = Callable[[FloatArray], tuple[float, FloatArray]]
"""Returns milliseconds at a mean device and the slopes there, of a convex function that is nowhere below."""


def price_bound(
    tangent: Tangent,
    choices: Choices,
    *,
    enough_ms: float = np.inf,
    begin: FloatArray | None = None,
    most_rounds: int = MOST_ROUNDS,
) -> tuple[float, FloatArray]:
    """Return milliseconds that no choice of one row for each unit costs less than, if all families are in use.

    The mean device whose prices say so is the second.

    Args:
        tangent: of the cost.
        choices: of every unit.
        enough_ms: a bound as high as that is not raised further.
        begin: the mean device of the first prices; if unset: all choices alike.
        most_rounds: prices that are tried.
    """
    rows, mean = choices.rows, choices.middle if begin is None else begin
    best_ms, best = 0.0, mean
    for _ in range(most_rounds):
        value_ms, slopes = tangent(mean)
        least, chosen = choices.least(weighted_sum(rows, slopes))
        bound_ms = value_ms + least - float(weighted_sum(slopes, mean))
        if bound_ms > best_ms:
            best_ms, best = bound_ms, mean
        if best_ms >= min(enough_ms, value_ms * (1 - CLOSE_ENOUGH)):
            break
        mean = _along(tangent, mean, rows[chosen].sum(axis=0))
    return best_ms, best


def _along(tangent: Tangent, begin: FloatArray, end: FloatArray) -> FloatArray:
    """Return the cheapest point on a line along which the cost falls at first."""
    direction = end - begin
    low, high = 0.0, 1.0
    if weighted_sum(tangent(end)[1], direction) <= 0:
        return end
    for _ in range(LINE_STEPS):
        middle = (low + high) / 2
        slope = weighted_sum(tangent(begin + middle * direction)[1], direction)
        low, high = (middle, high) if slope < 0 else (low, middle)
    return begin + (low + high) / 2 * direction
