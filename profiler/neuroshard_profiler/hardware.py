"""What is measured: the device, its driver, its memory and its caches. Reads the system, times only memory copies."""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from neuroshard_api.documents.topology import DeviceType

_CPU_SYSFS = Path("/sys/devices/system/cpu")
_GROUP_SYSFS = Path("/sys/fs/cgroup")
_LIMIT = ("memory.max", "memory/memory.limit_in_bytes")
_USE = ("memory.current", "memory/memory.usage_in_bytes")
"""Files of the control group, of version 2 and of version 1."""
_LARGE_BYTES = 2**26  # beyond what one core keeps of a shared cache
_USUAL_CACHE_BYTES = 2**20  # of a core, where the system does not tell
_COPY_SECONDS = 0.05  # per measured size: long against the clock, short against the budget


def cpu_model() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    return _cpuinfo("model name") or platform.machine()


def available_memory_bytes() -> int:
    """Return the memory that this process may still allocate: the lesser of the system's and its control group's."""
    available = _meminfo_bytes("MemAvailable")
    limit, used = (_group_bytes(*names) for names in (_LIMIT, _USE))
    return available if limit is None or used is None else min(available, max(limit - used, 0))


def total_memory_bytes() -> int:
    """Return the memory of the system or of the control group, whichever is less."""
    limit = _group_bytes(*_LIMIT)
    total = _meminfo_bytes("MemTotal")
    return total if limit is None else min(total, limit)


def _group_bytes(*names: str) -> int | None:
    """Return the number in the first of these files of the control group that has one."""
    found = (_number(_GROUP_SYSFS / name) for name in names)
    return next((number for number in found if number is not None), None)


def fingerprint(facts: Mapping[str, str]) -> str:
    """Return the SHA-256 of all that decides whether a profile holds. The order of the facts does not matter."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()


def cpu_device(*, num_processes: int, core: int) -> DeviceType:
    """Describe one process's share of this machine as a device: a core, its caches, a part of the memory.

    Bandwidths are measured by copies of NumPy arrays on the calling thread, which should be pinned.

    Args:
        num_processes: share the memory evenly.
        core: whose caches and clock are read.
    """
    model = cpu_model()
    second_level = _cache_bytes(core, level=2) or _USUAL_CACHE_BYTES
    last_level = last_level_cache_bytes(core)
    return DeviceType(
        name=cpu_name(model),
        product=model,
        memory_bytes=available_memory_bytes() // num_processes,
        memory_bandwidth_bytes_per_second=_copy_bytes_per_second(min(4 * last_level, _LARGE_BYTES)),
        cache_bytes=last_level,
        cache_bandwidth_bytes_per_second=_copy_bytes_per_second(second_level // 4),
        num_multiprocessors=1,
        clock_hz=1e6 * float(_cpuinfo("cpu MHz") or 1000.0),
        source=f"one core of this machine of {os.cpu_count()}: sizes from the system, bandwidths of measured copies",
    )


def last_level_cache_bytes(core: int) -> int:
    """Return the size of the largest cache that a core reads through."""
    return _cache_bytes(core, level=3) or _cache_bytes(core, level=2) or _USUAL_CACHE_BYTES


def cpu_name(model: str) -> str:
    """Return a device name: ``Intel(R) Xeon(R) Processor`` is ``cpu-intel-xeon-processor``."""
    plain = re.sub(r"\((R|TM|C)\)|@.*$", " ", model, flags=re.IGNORECASE)
    return "-".join(["cpu", *re.findall(r"[a-z0-9.]+", plain.lower())])[:128]


def _meminfo_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found is not None, f"Linux tells {field}"
    return 1024 * int(found[1])


def _copy_bytes_per_second(num_bytes: int) -> float:
    """Return bytes read and written per second of the fastest copy of arrays of this size."""
    source = np.ones(max(num_bytes // 8, 1), dtype=np.float64)
    target = np.empty_like(source)
    np.copyto(target, source)  # takes its pages
    best = float("inf")
    until = time.perf_counter() + _COPY_SECONDS
    while best == float("inf") or time.perf_counter() < until:
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def _cache_bytes(core: int, *, level: int) -> int | None:
    for folder in sorted((_CPU_SYSFS / f"cpu{core}" / "cache").glob("index*")):
        if _number(folder / "level") == level:
            found = re.fullmatch(r"(\d+)([KMG])", (folder / "size").read_text(encoding="ascii").strip())
            if found is not None:
                return int(found[1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[found[2]]
    return None


def _cpuinfo(field: str) -> str | None:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field]
    return names[0] if names else None


def _number(path: Path) -> int | None:
    """Return the number in a file of the system. None: there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
