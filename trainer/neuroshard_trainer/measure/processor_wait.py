"""How long this process waited for a processor that others had, as Linux counts it for each of its threads."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")


class ProcessorTime(NamedTuple):
    """Nanoseconds of the threads that live."""

    run_ns: int
    wait_ns: int
    """They could have run, and had no processor."""


class ProcessorWait:
    """The share of its time that a process waited for a processor, from one look to the next.

    Args:
        tasks: folder with a folder for each thread, whose file `schedstat` begins with the nanoseconds that it ran and
            that it waited (Documentation/scheduler/sched-stats.rst of Linux).
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._before = self._times()

    def share_since_last(self) -> float | None:
        """Return the share of waiting since the last look. None: nothing ran, or the system does not count it.

        A thread that began or ended since then counts with what it has in all or not at all, but a sum that fell with
        it counts as no time.
        """
        now = self._times()
        before, self._before = self._before, now
        if now is None or before is None:
            return None
        run_ns, wait_ns = (max(0, after - earlier) for after, earlier in zip(now, before, strict=True))
        return wait_ns / (run_ns + wait_ns) if run_ns + wait_ns else None

    def _times(self) -> ProcessorTime | None:
        found = []
        for file in self._tasks.glob("*/schedstat"):
            with suppress(OSError, ValueError):  # a thread that ends meanwhile
                run_ns, wait_ns, _ = map(int, file.read_text().split())
                found.append((run_ns, wait_ns))
        return ProcessorTime(*map(sum, zip(*found, strict=True))) if found else None
