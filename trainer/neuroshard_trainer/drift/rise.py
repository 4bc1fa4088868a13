"""Detection of a rise of the loss, of which there is one value per report and which falls by itself.

A fixed reference does not measure it: what is above the loss of an hour ago need not be above that of the first hour.
So each value is compared with the last ones before it, in robust deviations: those of the values around their median,
or those of the differences from value to value, whichever are larger. Falling values widen the first and put the median
above the newest ones, so that early in a training only large rises are seen. Three rules find a rise:

- *single*: a value is 15 deviations above the median of the last 20.
- *pair*: two in a row are six deviations above it.
- *held*: the median of the last 10 is seven of its standard errors above that of the 20 before them.

Deviations of 20 values tell little of a series that is quiet most of the time, has bursts, or follows the hour. So a
rise is found only if it is also twice the third largest of those before, as the same rule measures them, of each 20
values one. That needs no assumption about the noise: where n such blocks are alike, in any order, the next one has a
rise above the third largest of them with the probability 3 / (n + 1), and one twice as large less often. Normal noise
never comes near it. Two large rises hide no third one, and a fall does not count.

66 blocks tell more of the noise than the last 20 values do. From then on a single value is a rise as well if it is 1.5
times the *largest* of those before, whatever its deviations. The next block exceeds the largest of n with the
probability 1 / (n + 1). One 1.5 times as large is 1.5^5 times less likely where noise has the tail of Student's t of 5
degrees: fewer than 1 in 10,000 values.

Values that are six deviations above do not become part of what later ones are compared with, until there are as many of
them as of those: then they are the usual level. A rise that the held rule alone sees becomes it after as many values.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from math import isfinite, sqrt
from statistics import median
from typing import Final

from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Value

from neuroshard_trainer.drift.detector import MEDIAN_DEVIATIONS
from neuroshard_trainer.drift.noise import MEDIAN_INEFFICIENCY

USUAL_VALUES: Final = 20
"""Values that a level is of."""
RECENT_VALUES: Final = 10
"""Values whose median the held rule compares."""
SINGLE_DEVIATIONS: Final = 15.0
"""Above the level: Student's t of 5 degrees exceeds 10 of them too often."""
RISE_DEVIATIONS: Final = 6.0
"""Above the level, from which a value is one of the pair's."""
HELD_ERRORS: Final = 7.0
"""Standard errors that the recent median must be above the level: noise with memory 0.5 exceeds 6 of them too often."""
MIN_RISE: Final = 0.02
"""Least share of the level that is a rise: very large batches have next to no noise."""
BLOCK_VALUES: Final = 20
"""Values of which the largest rise counts."""
LARGEST: Final = 3
"""Rises before that are kept; the least of them counts."""
LARGER: Final = 2.0
"""Times that rise."""
RECORD: Final = 1.5
"""Times the largest rise before, from which a single value is a rise whatever its deviations."""
RECORD_BLOCKS: Final = 66
"""Blocks that tell that: RECORD**-5 / (BLOCK_VALUES * (RECORD_BLOCKS + 1)) is below 1 in 10,000."""
_ERROR: Final = MEDIAN_INEFFICIENCY * sqrt(1 / RECENT_VALUES + 1 / USUAL_VALUES)
"""Standard error of the difference of both medians, in deviations."""


class _Rule(IntEnum):
    """How a rise is measured."""

    SINGLE = 0
    PAIR = 1
    HELD = 2


_LIMITS: Final = {
    _Rule.SINGLE: SINGLE_DEVIATIONS,
    _Rule.PAIR: RISE_DEVIATIONS,
    _Rule.HELD: HELD_ERRORS * _ERROR,
}
"""Deviations of a rise."""


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
    num_in_block: Count = 0
    num_blocks: Count = 0
    """That have ended."""
    block: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Largest rise of the block that has not ended, by rule."""
    largest: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]] = ((), (), ())
    """Largest rises of the blocks before, by rule."""


class RiseDetector:
    """Watches one series of values above 0.

    Args:
        state: of a detector to go on from. If unset: it begins with the next value.
        larger: times the rise before that counts. 0: those before do not matter.
        record: times the largest rise before that a single value must be. Infinite: none is a rise for that alone.
    """

    def __init__(self, state: RiseState | None = None, *, larger: float = LARGER, record: float = RECORD) -> None:
        state = state or RiseState()
        self._larger, self._record = larger, record
        self._usual, self._above = list(state.usual), list(state.above)
        self._num_in_block, self._block = state.num_in_block, list(state.block)
        self._num_blocks = state.num_blocks
        self._largest = list(state.largest)
        self.num_risen = 0
        """Last values among which the rise began that ``add`` found. 0: it found none."""

    @property
    def state(self) -> RiseState:
        """What the detector knows: another that starts from it finds the same."""
        single, pair, held = self._block
        return RiseState(
            usual=tuple(self._usual),
            above=tuple(self._above),
            num_in_block=self._num_in_block,
            num_blocks=self._num_blocks,
            block=(single, pair, held),
            largest=(self._largest[0], self._largest[1], self._largest[2]),
        )

    def add(self, value: float) -> float | None:
        """Take in a value; return the usual level while a rise lasts, and None otherwise."""
        self.num_risen = 0
        if not isfinite(value):
            return None
        if len(self._usual) < RECENT_VALUES + USUAL_VALUES:
            self._usual.append(value)
            return None
        level, deviation = usual_level(self._usual[-USUAL_VALUES:])
        last = self._above[-1] if self._above else self._usual[-1]
        self._note(_Rule.SINGLE, value - level)
        self._note(_Rule.PAIR, min(last, value) - level)
        self._num_in_block += 1
        if value >= level + max(MIN_RISE * level, RISE_DEVIATIONS * deviation):
            return self._add_above(value, level, deviation)
        self._above.clear()
        found = level if self._is_found(_Rule.SINGLE, value - level, level, deviation) else None
        self._usual = [*self._usual[1:], value]
        level, deviation = usual_level(self._usual[:USUAL_VALUES])
        rise = median(self._usual[USUAL_VALUES:]) - level
        is_held = self._is_found(_Rule.HELD, rise, level, deviation)
        self._note(_Rule.HELD, rise)
        if self._num_in_block >= BLOCK_VALUES:
            self._end_block()
        self.num_risen = RECENT_VALUES if is_held else int(found is not None)
        return level if is_held else found

    def _add_above(self, value: float, level: float, deviation: float) -> float | None:
        """Take in a value that may be a rise, alone or with those above before it."""
        self._above.append(value)
        if len(self._above) >= USUAL_VALUES:
            self._usual = [*self._above, *self._above[:RECENT_VALUES]]
            self._above = []
            return None
        pairs = [min(pair) for pair in pairwise(self._above)]
        is_found = self._is_found(_Rule.SINGLE, max(self._above) - level, level, deviation) or (
            bool(pairs) and self._is_found(_Rule.PAIR, max(pairs) - level, level, deviation)
        )
        self.num_risen = len(self._above) if is_found else 0
        return level if is_found else None

    def _is_found(self, rule: _Rule, rise: float, level: float, deviation: float) -> bool:
        """Return whether a rise is larger than noise, and than those before."""
        before = self._largest[rule]
        usually = before[-1] if len(before) == LARGEST else 0.0
        is_known = rule is _Rule.SINGLE and self._num_blocks >= RECORD_BLOCKS
        is_record = is_known and rise >= self._record * before[0]
        is_beyond = rise >= max(_LIMITS[rule] * deviation, self._larger * usually)
        return rise >= MIN_RISE * level and (is_record or is_beyond)

    def _note(self, rule: _Rule, rise: float) -> None:
        self._block[rule] = max(self._block[rule], rise)

    def _end_block(self) -> None:
        """Count the block's largest rises among those before. A rise that lasts does not count against itself."""
        for rule, rise in enumerate(self._block):
            self._largest[rule] = tuple(sorted((*self._largest[rule], rise), reverse=True)[:LARGEST])
        self._num_in_block, self._block = 0, [0.0, 0.0, 0.0]
        self._num_blocks += 1
