"""How many processors this process and those that it starts may use."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_processors(cgroups: Path = _CGROUPS) -> int:
    """Return the processors that the scheduler may run this process on, at most those of a container's limit, whole.

    Args:
        cgroups: where the kernel shows the limits of this process's container (cgroups(7)), in either version.
    """
    allowed = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError, ZeroDivisionError):  # there is no limit, or it is "max"
        quota, period = map(int, (cgroups / "cpu.max").read_text(encoding="utf-8").split())
        return max(1, min(allowed, quota // period))
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (
            int((cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="utf-8")) for name in ("quota", "period")
        )
        if quota > 0:
            return max(1, min(allowed, quota // period))
    return allowed
