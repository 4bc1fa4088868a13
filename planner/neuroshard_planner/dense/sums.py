"""Sums of memory and time over units, of which no other beats one in both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from neuroshard_planner.dense.choice import Choice

MAX_POINTS = 200
"""Points of a merge that are kept; the work of a merge grows with them."""


@dataclass(frozen=True, slots=True)
class Sums:
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
        order = unbeaten(kept, ms)
        return cls(kept[order], ms[order], np.array(numbers, dtype=np.int16)[order][:, None])

    def merged(self, other: "Sums") -> "Sums":
        """Return the choices for the units of both."""
        kept = (self.kept[:, None] + other.kept).ravel()
        ms = (self.ms[:, None] + other.ms).ravel()
        order = _thinned(kept, unbeaten(kept, ms))
        own, others = np.divmod(order, len(other.kept))
        return Sums(kept[order], ms[order], np.concatenate([self.chosen[own], other.chosen[others]], axis=1))

    def repeated(self, times: int) -> "Sums":
        """Return the choices for ``times`` units like this, by doubling."""
        if times == 1:
            return self
        half = self.repeated(times // 2)
        doubled = half.merged(half)
        return doubled.merged(self) if times % 2 else doubled


def unbeaten(kept: NDArray[np.int64], ms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of choices that no other beats, by what they keep; of equals the first."""
    order = np.argsort(kept, kind="stable")
    times = ms[order]
    falls = np.ones(len(order), dtype=np.bool_)
    falls[1:] = times[1:] < np.minimum.accumulate(times)[:-1]
    falling: NDArray[np.int64] = order[falls]
    sizes = kept[falling]
    is_last = np.ones(len(falling), dtype=np.bool_)  # of equal sizes the fastest, as times fall
    is_last[:-1] = sizes[1:] != sizes[:-1]
    return falling[is_last]


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
