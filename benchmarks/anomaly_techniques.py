"""Techniques for losses and series of production systems, which see rises where their scores do not say both ways."""

import math
from collections import deque
from statistics import median
from typing import ClassVar

import numpy as np
from neuroshard_trainer.drift.rise import LARGER, RECORD, RiseDetector, usual_level

from benchmarks.drift_series import FloatArray
from benchmarks.drift_techniques import NOT_FOUND, Technique


class LevelDeviations(Technique):
    """Deviations of the newest values from the median of those before, by the trainer's formula."""

    window: ClassVar[int] = 20
    held: ClassVar[int] = 1

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._usual = deque(first.tolist(), maxlen=self.window)
        self._last: deque[float] = deque(maxlen=self.held)

    def score(self, value: float) -> float:
        """Return the least deviations of as many values as a finding takes."""
        middle, deviation = usual_level(list(self._usual))
        self._usual.append(value)
        self._last.append((value - middle) / deviation if deviation else 0.0)
        return min(self._last) if len(self._last) == self.held else NOT_FOUND


def level_deviations(window: int, held: int) -> type[Technique]:
    """Return the technique with a window and a number of values."""
    name = f"deviations from the last {window}, {held} in a row"
    return type(f"Level{window}x{held}", (LevelDeviations,), {"name": name, "window": window, "held": held})


class Differences(Technique):
    """Differences from the value before, in standard deviations of all of them so far, bursts included."""

    name = "difference from the value before, of all so far"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._last = float(first[0])
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        for value in first[1:].tolist():
            self.score(value)

    def score(self, value: float) -> float:
        """Return the deviations of the difference from their mean."""
        difference = abs(value - self._last)
        self._last = value
        self._count, self._sum = self._count + 1, self._sum + difference
        self._squares += difference**2
        mean = self._sum / self._count
        variance = self._squares / self._count - mean**2
        return (difference - mean) / variance**0.5 if variance > 0 else NOT_FOUND


class LargestBefore(Technique):
    """Differences over the third largest of those before, of each 20 values one."""

    name = "difference, over the third largest before"
    block: ClassVar[int] = 20
    kept: ClassVar[int] = 3

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._lag = self.lag(first)
        self._values: deque[float] = deque(first[: self._lag].tolist(), maxlen=self._lag)
        self._largest: list[float] = []
        self._block: list[float] = []
        for value in first[self._lag :].tolist():
            self.score(value)

    def lag(self, first: FloatArray) -> int:
        """Return the number of values between the two of a difference."""
        del first
        return 1

    def score(self, value: float) -> float:
        """Return the ratio."""
        difference = value - float(self._values[0])
        self._values.append(value)
        least = self._largest[-1] if len(self._largest) == self.kept else 0.0
        self._block.append(difference)
        if len(self._block) == self.block:
            self._largest = sorted([*self._largest, max(self._block)], reverse=True)[: self.kept]
            self._block = []
        return difference / least if least > 0 else NOT_FOUND


class SeasonalLargestBefore(LargestBefore):
    """The same of differences from the period before, of which the first values have the highest autocorrelation."""

    name = "difference from the period before, over the third largest before"
    shortest: ClassVar[int] = 12
    longest: ClassVar[int] = 400

    def lag(self, first: FloatArray) -> int:
        """Return the period."""
        centered = first - first.mean()
        correlations = np.correlate(centered, centered, "full")[len(first) - 1 :]
        return self.shortest + int(np.argmax(correlations[self.shortest : min(len(first) // 2, self.longest)]))


class DifferenceTail(Technique):
    """Peaks over threshold (SPOT, Siffer et al. 2017): a generalized Pareto tail above the 98 % of the first ones."""

    name = "difference, by its extreme values (SPOT)"
    usual_share: ClassVar[float] = 0.98

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._values: deque[float] = deque(first[:1].tolist(), maxlen=20)
        known = np.array([self.part(value) for value in first[1:].tolist()])
        self._above = float(np.quantile(known, self.usual_share))
        excesses = known[known > self._above] - self._above
        self._seen, self._count = len(known), len(excesses)
        self._sum, self._squares = float(excesses.sum()), float((excesses**2).sum())

    def part(self, value: float) -> float:
        """Take the next value, and return the part of it whose tail is watched."""
        last = self._values[-1]
        self._values.append(value)
        return abs(value - last)

    def score(self, value: float) -> float:
        """Return the negative logarithm of the probability of a part that large."""
        excess = self.part(value) - self._above
        found = -math.log10(max(1e-300, self._probability(excess))) if excess > 0 else 0.0
        self._seen += 1
        if excess > 0:
            self._count, self._sum, self._squares = self._count + 1, self._sum + excess, self._squares + excess**2
        return found

    def _probability(self, excess: float) -> float:
        if self._count < 4 or not self._sum:  # noqa: PLR2004 - two moments of fewer say nothing
            return 1.0
        mean = self._sum / self._count
        squared = mean**2 / max(self._squares / self._count - mean**2, 1e-12 * mean**2)
        shape, scale = (1 - squared) / 2, mean * (1 + squared) / 2
        inside = max(0.0, 1 + shape * excess / scale)
        tail: float = math.exp(-excess / scale) if abs(shape) < 1e-6 else inside ** (-1 / shape) if inside else 0.0  # noqa: PLR2004
        return self._count / self._seen * tail


class LevelTail(DifferenceTail):
    """The same of the differences from a level (DSPOT)."""

    name = "difference from the last 20, by its extreme values (DSPOT)"

    def part(self, value: float) -> float:
        """Return the difference from the median."""
        middle = median(self._values)
        self._values.append(value)
        return value - middle


class ShippedRise(Technique):
    """The trainer's rise detector, as it is."""

    name = "**shipped: rise**"
    threshold = 0.5
    larger: ClassVar[float] = LARGER
    record: ClassVar[float] = RECORD

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._detector = RiseDetector(larger=self.larger, record=self.record)
        for value in first.tolist():
            self._detector.add(value)

    def score(self, value: float) -> float:
        """Return 1 while values are above."""
        return float(self._detector.add(value) is not None)


def rise_times(larger: float, record: float = math.inf) -> type[ShippedRise]:
    """Return the trainer's detector with other factors of the third largest rise before, and of the largest one."""
    name = f"rise, {larger:g} times the third largest before" if larger else "rise, whatever was before"
    return type(f"Rise{larger:g}x{record:g}", (ShippedRise,), {"name": name, "larger": larger, "record": record})
