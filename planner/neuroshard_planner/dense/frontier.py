"""The exact frontier of time over memory for units that choose one option each.

The memory of a choice is a sum over the units plus two maxima over the chosen options, of what collectives and of what
recomputing take for a moment; its time is a sum. Sums are merged unit by unit, and of all partial choices those that
another one beats in both are dropped. A maximum is no sum: so one merge is made for each pair of limits of the two,
with the options that keep both.

The frontier is exact where there are at most MAX_LIMITS pairs of different values, and no merge has more than
MAX_POINTS points. Of more pairs, some are tried; of more points, the fastest of each of MAX_POINTS equal intervals of
memory stays.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 200
"""Points of a merge that are kept; the work of a merge grows with them."""
MAX_LIMITS = 256
"""Pairs of limits that are tried; of more, those of values at even distances, the largest among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One option of a unit, as the frontier sees it."""

    kept_bytes: int
    """Memory that adds up over units; negative where it saves some of a constant."""
    transient_bytes: int
    """Memory of collectives, of which the largest of all units counts."""
    recomputed_bytes: int
    """Memory of recomputed activations, of which the largest of all units counts; it adds to that of collectives."""
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A choice for every unit that no other one beats in memory and time."""

    memory_bytes: int
    """Sum of what is kept, the largest transient of collectives, and the largest of recomputed activations."""
    ms: float
    chosen: tuple[int, ...]
    """Number of the option of each unit."""


def frontier(units: Sequence[Sequence[Choice]], repeats: Sequence[int]) -> tuple[Point, ...]:
    """Return the frontier by memory, the least first; times fall along it.

    Args:
        units: options of each unit.
        repeats: equal units that each stands for; ``chosen`` of a point has all of them, one after the other.
    """
    found: list[Point] = []
    for transient, recomputed in _limits(units):
        allowed = [
            [
                index
                for index, each in enumerate(unit)
                if each.transient_bytes <= transient and each.recomputed_bytes <= recomputed
            ]
            for unit in units
        ]
        if not all(allowed):
            continue
        merged = _Sums.empty()
        for unit, numbers, times in zip(units, allowed, repeats, strict=True):
            merged = merged.merged(_Sums.of(unit, numbers).repeated(times))
        found += merged.points(units, repeats)
    return best(found)


def best(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return those that no other beats in memory and time, by memory; of equals the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.memory_bytes, each.ms)):
        if not kept or point.ms < kept[-1].ms:
            kept.append(point)
    return tuple(kept)


def _limits(units: Sequence[Sequence[Choice]]) -> Iterable[tuple[int, int]]:
    transient = sorted({option.transient_bytes for unit in units for option in unit})
    recomputed = sorted({option.recomputed_bytes for unit in units for option in unit})
    if len(transient) * len(recomputed) > MAX_LIMITS:
        # The shorter list stays whole up to a square's side, the longer one takes what that leaves.
        shorter = min(len(transient), len(recomputed), math.isqrt(MAX_LIMITS))
        longer = MAX_LIMITS // shorter
        is_first_longer = len(transient) > len(recomputed)
        transient = _spread(transient, longer if is_first_longer else shorter)
        recomputed = _spread(recomputed, shorter if is_first_longer else longer)
    return product(transient, recomputed)


def _spread(values: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the values, at even distances, both ends among them."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[place] for place in places]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Choices for some units that no other choice for them beats."""

    kept: NDArray[np.int64]
    """[points] ascending."""
    ms: NDArray[np.float64]
    """[points] descending."""
    chosen: NDArray[np.int16]
    """[points, units]"""

    @classmethod
    def empty(cls) -> Self:
        """Return the one choice for no unit."""
        return cls(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 0), dtype=np.int16))

    @classmethod
    def of(cls, unit: Sequence[Choice], numbers: Sequence[int]) -> Self:
        """Return the choices of one unit among some of its options."""
        kept = np.array([unit[number].kept_bytes for number in numbers], dtype=np.int64)
        ms = np.array([unit[number].ms for number in numbers])
        order = _unbeaten(kept, ms)
        return cls(kept[order], ms[order], np.array(numbers, dtype=np.int16)[order][:, None])

    def merged(self, other: "_Sums") -> "_Sums":
        """Return the choices for the units of both."""
        kept = (self.kept[:, None] + other.kept).ravel()
        ms = (self.ms[:, None] + other.ms).ravel()
        order = _thinned(kept, _unbeaten(kept, ms))
        own, others = np.divmod(order, len(other.kept))
        return _Sums(kept[order], ms[order], np.concatenate([self.chosen[own], other.chosen[others]], axis=1))

    def repeated(self, times: int) -> "_Sums":
        """Return the choices for ``times`` units like this, by doubling."""
        if times == 1:
            return self
        half = self.repeated(times // 2)
        doubled = half.merged(half)
        return doubled.merged(self) if times % 2 else doubled

    def points(self, units: Sequence[Sequence[Choice]], repeats: Sequence[int]) -> list[Point]:
        """Return the choices with the transients that they have."""
        expanded = [unit for unit, times in zip(units, repeats, strict=True) for _ in range(times)]
        return [
            Point(
                memory_bytes=int(kept)
                + _peak_bytes([unit[number] for unit, number in zip(expanded, numbers, strict=True)]),
                ms=float(ms),
                chosen=tuple(numbers),
            )
            for kept, ms, numbers in zip(self.kept, self.ms, self.chosen.tolist(), strict=True)
        ]


def _peak_bytes(chosen: Sequence[Choice]) -> int:
    """Return what is needed for a moment: collectives of one unit next to recomputed activations of another."""
    return max((each.transient_bytes for each in chosen), default=0) + max(
        (each.recomputed_bytes for each in chosen), default=0
    )


def _unbeaten(kept: NDArray[np.int64], ms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of choices that no other beats, by what they keep; of equals the first."""
    order = np.lexsort((ms, kept))
    least = np.minimum.accumulate(ms[order])
    falls = np.concatenate([[True], ms[order][1:] < least[:-1]])
    found: NDArray[np.int64] = order[falls]
    return found


def _thinned(kept: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at most MAX_POINTS of unbeaten choices: the fastest of each interval of memory, and the smallest."""
    if len(order) <= MAX_POINTS:
        return order
    least, most = int(kept[order[0]]), int(kept[order[-1]])
    interval = ((kept[order] - least) * (MAX_POINTS - 1)) // (most - least + 1)
    is_last = np.concatenate([interval[1:] != interval[:-1], [True]])  # times fall with memory
    is_last[0] = True
    found: NDArray[np.int64] = order[is_last]
    return found
