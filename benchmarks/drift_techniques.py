"""Techniques that find changes in a series, one score per step; an alarm is a score at or above a threshold.

Those of libraries need river 0.26.1, ruptures 1.1.10, and stumpy 1.14.1, which no part of the product uses.
"""

# ruff: noqa: PLC0415 - each technique imports the library that has it

import math
from abc import ABC, abstractmethod
from collections import deque
from statistics import median
from typing import Any, ClassVar, Final

import numpy as np
from neuroshard_trainer.drift.detector import (
    CLIP_DEVIATIONS,
    HELD_STEPS,
    LEAST_ALLOWANCE,
    MIN_SHIFT,
    REFERENCE_STEPS,
    WARM_UP_STEPS,
    ShiftDetector,
    reference_of,
)
from neuroshard_trainer.drift.sliding_median import SlidingMedian

from benchmarks.drift_series import FloatArray

PREPARED: Final = WARM_UP_STEPS + REFERENCE_STEPS
"""Steps before the first score: a warm-up, and the reference."""
NOT_FOUND: Final = -math.inf
DELTAS: Final = tuple(10.0**-power for power in (3, 6, 12, 18, 24, 36, 48, 72, 96, 144, 192, 288))
LIMITS: Final = tuple(10.0 * 2**power for power in range(12))
"""Levels of techniques with their threshold inside, strictest last."""


class Technique(ABC):
    """Scores the steps after the reference, one by one."""

    name: ClassVar[str]
    library: ClassVar[str] = "own"
    is_slow: ClassVar[bool] = False
    """Whether it gets a part of the held-out series."""
    threshold: ClassVar[float | None] = None
    """If unset: the lowest that keeps the rate of false alarms on the development series."""

    def __init__(self, first: FloatArray) -> None:
        """Take the first ``PREPARED`` values."""
        learned = first[WARM_UP_STEPS:].tolist()
        self.reference = reference_of(learned)

    @abstractmethod
    def score(self, value: float) -> float:
        """Take the next value, and return how much of a change there is."""

    def clipped(self, value: float) -> float:
        """Return a value in deviations from the reference, clipped."""
        z = (value - self.reference.median) / self.reference.deviation
        return max(-CLIP_DEVIATIONS, min(CLIP_DEVIATIONS, z))


class Shipped(Technique):
    """The trainer's detector, as it is."""

    name = "**shipped: fast or held**"
    threshold = 0.5

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._detector = ShiftDetector()
        self._step = 0
        for value in first:
            self.score(float(value))

    def score(self, value: float) -> float:
        """Return 1 at an alarm."""
        self._step += 1
        return float(self._detector.add(self._step, value) is not None)


class RatioOfMedians(Technique):
    """Median of the last 100 steps over that of the reference."""

    name = "ratio of medians 100/200"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._recent = SlidingMedian(100)

    def score(self, value: float) -> float:
        """Return the ratio."""
        self._recent.add(value)
        return self._recent.median / self.reference.median if self._recent.is_full else NOT_FOUND


class HeldRatio(RatioOfMedians):
    """Least of the ratios of as many steps as the detector wants a change to last."""

    name = "least ratio of 150 steps"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._least: deque[tuple[int, float]] = deque()
        self._step = 0

    def score(self, value: float) -> float:
        """Return the least ratio, once there are as many."""
        ratio = super().score(value)
        self._step += 1
        while self._least and self._least[-1][1] >= ratio:
            self._least.pop()
        self._least.append((self._step, ratio))
        if self._least[0][0] <= self._step - HELD_STEPS:
            self._least.popleft()
        return self._least[0][1] if self._step >= HELD_STEPS else NOT_FOUND


class FixedHeldRatio(HeldRatio):
    """The held rule with the detector's threshold."""

    name = "the same, 5 % fixed: the held rule"
    threshold = 1.0 + MIN_SHIFT


class Cusum(Technique):
    """Page's cumulative sum of clipped deviations."""

    name = "CUSUM of clipped deviations, k 0.5"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._total = 0.0

    def score(self, value: float) -> float:
        """Return the sum."""
        self._total = max(0.0, self._total + self.clipped(value) - LEAST_ALLOWANCE)
        return self._total


class Ewma(Technique):
    """Exponentially weighted mean of clipped deviations."""

    name = "EWMA 0.02 of clipped deviations"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._mean = 0.0

    def score(self, value: float) -> float:
        """Return the mean."""
        self._mean += 0.02 * (self.clipped(value) - self._mean)
        return self._mean


class Holt(Technique):
    """Mean residual of 5 steps of Holt's linear forecast."""

    name = "residual of Holt's forecast"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._level, self._trend = 0.0, 0.0
        self._residuals: deque[float] = deque(maxlen=5)

    def score(self, value: float) -> float:
        """Return the median residual in deviations."""
        z = self.clipped(value)
        forecast = self._level + self._trend
        self._residuals.append(z - forecast)
        level = forecast + 0.05 * (z - forecast)
        self._trend += 0.01 * (level - self._level - self._trend)
        self._level = level
        return median(self._residuals)


class PointsBeyond(Technique):
    """Number of the last 20 steps beyond 3 deviations."""

    name = "points beyond 3 deviations, of 20"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._beyond: deque[bool] = deque(maxlen=20)

    def score(self, value: float) -> float:
        """Return the number."""
        self._beyond.append(self.clipped(value) > 3)  # noqa: PLR2004 - as in the name
        return float(sum(self._beyond))


class BayesianChangePoint(Technique):
    """Adams and MacKay (2007): run lengths of normal noise of known deviation, of at most 300 steps."""

    name = "Bayesian online change point"
    is_slow = True

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._probability = np.ones(1)
        self._mean = np.zeros(1)
        self._precision = np.full(1, 1 / 25)

    def score(self, value: float) -> float:
        """Return the log odds of a change in the last 10 steps."""
        z = self.clipped(value)
        variance = 1 + 1 / self._precision
        likelihood = np.exp(-((z - self._mean) ** 2) / (2 * variance)) / np.sqrt(variance)
        grown = self._probability * likelihood
        self._probability = np.concatenate(([grown.sum() / 1000], grown * (1 - 1 / 1000)))[:300]
        self._probability /= max(self._probability.sum(), 1e-300)
        precision = self._precision + 1
        self._mean = np.concatenate(([0.0], (self._mean * self._precision + z) / precision))[:300]
        self._precision = np.concatenate(([1 / 25], precision))[:300]
        if len(self._probability) < 50:  # noqa: PLR2004 - the first run has no run before it
            return NOT_FOUND
        recent = float(self._probability[:10].sum())
        return math.log(max(recent, 1e-300) / max(1 - recent, 1e-300))


class MannWhitney(Technique):
    """Mann-Whitney's test of 50 steps against the reference's 200, each 10 steps."""

    name = "Mann-Whitney 50 against 200, each 10"
    library = "scipy"
    is_slow = True

    def __init__(self, first: FloatArray) -> None:
        from scipy.stats import mannwhitneyu

        super().__init__(first)
        self._test = mannwhitneyu
        self._learned = first[WARM_UP_STEPS:]
        self._recent: deque[float] = deque(maxlen=50)
        self._count = 0

    def score(self, value: float) -> float:
        """Return the negative logarithm of the p-value."""
        self._recent.append(value)
        self._count += 1
        if self._count % 10 or len(self._recent) < 50:  # noqa: PLR2004 - as in the name
            return NOT_FOUND
        found = self._test(np.array(self._recent), self._learned, alternative="greater", method="asymptotic")
        return -math.log10(max(float(found.pvalue), 1e-300))


class Levels(Technique):
    """A detector of river with its threshold inside: one for each level, scored by the strictest that fires."""

    library = "river"

    def __init__(self, first: FloatArray) -> None:
        super().__init__(first)
        self._levels = self.levels()
        for value in first[WARM_UP_STEPS:]:
            self.score(float(value))

    @abstractmethod
    def levels(self) -> list[Any]:
        """Return the detectors, strictest last."""

    def score(self, value: float) -> float:
        """Return the number of the strictest level that fires."""
        found = NOT_FOUND
        for number, detector in enumerate(self._levels):
            detector.update(self.clipped(value))
            if detector.drift_detected:
                found = float(number)
        return found


class Adwin(Levels):
    """Adaptive windowing."""

    name = "ADWIN, 12 deltas from 1e-3 to 1e-288"

    def levels(self) -> list[Any]:
        """Return the detectors."""
        from river import drift  # type: ignore[import-not-found,unused-ignore]

        return [drift.ADWIN(delta=delta) for delta in DELTAS]


class PageHinkley(Levels):
    """Page-Hinkley's test, upwards."""

    name = "Page-Hinkley, 12 thresholds from 10 to 20,480"

    def levels(self) -> list[Any]:
        """Return the detectors."""
        from river import drift  # type: ignore[import-not-found,unused-ignore]

        return [drift.PageHinkley(delta=LEAST_ALLOWANCE, threshold=limit, mode="up") for limit in LIMITS]


class Kswin(Technique):
    """Kolmogorov-Smirnov's test of the last 30 steps against a sample of the last 100."""

    name = "KSWIN 30 of 100"
    library = "river"
    is_slow = True

    def __init__(self, first: FloatArray) -> None:
        from river import drift  # type: ignore[import-not-found,unused-ignore]

        super().__init__(first)
        self._detector = drift.KSWIN(alpha=1e-12, seed=1)
        for value in first[WARM_UP_STEPS:]:
            self.score(float(value))

    def score(self, value: float) -> float:
        """Return the negative logarithm of the p-value."""
        self._detector.update(value)
        return -math.log10(max(self._detector.p_value, 1e-300)) if self._detector.n > 100 else NOT_FOUND  # noqa: PLR2004 - a window


class HalfSpaceTrees(Technique):
    """Isolation by random half spaces."""

    name = "half-space trees"
    library = "river"
    is_slow = True

    def __init__(self, first: FloatArray) -> None:
        from river import anomaly  # type: ignore[import-not-found,unused-ignore]

        super().__init__(first)
        self._trees = anomaly.HalfSpaceTrees(n_trees=10, height=6, window_size=200, seed=1)
        self._recent: deque[float] = deque(maxlen=20)
        for value in first[WARM_UP_STEPS:]:
            self.score(float(value))

    def score(self, value: float) -> float:
        """Return the median score of 20 steps."""
        point = {"z": (self.clipped(value) + CLIP_DEVIATIONS) / (2 * CLIP_DEVIATIONS)}
        self._recent.append(self._trees.score_one(point))
        self._trees.learn_one(point)
        return median(self._recent)


class MatrixProfile(Technique):
    """Distance of the last 20 steps to their nearest neighbour in the last 250, not normalised."""

    name = "matrix profile 20 in 250"
    library = "stumpy"
    is_slow = True

    def __init__(self, first: FloatArray) -> None:
        import stumpy  # type: ignore[import-not-found,unused-ignore]

        super().__init__(first)
        start = np.array([self.clipped(float(value)) for value in first])
        self._profile = stumpy.aampi(start, m=20, egress=True)

    def score(self, value: float) -> float:
        """Return the distance."""
        self._profile.update(self.clipped(value))
        return float(self._profile.left_P_[-1])


TECHNIQUES: Final[tuple[type[Technique], ...]] = (
    Shipped,
    RatioOfMedians,
    HeldRatio,
    FixedHeldRatio,
    Cusum,
    Ewma,
    Holt,
    PointsBeyond,
    BayesianChangePoint,
    MannWhitney,
    Adwin,
    PageHinkley,
    Kswin,
    HalfSpaceTrees,
    MatrixProfile,
)


def scores_of(technique: type[Technique], values: FloatArray) -> FloatArray:
    """Return the score of each step; the steps of warm-up and reference have none."""
    watching = technique(values[:PREPARED])
    scores = [watching.score(value) for value in values[PREPARED:].tolist()]
    return np.concatenate((np.full(PREPARED, NOT_FOUND), scores))


def offline_changes(values: FloatArray) -> list[int]:
    """Return the changes of the mean that ruptures, which sees the whole series, finds: the reference for dating."""
    from ruptures import KernelCPD  # type: ignore[import-not-found,unused-ignore]

    reference = reference_of(values[WARM_UP_STEPS:PREPARED].tolist())
    z = np.clip((values - reference.median) / reference.deviation, -CLIP_DEVIATIONS, CLIP_DEVIATIONS)
    found = KernelCPD(kernel="linear", min_size=100).fit(z.reshape(-1, 1)).predict(pen=100)
    return [int(step) for step in found[:-1]]
