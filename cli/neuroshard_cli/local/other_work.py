"""How many processors other programs use while something of this process runs: whether a machine was idle."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

STAT = Path("/proc/stat")
LEAST_SECONDS = 1.0
"""The system counts in hundredths of a second: of less time nothing is known."""
_IDLE_FIELDS = (3, 4)
"""Of the first line of /proc/stat after its name (proc(5)): idle, and idle while a disk is waited for."""
_GUEST_FIELD = 8
"""From there on what the fields before count already."""


def own_seconds() -> float:
    """Return the processor time of this process, and of those that it has waited for with all that these had."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class OtherWork:
    """Counts from its making on.

    Args:
        stat: file with the machine's processor time.
        own: seconds of processor time that are not others'.
        clock: seconds.
    """

    def __init__(
        self,
        stat: Path = STAT,
        *,
        own: Callable[[], float] = own_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat = stat
        self._own = own
        self._clock = clock
        self._begun = clock(), self._others_s()

    def processors(self) -> float | None:
        """Return the mean number of processors that others used, at most.

        What the host took from the machine counts as theirs, and what orphans of this process used, such as readers of
        a training: no process is charged for a child that it did not wait for.

        None: the system does not count it, or too little time has passed.
        """
        begun_s, before_s = self._begun
        now_s, elapsed_s = self._others_s(), self._clock() - begun_s
        if now_s is None or before_s is None or elapsed_s < LEAST_SECONDS:
            return None
        return max(0.0, now_s - before_s) / elapsed_s

    def _others_s(self) -> float | None:
        try:
            _, *fields = self._stat.read_text(encoding="utf-8").splitlines()[0].split()
        except (OSError, IndexError):
            return None
        ticks = sum(int(each) for index, each in enumerate(fields[:_GUEST_FIELD]) if index not in _IDLE_FIELDS)
        return ticks / os.sysconf("SC_CLK_TCK") - self._own()
