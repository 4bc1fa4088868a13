"""How much of a training the drift watch may take: a share of the steps' time.

Counting a batch and writing the documents take some milliseconds, and more on a slow disk, whatever a step takes. So
they are done as often as the steps pay for: each step earns a share of its time, each piece of work spends what it
took. Short steps earn less, and their training is counted less often; the bound holds for any number of ranks and
features, on any machine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

WORK_SHARE: Final = 0.001
"""Of the steps' time. With the detector, which takes some 2 microseconds of each step, 0.2 % of a step of 2 ms."""
AHEAD_MS: Final = 1000.0
"""Work that may be done before it is earned, and maximum that is kept unspent: the reports of a short training."""
_NS_PER_MS = 1e6


def clock_ms() -> float:
    """Return the time of a clock that is never set back."""
    return time.monotonic_ns() / _NS_PER_MS


class WorkBudget:
    """Milliseconds earned and spent.

    Args:
        share: of the steps' time that is earned.
        ahead_ms: work that may be done before it is earned.
        clock: milliseconds. If unset: of the clock, for training waits for the disk as well.
    """

    def __init__(
        self, *, share: float = WORK_SHARE, ahead_ms: float = AHEAD_MS, clock: Callable[[], float] = clock_ms
    ) -> None:
        self._share = share
        self._most_ms = self._left_ms = ahead_ms
        self._clock = clock

    @property
    def is_spent(self) -> bool:
        """Whether more was spent than earned."""
        return self._left_ms < 0

    def earn(self, steps_ms: float) -> None:
        """Take in the time of steps."""
        self._left_ms = min(self._most_ms, self._left_ms + self._share * steps_ms)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Spend what the work within takes, also where it fails."""
        begun = self._clock()
        try:
            yield
        finally:
            self._left_ms -= self._clock() - begun
