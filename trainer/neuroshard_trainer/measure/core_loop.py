"""How fast this rank's core is between steps, by a fixed loop: what slows it lengthens steps that are as ever."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from neuroshard_api.process.core_speed import loop_ms

EVERY_S: Final = 0.3
"""Least time between two loops of 0.3 ms: a thousandth of a core."""
KEPT_LOOPS: Final = 100


class CoreLoop:
    """Times of the loop.

    Args:
        timed_loop: runs it and returns the milliseconds of its processor time.
        clock: seconds.
    """

    def __init__(
        self, timed_loop: Callable[[], float] = loop_ms, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timed_loop = timed_loop
        self._clock = clock
        self._due_s = clock()
        self._found: deque[float] = deque(maxlen=KEPT_LOOPS)

    def look(self) -> None:
        """Run the loop if it is time."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            self._found.append(self._timed_loop())

    @property
    def median_ms(self) -> float | None:
        """Median of the last loops. None: there are none."""
        return median(self._found) if self._found else None
