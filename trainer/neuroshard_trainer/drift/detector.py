"""Detection of a lasting slow-down in a series of step times, one value after the other, in bounded memory.

The question is not whether steps differ from before: load, pauses, checkpoints, and bursts make them differ all the
time. It is whether they are lastingly slower by a least share. Two rules answer it, over one fixed reference:

- *held*: the median of the last 100 steps has been at least that share above the reference for 150 steps. It needs
  no assumption on the noise, and a burst of up to 50 steps alone cannot last that long.
- *fast*: a cumulative sum (Page, 1954) of clipped standardized values, which adds up what exceeds half of the share,
  reaches its limit, and the median since the sum was zero is not clearly less than that share above the reference. It
  answers after some ten steps, and takes a burst for a change: it counts only while the noise is stationary.

The step at which the cumulative sum last was zero dates the change of either rule. Steps that are lastingly slower by
less than the share would keep the sum above zero, and date a later change by themselves: there it begins again. The
reference stays what it is, so that many small changes add up.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import copysign, inf, isfinite, sqrt
from statistics import fmean, median
from typing import Final

from neuroshard_api.documents.document import Value

from neuroshard_trainer.drift.noise import MEDIAN_INEFFICIENCY, NoiseEstimate, NoiseState
from neuroshard_trainer.drift.sliding_median import SlidingMedian

MIN_SHIFT: Final = 0.05
"""Least share of the reference that a change is reported from."""
WARM_UP_STEPS: Final = 50
REFERENCE_STEPS: Final = 200
RECENT_STEPS: Final = 100
HELD_STEPS: Final = 150
"""A burst of 50 steps moves the median of 100 for 149."""
SUM_LIMIT: Final = 25.0
"""Deviations that the cumulative sum raises an alarm from: under independent normal noise it gets there once in
exp(2 * 0.5 * 25) steps, and still once in 300,000 where memory doubles the variance of sums."""
LEAST_ALLOWANCE: Final = 0.5
CLIP_DEVIATIONS: Final = 4.0
"""Maximum weight of one step in the sum: a single heavy step is forgotten after a few usual ones."""
MIN_DEVIATION: Final = 0.01
"""Share of the reference that deviations are at least taken for: the scale of a series without noise."""
MEDIAN_DEVIATIONS: Final = 1.4826
"""Standard deviation over the median absolute deviation, of normal noise."""
CLEAR_ERRORS: Final = 2.0
"""Standard errors of the recent steps' median, below the least share, from which steps clearly are not change."""

_ROUNDING: Final = 1e-9
"""Share by which a median of two values may be rounded up, and more."""


class AlarmRule(StrEnum):
    """What raised an alarm."""

    HELD = "held"
    FAST = "fast"


class Slowdown(Value):
    """A lasting slow-down."""

    rule: AlarmRule
    since_step: int
    """First step of the change, as the cumulative sum dates it."""
    found_step: int
    """Step whose time raised the alarm."""


class Reference(Value):
    """Steps that later ones are compared with."""

    median: float
    deviation: float
    """Robust standard deviation, at least 1 % of the median."""
    mean_deviations: float
    """Mean of the clipped standardized values: what a skewed noise adds to the sum per step."""


class DetectorState(Value):
    """What a detector knows: JSON of bounded size."""

    warm_up_left: int = WARM_UP_STEPS
    learning: tuple[float, ...] = ()
    reference: Reference | None = None
    recent: tuple[float, ...] = ()
    held: int = 0
    total: float = 0.0
    summed: int = 0
    zero_step: int | None = None
    last_step: int | None = None
    after_alarm: int = 0
    had_burst: bool = False
    rejected: int = 0
    noise: NoiseState = NoiseState()
    change: Slowdown | None = None


class ShiftDetector:
    """Watches one series.

    Args:
        min_shift: least share of the reference that is a change.
        state: of a detector to go on from. If unset: after a warm-up it learns the reference.
    """

    def __init__(self, *, min_shift: float = MIN_SHIFT, state: DetectorState | None = None) -> None:
        state = state or DetectorState()
        self._min_shift = min_shift
        self._warm_up_left = state.warm_up_left
        self._learning = list(state.learning)
        self._recent = SlidingMedian(RECENT_STEPS, state.recent)
        self._noise = NoiseEstimate(state.noise)
        self._held = state.held
        self._total = state.total
        self._summed = state.summed
        """Steps since the sum was zero."""
        self._zero_step = state.zero_step
        self._last_step = state.last_step
        self._after_alarm = state.after_alarm
        self._had_burst = state.had_burst
        self.reference = state.reference
        self.change = state.change
        """The change that lasts, if there is one."""
        self.rejected = state.rejected
        """Values that are not times: not finite, or not above 0."""

    def restarted(self) -> None:
        """Skip the steps of a warm-up, after a start of the process; the reference stays."""
        self._warm_up_left = WARM_UP_STEPS
        self._forget_recent()

    def add(self, step: int, value: float) -> Slowdown | None:
        """Take in the time of a step.

        Steps may be missing. A step that is not after the last one is that of a training resumed from an earlier
        checkpoint: the steps before it no longer count as recent.

        Returns:
            The change, where this step raised the alarm.
        """
        if not isfinite(value) or value <= 0:
            self.rejected += 1
            return None
        if self._last_step is not None and step <= self._last_step:
            self._forget_recent()
        self._last_step = step
        if self._warm_up_left:
            self._warm_up_left -= 1
            return None
        if self.reference is None:
            self._learn(value)
            return None
        return self._compare(step, value, self.reference)

    def add_all(self, first_step: int, values: Sequence[float]) -> None:
        """Take in the times of consecutive steps, as `add` does one after the other."""
        if not self._took_quiet(first_step, values):
            for step, value in enumerate(values, start=first_step):
                self.add(step, value)

    @property
    def ratio(self) -> float | None:
        """The recent steps' median over the reference's; None before there are enough of both."""
        if self.reference is None or not self._recent.is_full:
            return None
        return self._recent.median / self.reference.median

    @property
    def is_noise_stationary(self) -> bool:
        """Whether the fast rule counts."""
        return self._noise.is_stationary and not self._had_burst

    @property
    def state(self) -> DetectorState:
        """What the detector knows: another that starts from it raises the same alarms."""
        return DetectorState(
            warm_up_left=self._warm_up_left,
            learning=tuple(self._learning),
            reference=self.reference,
            recent=self._recent.values,
            held=self._held,
            total=self._total,
            summed=self._summed,
            zero_step=self._zero_step,
            last_step=self._last_step,
            after_alarm=self._after_alarm,
            had_burst=self._had_burst,
            rejected=self.rejected,
            noise=self._noise.state,
            change=self.change,
        )

    def _forget_recent(self) -> None:
        self._recent.clear()
        self._noise.clear()
        self._held = 0
        self._begin_sum(None)

    def _learn(self, value: float) -> None:
        self._learning.append(value)
        if len(self._learning) == REFERENCE_STEPS:
            self.reference = reference_of(self._learning)
            self._learning.clear()

    def _took_quiet(self, first_step: int, values: Sequence[float]) -> bool:
        """Take steps in at once if none of them can begin a change; return whether they were taken.

        The median of a window is that slow only where half of its values are. No alarm means that neither the order of
        detection nor the medians in between matter.
        """
        reference, last_step = self.reference, self._last_step
        if reference is None or last_step is None or first_step <= last_step or self.change is not None:
            return False
        if self._warm_up_left or not self._recent.is_full or not values:
            return False
        slow = (1 + self._min_shift) * reference.median * (1 - _ROUNDING)
        num_slow, num_allowed = self._recent.num_from(slow), RECENT_STEPS // 2
        middle, deviation, sum_after = reference.median, reference.deviation, self._sum_after(reference)
        total, summed, zero_step = self._total, self._summed, self._zero_step
        deviations = []
        for step, value in enumerate(values, start=first_step):
            if not 0 < value < inf:
                return False
            own = (value - middle) / deviation
            deviations.append(own)
            num_slow += value >= slow
            if zero_step is None:
                zero_step = step - 1
            total = sum_after(total, own)
            if total > 0:
                summed += 1
            else:
                total, summed, zero_step = 0.0, 0, step
            if total >= SUM_LIMIT or num_slow >= num_allowed:
                return False
        self._total, self._summed, self._zero_step = total, summed, zero_step
        self._last_step, self._held = first_step + len(values) - 1, 0
        self._recent.add_all(values)
        self._noise.add_all(deviations)
        return True

    def _compare(self, step: int, value: float, reference: Reference) -> Slowdown | None:
        deviations = (value - reference.median) / reference.deviation
        self._recent.add(value)
        self._noise.add(deviations)
        self._sum(step, deviations, reference)
        ratio = self._recent.median / reference.median if self._recent.is_full else None
        above = ratio is not None and ratio >= 1 + self._min_shift
        self._held = self._held + 1 if above else 0
        if self.change is not None:
            self._after_alarm += 1
            self._end_change(step, ratio, self.change)
            return None
        if self._held >= HELD_STEPS:
            rule = AlarmRule.HELD
        elif self._total < SUM_LIMIT:
            return None
        elif self._is_small(reference):
            if self._summed >= RECENT_STEPS:
                self._begin_sum(step)
            return None
        elif self.is_noise_stationary:
            rule = AlarmRule.FAST
        else:
            return None
        assert self._zero_step is not None
        self._after_alarm = 0
        self.change = Slowdown(rule=rule, since_step=min(self._zero_step + 1, step), found_step=step)
        return self.change

    def _sum_after(self, reference: Reference) -> Callable[[float, float], float]:
        """Return the function from a sum and a step's deviations to the sum after the step, which may be below zero."""
        mean = reference.mean_deviations
        allowance = max(LEAST_ALLOWANCE, self._min_shift * reference.median / reference.deviation / 2)
        # Beyond the allowance of a small noise, a clip at fixed deviations would let no change through.
        clip = max(CLIP_DEVIATIONS, 2 * allowance)

        def after(total: float, deviations: float) -> float:
            clipped = deviations if -clip < deviations < clip else copysign(clip, deviations)
            return total + clipped - mean - allowance

        return after

    def _sum(self, step: int, deviations: float, reference: Reference) -> None:
        if self._zero_step is None:
            self._zero_step = step - 1
        self._total = self._sum_after(reference)(self._total, deviations)
        if self._total > 0:
            self._summed += 1
        else:
            self._begin_sum(step)

    def _begin_sum(self, step: int | None) -> None:
        """Let the sum be zero at a step. None: the next one is its first."""
        self._total, self._summed, self._zero_step = 0.0, 0, step

    def _is_small(self, reference: Reference) -> bool:
        """Return whether the steps since the sum was zero, the recent ones at most, clearly are not change."""
        is_long = self._summed >= RECENT_STEPS
        since = self._recent.median if is_long else median(self._recent.values[-self._summed :])
        error = MEDIAN_INEFFICIENCY * reference.deviation / sqrt(RECENT_STEPS)
        return since < (1 + self._min_shift) * reference.median - CLEAR_ERRORS * error

    def _end_change(self, step: int, ratio: float | None, change: Slowdown) -> None:
        """End a change whose steps are as fast as the reference again; one that the fast rule alone saw was a burst."""
        if ratio is None or self._after_alarm < RECENT_STEPS or ratio >= 1 + self._min_shift / 2:
            return
        if change.rule is AlarmRule.FAST and self._after_alarm < RECENT_STEPS + HELD_STEPS:
            self._had_burst = True
        self.change = None
        self._held = 0
        self._begin_sum(step)


def reference_of(values: list[float]) -> Reference:
    """Compute the reference of a series' first steps, each above 0."""
    middle = median(values)
    spread = MEDIAN_DEVIATIONS * median(abs(value - middle) for value in values)
    deviation = max(spread, MIN_DEVIATION * middle)
    clipped = [max(-CLIP_DEVIATIONS, min(CLIP_DEVIATIONS, (value - middle) / deviation)) for value in values]
    return Reference(median=middle, deviation=deviation, mean_deviations=fmean(clipped))
