"""Detection of a lasting rise of the loss, of which there is one value per report and which falls by itself.

A fixed reference does not measure it: what is above the loss of an hour ago need not be above that of the first hour.
So each value is compared with the last ones before it, in robust deviations: those of the values around their median,
or those of the differences from value to value, whichever are larger. Falling values widen the first and put the median
above the newest ones, so that early in a training only large rises are seen. Two rules find a rise:

- *fast*: two values in a row are six deviations above the median of the last 20. A single one is a burst.
- *held*: the median of the last 10 is seven of its standard errors above that of the 20 before them.

Values that the fast rule sees do not become part of what later ones are compared with, until there are as many of them
as of those: then they are the usual level. A rise that the held rule alone sees becomes it after as many values.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, sqrt
from statistics import median
from typing import Final

from neuroshard_api.documents.document import Value

from neuroshard_trainer.drift.detector import MEDIAN_DEVIATIONS
from neuroshard_trainer.drift.noise import MEDIAN_INEFFICIENCY

USUAL_VALUES: Final = 20
"""Values that a level is of."""
RECENT_VALUES: Final = 10
"""Values whose median the held rule compares."""
FAST_VALUES: Final = 2
RISE_DEVIATIONS: Final = 6.0
"""Above the level, from which a value is one of the fast rule's."""
HELD_ERRORS: Final = 7.0
"""Standard errors that the recent median must be above the level: noise with memory 0.5 exceeds 6 of them too often."""
MIN_RISE: Final = 0.02
"""Least share of the level that is a rise: very large batches have next to no noise."""
_ERROR: Final = MEDIAN_INEFFICIENCY * sqrt(1 / RECENT_VALUES + 1 / USUAL_VALUES)
"""Standard error of the difference of both medians, in deviations."""


def usual_level(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of a series' values, and their robust deviation."""
    middle = median(values)
    around = MEDIAN_DEVIATIONS * median(abs(value - middle) for value in values)
    between = MEDIAN_DEVIATIONS / sqrt(2) * median(abs(later - value) for value, later in pairwise(values))
    return middle, max(around, between)


class RiseState(Value):
    """What a detector knows."""

    usual: tuple[float, ...] = ()
    above: tuple[float, ...] = ()


class RiseDetector:
    """Watches one series of values above 0.

    Args:
        state: of a detector to go on from. If unset: it begins with the next value.
    """

    def __init__(self, state: RiseState | None = None) -> None:
        state = state or RiseState()
        self._usual, self._above = list(state.usual), list(state.above)

    @property
    def state(self) -> RiseState:
        """What the detector knows: another that starts from it finds the same."""
        return RiseState(usual=tuple(self._usual), above=tuple(self._above))

    def add(self, value: float) -> float | None:
        """Take in a value; return the usual level while a rise lasts, and None otherwise."""
        if not isfinite(value):
            return None
        if len(self._usual) < RECENT_VALUES + USUAL_VALUES:
            self._usual.append(value)
            return None
        level, deviation = usual_level(self._usual[-USUAL_VALUES:])
        if value >= _risen(level, RISE_DEVIATIONS * deviation):
            self._above.append(value)
            if len(self._above) < USUAL_VALUES:
                return level if len(self._above) >= FAST_VALUES else None
            self._usual = [*self._above, *self._above[:RECENT_VALUES]]
            self._above = []
            return None
        self._above.clear()
        self._usual = [*self._usual[1:], value]
        level, deviation = usual_level(self._usual[:USUAL_VALUES])
        is_held = median(self._usual[USUAL_VALUES:]) >= _risen(level, HELD_ERRORS * _ERROR * deviation)
        return level if is_held else None


def _risen(level: float, noise: float) -> float:
    """Return the least value that is a rise above a level."""
    return max((1 + MIN_RISE) * level, level + noise)
