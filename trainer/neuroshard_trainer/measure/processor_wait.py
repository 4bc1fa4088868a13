"""How long this process waited for a processor that others had, as Linux counts it for each of its threads."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")


class ProcessorTime(NamedTuple):
    """Nanoseconds of a thread since its begin."""

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

        Of the threads that live now; one that began since then counts in whole.
        """
        now = self._times()
        none = ProcessorTime(0, 0)
        run_ns = sum(time.run_ns - self._before.get(thread, none).run_ns for thread, time in now.items())
        wait_ns = sum(time.wait_ns - self._before.get(thread, none).wait_ns for thread, time in now.items())
        self._before = now
        return wait_ns / (run_ns + wait_ns) if run_ns + wait_ns > 0 else None

    def _times(self) -> dict[str, ProcessorTime]:
        found = {}
        for file in self._tasks.glob("*/schedstat"):
            with suppress(OSError, ValueError):  # a thread that ends meanwhile
                run_ns, wait_ns, _ = map(int, file.read_text().split())
                found[file.parent.name] = ProcessorTime(run_ns, wait_ns)
        return found
