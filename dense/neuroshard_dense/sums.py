"""Sums of memory and time over units, of which no other beats one in both.

A merge keeps places in what it merged, and no options: those of the few choices that stay are looked up at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from neuroshard_dense.choice import PricedOption

MAX_POINTS = 200
"""Points of a merge that are kept; the work of a merge grows with them."""
_NO_NUMBERS = np.zeros((0, 0), dtype=np.int16)


class _Merge(NamedTuple):
    """Sums that are merged, and the place in them of every point."""

    first: "Sums"
    own: NDArray[np.int64] | None
    """None: the same place."""
    others: "Sequence[Sums]"
    """One that has places, or several of one point each, which are added to every one of the first."""
    places: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Sums:
    """Choices for some units that no other choice for them beats."""

    kept: NDArray[np.int64]
    """[points] ascending."""
    ms: NDArray[np.float64]
    """[points] descending."""
    peaks: NDArray[np.int64]
    """[2, points] the largest transient, and the largest recomputed activations, of the units."""
    numbers: NDArray[np.int16]
    """[points, units] options; without units where it is merged."""
    merged_from: "_Merge | None" = None
    """None: the numbers are its own."""

    @classmethod
    def empty(cls) -> Self:
        """Return the one choice for no unit."""
        return cls(
            np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((2, 1), dtype=np.int64), np.zeros((1, 0), dtype=np.int16)
        )

    @classmethod
    def of(cls, unit: Sequence[PricedOption], numbers: Sequence[int]) -> Self:
        """Return the choices of one unit among some of its options."""
        options = [unit[number] for number in numbers]
        kept = np.array([each.kept_bytes for each in options], dtype=np.int64)
        peaks = np.array([(each.transient_bytes, each.recomputed_bytes) for each in options], dtype=np.int64)
        ms = np.array([each.ms for each in options])
        order = unbeaten(kept, ms)
        return cls(kept[order], ms[order], peaks[order].T, np.array(numbers, dtype=np.int16)[order][:, None])

    def merged_all(self, others: Sequence["Sums"]) -> "Sums":
        """Return the choices for the units of all, merged one after the other."""
        merged, single = self, list[Sums]()
        for other in others:
            if len(other.kept) == 1:
                single.append(other)
            else:
                merged, single = merged.shifted(single).merged(other), []
        return merged.shifted(single)

    def shifted(self, others: Sequence["Sums"]) -> "Sums":
        """Return the choices for the units of all, where each of the others has one."""
        if not others:
            return self
        ms = self.ms
        for other in others:
            ms = ms + other.ms  # one after the other: sums round differently otherwise
        if not (ms[1:] < ms[:-1]).all():  # times that differ by little may round to the same
            merged = self
            for other in others:
                merged = merged.merged(other)
            return merged
        peaks = np.maximum(self.peaks, np.concatenate([other.peaks for other in others], axis=1).max(axis=1)[:, None])
        kept = self.kept + sum(int(other.kept[0]) for other in others)
        return Sums(kept, ms, peaks, _NO_NUMBERS, _Merge(self, None, others, None))

    def merged(self, other: "Sums") -> "Sums":
        """Return the choices for the units of both."""
        # Added in rows of one option, which is faster, and read in columns: of equals the first of the first list.
        kept = np.add.outer(other.kept, self.kept).ravel(order="F")
        ms = np.add.outer(other.ms, self.ms).ravel(order="F")
        order = _thinned(kept, unbeaten(kept, ms))
        own = order // len(other.kept)
        others = order - own * len(other.kept)
        peaks = np.maximum(self.peaks[:, own], other.peaks[:, others])
        return Sums(kept[order], ms[order], peaks, _NO_NUMBERS, _Merge(self, own, (other,), others))

    def chosen(self, places: NDArray[np.int64]) -> NDArray[np.int16]:
        """Return [places, units] the options of some points, the units in the order of the merges."""
        parts, sums = [], self
        while sums.merged_from is not None:
            sums, own, others, of_others = sums.merged_from
            of_each = np.zeros_like(places) if of_others is None else of_others[places]
            parts += [other.chosen(of_each) for other in reversed(others)]
            places = places if own is None else own[places]
        return np.concatenate([sums.numbers[places], *reversed(parts)], axis=1)

    def repeated(self, times: int) -> "Sums":
        """Return the choices for ``times`` units like this, by doubling."""
        if times == 1:
            return self
        half = self.repeated(times // 2)
        doubled = half.merged(half)
        return doubled.merged(self) if times % 2 else doubled


def unbeaten(kept: NDArray[np.int64], ms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of choices that no other beats, by what they keep; of equals the first."""
    order = kept.argsort(kind="stable")
    times = ms[order]
    falls = np.empty(len(order), dtype=np.bool_)
    falls[:1] = True
    np.less(times[1:], np.minimum.accumulate(times)[:-1], out=falls[1:])
    falling: NDArray[np.int64] = order[falls]
    sizes = kept[falling]
    is_larger = sizes[1:] != sizes[:-1]
    if is_larger.all():
        return falling
    fastest: NDArray[np.int64] = falling[np.append(is_larger, np.True_)]  # of equal sizes, as times fall
    return fastest


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
