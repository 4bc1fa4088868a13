"""A lower bound by prices on the cost of choices of a family and a width for each unit.

The slopes of a convex cost at any mean device z are prices: a choice with mean device x costs at least
cost(z) + slopes (x - z), which is least where every unit takes its cheapest shards by price. Steps from z towards that
choice raise the bound (Frank-Wolfe).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.units import BoolArray

MOST_ROUNDS = 24
LINE_STEPS = 7  # halvings of a step
CLOSE_ENOUGH = 0.002  # share by which the bound may be below the cost of the best mixture


Tangent = Callable[[FloatArray], tuple[float, FloatArray]]
"""Returns milliseconds at a mean device and the slopes there, of a convex function that is nowhere below."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What the units of a problem may be, unit by unit."""

    rows: FloatArray
    """[n, q + collectives] what a choice adds to the mean device."""
    unit: IndexArray
    """[n] ascending."""
    family: IndexArray
    """[n]"""
    share: FloatArray
    """[n] shards on the mean device."""
    columns: FloatArray
    """[n] of a shard by columns in the all-to-all; 0 of others."""
    spare_ms: FloatArray
    """[n] what a limit of cost leaves beyond the cost of a shard alone, in a plan with the least traffic."""

    @cached_property
    def starts(self) -> IndexArray:
        """[units] the first row of each."""
        return np.flatnonzero(np.diff(self.unit, prepend=-1))

    @cached_property
    def _counts(self) -> IndexArray:
        return np.diff(self.starts, append=len(self.unit))

    @cached_property
    def _of_family(self) -> list[tuple[IndexArray, IndexArray]]:
        """By family: its rows, and the position of the unit of each."""
        position = np.repeat(np.arange(len(self.starts)), self._counts)
        rows = [np.flatnonzero(self.family == family) for family in sorted(set(self.family.tolist()))]
        return [(own, position[own]) for own in rows]

    @property
    def middle(self) -> FloatArray:
        """The mean device where every unit is in all of its choices alike."""
        middle: FloatArray = (self.rows / np.repeat(self._counts, self._counts)[:, None]).sum(axis=0)
        return middle

    def at(self, usable: BoolArray) -> "Choices | None":
        """Return the choices for which ``usable`` [n] is true. None: some unit or family has none."""
        if usable.all():
            return self
        if np.add.reduceat(usable, self.starts, dtype=np.int64).min() == 0:
            return None
        if any(not usable[own].any() for own, _ in self._of_family):
            return None
        return Choices(**{each.name: getattr(self, each.name)[usable] for each in fields(self)})

    def least(self, prices: FloatArray) -> tuple[float, IndexArray]:
        """Return the least price of one choice [units] for each unit, by prices [n], if all families are in use.

        A family that no unit has by price takes the unit that loses least; several may take one, which costs no more.
        """
        chosen = first_least(prices, self.starts)
        least = prices[chosen]
        total = float(least.sum())
        if len(self._of_family) > 1:
            for own, of_unit in self._of_family:
                lost = prices[own] - least[of_unit]
                row = int(lost.argmin())
                if lost[row] > 0:
                    total += float(lost[row])
                    chosen[of_unit[row]] = own[row]
        return total, chosen

    def least_of(self, prices: FloatArray) -> FloatArray:
        """Return [k] the same totals for prices [n, k]."""
        least = np.minimum.reduceat(prices, self.starts, axis=0)
        total: FloatArray = least.sum(axis=0)
        if len(self._of_family) > 1:
            for own, of_unit in self._of_family:
                total += (prices[own] - least[of_unit]).min(axis=0)
        return total


def price_bound(
    tangent: Tangent,
    choices: Choices,
    *,
    enough_ms: float = np.inf,
    needed_ms: float = 0.0,
    begin: FloatArray | None = None,
    most_rounds: int = MOST_ROUNDS,
) -> tuple[float, FloatArray]:
    """Return milliseconds that no choice of one row for each unit costs less than, if all families are in use.

    The mean device whose prices say so is the second.

    Args:
        tangent: of the cost.
        choices: of every unit.
        enough_ms: a bound as high as that is not raised further.
        needed_ms: no bound is sought further where some cost is less.
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
        if best_ms >= min(enough_ms, value_ms * (1 - CLOSE_ENOUGH)) or value_ms < needed_ms:
            break
        mean = _along(tangent, mean, rows[chosen].sum(axis=0))
    return best_ms, best


def first_least(values: FloatArray, starts: IndexArray) -> IndexArray:
    """Return [groups] the row of the least of the values [n] of each group, the first of equals.

    ``starts`` [groups] are the first rows of the groups, which follow each other.
    """
    least = np.minimum.reduceat(values, starts)
    is_least = np.flatnonzero(values <= np.repeat(least, np.diff(starts, append=len(values))))
    rows: IndexArray = is_least[np.searchsorted(is_least, starts)]
    return rows


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
