"""Tells when a core runs below its full speed, by a fixed loop that needs no memory. Times no kernels.

A thread's processor time leaves out what other processes take of the core, but not what the physical core loses to its
second hyperthread, which may belong to another virtual machine: up to half of its speed, for tenths of seconds. A call
between two loops of full speed ran at full speed.
"""

import time
from collections.abc import Callable

_ITERATIONS = 10_000  # about 0.3 ms
_CALIBRATIONS = 30
OTHER_WORK = "other work on the core"
_SLOWED_BY = 1.2
"""A loop that takes that many times the fastest ran on a slowed core: undisturbed ones differ by 5 %."""


class CoreGauge:
    """Full speed is that of the fastest loop so far.

    Args:
        loop_seconds: runs the loop and returns its processor time.
    """

    def __init__(self, loop_seconds: Callable[[], float] | None = None) -> None:
        self._loop_seconds = loop_seconds or _loop_seconds
        self._fastest = min(self._loop_seconds() for _ in range(_CALIBRATIONS))

    def slowed_by(self) -> str | None:
        """Return the reason why the core is slow now. None: it runs at full speed."""
        seconds = self._loop_seconds()
        self._fastest = min(self._fastest, seconds)
        return None if seconds <= _SLOWED_BY * self._fastest else OTHER_WORK


def _loop_seconds() -> float:
    start, total = time.thread_time(), 0
    for number in range(_ITERATIONS):
        total += number * number
    return time.thread_time() - start
