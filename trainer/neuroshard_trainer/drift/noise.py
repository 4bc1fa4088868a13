"""Whether the noise of a series is stationary: alike in every block of steps, without outliers."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import Final

from neuroshard_api.documents.document import Value

BLOCK_STEPS: Final = 25
JUDGED_BLOCKS: Final = 40
"""1,000 steps: ten windows of a report."""
HELD_BACK_BLOCKS: Final = 4
"""The newest blocks are not judged yet, so that a change does not disqualify the noise before it."""
OUTLIER_DEVIATIONS: Final = 4.0
"""Normal noise has one such value in 30,000."""
MAX_OUTLIERS: Final = 2
"""Of the judged blocks. A pause every 100 steps has 10."""
MAX_BLOCK_SPREAD: Final = 1.5
"""Standard deviation of the blocks' medians, over that of independent normal noise."""
MEDIAN_INEFFICIENCY: Final = 1.2533
"""Standard error of the median over that of the mean under normal noise: the root of pi / 2."""


class NoiseState(Value):
    """What an estimate knows."""

    block: tuple[float, ...] = ()
    medians: tuple[float, ...] = ()
    outliers: tuple[int, ...] = ()


class NoiseEstimate:
    """Judges standardized values, ``(value - reference) / deviation``, in blocks."""

    def __init__(self, state: NoiseState | None = None) -> None:
        state = state or NoiseState()
        self._block = list(state.block)
        self._medians = deque(state.medians, maxlen=JUDGED_BLOCKS + HELD_BACK_BLOCKS)
        self._outliers = deque(state.outliers, maxlen=JUDGED_BLOCKS + HELD_BACK_BLOCKS)
        self.is_stationary = self._judged()

    def add(self, deviations: float) -> None:
        """Take a standardized value in."""
        self._block.append(deviations)
        if len(self._block) == BLOCK_STEPS:
            self._end_block()

    def add_all(self, deviations: Sequence[float]) -> None:
        """Take several standardized values in, one after the other."""
        taken = 0
        while taken < len(deviations):
            some = deviations[taken : taken + BLOCK_STEPS - len(self._block)]
            self._block += some
            taken += len(some)
            if len(self._block) == BLOCK_STEPS:
                self._end_block()

    def clear(self) -> None:
        """Forget everything: stationary noise needs all its blocks again."""
        self._block.clear()
        self._medians.clear()
        self._outliers.clear()
        self.is_stationary = False

    @property
    def state(self) -> NoiseState:
        """What the estimate knows, to go on from it."""
        return NoiseState(block=tuple(self._block), medians=tuple(self._medians), outliers=tuple(self._outliers))

    def _end_block(self) -> None:
        self._medians.append(median(self._block))
        self._outliers.append(sum(abs(each) > OUTLIER_DEVIATIONS for each in self._block))
        self._block.clear()
        self.is_stationary = self._judged()

    def _judged(self) -> bool:
        if len(self._medians) < JUDGED_BLOCKS + HELD_BACK_BLOCKS:
            return False
        if sum(islice(self._outliers, JUDGED_BLOCKS)) > MAX_OUTLIERS:
            return False
        medians = list(islice(self._medians, JUDGED_BLOCKS))
        mean = sum(medians) / JUDGED_BLOCKS
        variance = sum((each - mean) ** 2 for each in medians) / JUDGED_BLOCKS
        return variance <= (MAX_BLOCK_SPREAD * MEDIAN_INEFFICIENCY) ** 2 / BLOCK_STEPS
