"""Tells when a core runs below its full speed, by a fixed loop that needs no memory. Times no kernels.

A thread's processor time leaves out what other processes take of the core, but not what the physical core loses to its
second hyperthread, which may belong to another virtual machine: up to half of its speed, for tenths of seconds. A call
between two loops of full speed ran at full speed.
"""

from collections.abc import Callable
from statistics import median

from neuroshard_api.process.core_speed import loop_ms

_CALIBRATIONS = 30
OTHER_WORK = "other work on the core"
CORE_LOOP = "core_loop_ms"
"""In a record's environment: time of the loop next to its calls."""
_SLOWED_BY = 1.2
"""A loop that takes that many times the fastest ran on a slowed core: undisturbed ones differ by 5 %."""


class CoreGauge:
    """Full speed is that of the fastest loop so far.

    Args:
        timed_loop: runs the loop and returns the milliseconds of its processor time.
    """

    def __init__(self, timed_loop: Callable[[], float] = loop_ms) -> None:
        self._timed_loop = timed_loop
        self._fastest = min(self._timed_loop() for _ in range(_CALIBRATIONS))
        self._undisturbed: list[float] = []

    def slowed_by(self) -> str | None:
        """Return the reason why the core is slow now. None: it runs at full speed."""
        found = self._timed_loop()
        self._fastest = min(self._fastest, found)
        if found > _SLOWED_BY * self._fastest:
            return OTHER_WORK
        self._undisturbed.append(found)
        return None

    @property
    def full_speed_ms(self) -> float:
        """Median time of the loops at full speed since the calibration; that of the fastest loop if there are none."""
        return median(self._undisturbed or [self._fastest])
