"""The exact frontier of time over memory for units that choose one option each.

The memory of a choice is a sum over the units plus two maxima over the chosen options, of what collectives and of what
recomputing take for a moment; its time is a sum. Sums are merged unit by unit, and of all partial choices those that
another one beats in both are dropped. A maximum is not a sum: so one merge is made for each pair of limits of the two,
with the options that keep both.
The frontier is exact where there are at most MAX_LIMITS pairs of different values, and no merge has more than
MAX_POINTS points. Of more pairs, some are tried; of more points, the fastest of each of MAX_POINTS equal intervals of
memory stays.

Most units have the same options under most pairs of limits. So the pairs are halved again and again: a unit is merged
as soon as all pairs of a part permit it the same options, once for the whole part. A part is left out where the
Lagrangian bound of its choices (Everett 1963: the least of memory + price x time, unit by unit) shows for every step of
the frontier so far that nothing in it is below the step.
"""

import math
from collections.abc import Sequence

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from numpy.typing import NDArray

from neuroshard_dense.choice import Point, PricedOption
from neuroshard_dense.sums import Sums, unbeaten

MAX_LIMITS = 256
"""Pairs of limits that count; of more, those of values at even distances, the largest among them."""

_PRICES = 16
"""Prices of time for which a part of the limits is bounded: quantiles of those at which units change their option."""
_LEAST_BOUNDED = 4
"""Pairs of a part below which its bound takes longer than its search."""
_ROUNDING = 1e-9
"""Relative, of bounds in floating point: what is above by less is searched."""


def frontier(units: Sequence[Sequence[PricedOption]], repeats: Sequence[int]) -> tuple[Point, ...]:
    """Return the frontier by memory, the least first; times fall along it.

    Args:
        units: options of each unit.
        repeats: equal units that each stands for; ``chosen`` of a point has all of them, one after the other.
    """
    if not units or not all(units):
        return ()
    return LimitSearch(units, repeats).points()


class LimitSearch:
    """The merges of all pairs of limits. Sizes are in bytes; a part is (first, last) of both lists of limits."""

    def __init__(self, units: Sequence[Sequence[PricedOption]], repeats: Sequence[int]) -> None:
        self._units, self._repeats = units, np.array(repeats)
        shape = (len(units), max(map(len, units)))
        self._transient, self._recomputed = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self._kept, self._ms = np.zeros(shape), np.full(shape, np.inf)
        for row, unit in enumerate(units):
            for column, each in enumerate(unit):
                self._transient[row, column] = each.transient_bytes
                self._recomputed[row, column] = each.recomputed_bytes
                self._kept[row, column], self._ms[row, column] = each.kept_bytes, each.ms
        self._exists = np.isfinite(self._ms)
        values = np.unique(self._transient[self._exists]), np.unique(self._recomputed[self._exists])
        self._limits = limits(*values)
        self._floors = _floors(values[0], self._limits[0]), _floors(values[1], self._limits[1])
        self._most_peak = int(self._limits[0][-1] + self._limits[1][-1]) + 1
        self._prices = self._slopes()
        self._weighed = self._kept[:, :, None] + self._prices * self._ms[:, :, None]
        """[units, options, prices]"""
        self._memory, self._times = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._merges: list[tuple[Sums, Sequence[int]]] = []
        """With the order of their units."""
        self._found = np.zeros((2, 0), dtype=np.int64)
        """[merge and place in it, points]"""
        self._sums_of: dict[tuple[int, bytes], Sums] = {}

    def points(self) -> tuple[Point, ...]:
        """Search, and return the frontier."""
        transient, recomputed = self._limits
        self._search((0, len(transient) - 1, 0, len(recomputed) - 1), Sums.empty(), [], range(len(self._units)))
        return tuple(
            Point(memory_bytes=memory, ms=ms, chosen=tuple(numbers))
            for memory, ms, numbers in zip(
                self._memory.tolist(), self._times.tolist(), self._chosen().tolist(), strict=True
            )
        )

    def _search(
        self, part: tuple[int, int, int, int], merged: Sums, order: Sequence[int], waiting: Sequence[int]
    ) -> None:
        """Search a part of the limits.

        Args:
            part: first and last limit of transients, first and last limit of recomputed activations.
            merged: sums of the units whose options are the same in a larger part.
            order: those units.
            waiting: the others.
        """
        first_transient, last_transient, first_recomputed, last_recomputed = part
        places = np.array(waiting, dtype=np.int64)
        loosest = self._allowed(places, last_transient, last_recomputed)
        if not loosest.any(axis=1).all():
            return
        # Options that a pair permits, a pair of higher limits permits too: equal numbers are equal options.
        tightest = self._allowed(places, first_transient, first_recomputed)
        is_same = tightest.sum(axis=1) == loosest.sum(axis=1)
        order, further = list(order), places[~is_same].tolist()
        same = places[is_same].tolist()
        merged = merged.merged_all([self._sums(*each) for each in zip(same, loosest[is_same], strict=True)])
        order += same
        if not further:
            self._add(merged, order)
        elif _num_pairs(part) < _LEAST_BOUNDED or self._may_improve(part, merged, places[~is_same], loosest[~is_same]):
            for smaller in _halves(part):
                self._search(smaller, merged, order, further)

    def _sums(self, place: int, allowed: NDArray[np.bool_]) -> Sums:
        """Return the choices of a unit among the options that are permitted, for all of its modules."""
        key = place, allowed.tobytes()
        if key not in self._sums_of:
            own = Sums.of(self._units[place], np.flatnonzero(allowed).tolist())
            self._sums_of[key] = own.repeated(int(self._repeats[place]))
        return self._sums_of[key]

    def _allowed(self, places: NDArray[np.int64], transient: int, recomputed: int) -> NDArray[np.bool_]:
        """Return [units, options] whether a pair of limits permits an option."""
        allowed: NDArray[np.bool_] = (
            self._exists[places]
            & (self._transient[places] <= self._limits[0][transient])
            & (self._recomputed[places] <= self._limits[1][recomputed])
        )
        return allowed

    def _may_improve(
        self, part: tuple[int, int, int, int], merged: Sums, places: NDArray[np.int64], allowed: NDArray[np.bool_]
    ) -> bool:
        """Return whether a choice of the part may be below the frontier so far.

        A choice that keeps lower limits than the part's is found in another part.
        """
        if not len(self._memory):
            return True
        weighed = weighted_sum(
            np.where(allowed[:, :, None], self._weighed[places], np.inf).min(axis=1).T, self._repeats[places]
        )
        least = (merged.kept + self._prices[:, None] * merged.ms).min(axis=1) + weighed
        most_memory = (
            merged.kept.max() + (self._kept[places].max(axis=1) * self._repeats[places]).sum() + self._most_peak
        )
        most_ms = (
            merged.ms.max()
            + weighted_sum(np.where(allowed, self._ms[places], 0.0).max(axis=1), self._repeats[places])
            + 1.0
        )
        least += self._floors[0][part[0]] + self._floors[1][part[2]]
        # Below a step: less memory than a point has, and less time than the point before it. Ends are open.
        memory = np.append(self._memory, most_memory).astype(float)
        times = np.append(most_ms, self._times)
        corners = memory[:, None] + self._prices * times[:, None]
        rounding = _ROUNDING * (np.abs(least) + np.abs(corners))
        return bool((corners + rounding > least).all(axis=1).any())

    def _slopes(self) -> NDArray[np.float64]:
        """Return prices of time in bytes per ms: memory that options of units save for the time they add."""
        found = []
        for unit in self._units:
            for one in unit:
                found += [
                    (one.kept_bytes - other.kept_bytes) / (other.ms - one.ms)
                    for other in unit
                    if other.ms > one.ms and other.kept_bytes < one.kept_bytes
                ]
        if not found:
            return np.ones(1)
        prices: NDArray[np.float64] = np.quantile(np.array(found), np.linspace(0, 1, _PRICES))
        return prices

    def _add(self, merged: Sums, order: Sequence[int]) -> None:
        """Add the choices of a merge, with the transients that they have, to the frontier."""
        memory = np.concatenate([self._memory, merged.kept + merged.peaks[0] + merged.peaks[1]])
        times = np.concatenate([self._times, merged.ms])
        places = np.arange(len(merged.kept))
        found = np.concatenate([self._found, [np.full_like(places, len(self._merges)), places]], axis=1)
        kept = unbeaten(memory, times)
        self._memory, self._times, self._found = memory[kept], times[kept], found[:, kept]
        self._merges.append((merged, order))

    def _chosen(self) -> NDArray[np.int16]:
        """Return [points, modules] the options of the frontier."""
        chosen = np.zeros((len(self._memory), int(self._repeats.sum())), dtype=np.int16)
        for index in np.unique(self._found[0]).tolist():
            merged, order = self._merges[index]
            points = np.flatnonzero(self._found[0] == index)
            columns = np.repeat(np.array(order, dtype=np.int64), self._repeats[list(order)])
            chosen[points] = merged.chosen(self._found[1, points])[:, np.argsort(columns, kind="stable")]
        return chosen


def _num_pairs(part: tuple[int, int, int, int]) -> int:
    a, b, c, d = part
    return (b - a + 1) * (d - c + 1)


def _halves(part: tuple[int, int, int, int]) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Return the halves of a part across its longer side, that of the higher limits first."""
    a, b, c, d = part
    if b - a >= d - c:
        middle = (a + b) // 2
        return (middle + 1, b, c, d), (a, middle, c, d)
    middle = (c + d) // 2
    return (a, b, middle + 1, d), (a, b, c, middle)


def limits(transient: NDArray[np.int64], recomputed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the limits of transients and of recomputed activations, of values that options have, ascending."""
    if len(transient) * len(recomputed) > MAX_LIMITS:
        # The shorter list stays whole up to a square's side, the longer one takes what that leaves.
        shorter = min(len(transient), len(recomputed), math.isqrt(MAX_LIMITS))
        longer = MAX_LIMITS // shorter
        is_first_longer = len(transient) > len(recomputed)
        transient = _spread(transient, longer if is_first_longer else shorter)
        recomputed = _spread(recomputed, shorter if is_first_longer else longer)
    return transient, recomputed


def _spread(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return at most ``most`` of the values, at even distances, both ends among them."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    spread: NDArray[np.int64] = values[places]
    return spread


def _floors(values: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the least value above the limit before each: what has less keeps the limit before."""
    return np.concatenate([values[:1], values[np.searchsorted(values, limits[:-1], side="right")]])
