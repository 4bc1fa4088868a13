"""Rows of results, and the timer of the scripts that measure a GPU. Each row is written the moment it is known."""

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("OUT") or ROOT / "build/gpu/out")
"""What is sent: a row in results.jsonl for each number and each error."""
WORK = Path(os.environ.get("KIT_WORK") or ROOT / "build/gpu/work")
"""Everything else."""
DATA = WORK / "out"
"""Records and runs, which check.sh puts into $OUT/records.tar every ten seconds."""
CPU = bool(os.environ.get("KIT_CPU"))
"""Whether the scripts are only tried, on a CPU with tiny sizes."""
_BEGAN = time.monotonic()
_SHOWN_CHARACTERS = 400
_MAX_SPIN_CYCLES = 2**26
stage = ["none"]
"""What is measured now."""


def emit(**row: Any) -> None:
    """Append a row."""
    OUT.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"stage": stage[0], "at_s": round(time.monotonic() - _BEGAN, 2), **row}, default=str)
    with (OUT / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line[:_SHOWN_CHARACTERS], flush=True)


def attempt(what: str, call: Callable[[], Any]) -> bool:
    """Call, and make any error a row. Returns whether there was none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - every error is a result
        emit(what=what, error=f"{type(error).__name__}: {error}"[:2000], traceback=traceback.format_exc()[-3000:])
        return False
    return True


def device() -> torch.device:
    """Return the device that is measured."""
    return torch.device("cpu") if CPU else torch.device("cuda", 0)


def spin(cycles: int) -> None:
    """Queue a kernel that spins."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call] # used by torch's own tests


def events(count: int = 2) -> list[Any]:
    """Return events with times."""
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call] # torch's


class Timer:
    """Device time of a call, independent of the profiler's: a spinning kernel lets the host get ahead."""

    def __init__(self) -> None:
        self.spin_cycles = 2**21
        self.host_bound = 0
        """Calls of the last `ms` for which no spin was long enough."""
        if not CPU:
            size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
            self.buffer = torch.empty(size, dtype=torch.uint8, device="cuda")

    def ms(self, *calls: Callable[[], Any], repeats: int = 21, warm: int = 4, cold: bool = True) -> list[float]:
        """Return the median milliseconds of calls made one after the other."""
        repeats, warm = (3, 1) if CPU else (repeats, warm)
        self.host_bound = 0
        found = [self._once(calls, cold=cold) for _ in range(repeats + warm)]
        return [statistics.median(column) for column in zip(*found[warm:], strict=True)]

    def _once(self, calls: tuple[Callable[[], Any], ...], *, cold: bool) -> list[float]:
        if CPU:
            times = []
            for call in calls:
                begun = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - begun))
            return times
        while True:
            spin(self.spin_cycles)
            marks = []
            for call in calls:
                if cold:
                    self.buffer.zero_()
                start, end = events()
                start.record()
                call()
                end.record()
                marks.append((start, end))
            ahead = not marks[0][0].query()
            torch.cuda.synchronize()
            if ahead or self.spin_cycles >= _MAX_SPIN_CYCLES:
                self.host_bound += not ahead
                return [start.elapsed_time(end) for start, end in marks]
            self.spin_cycles *= 2
