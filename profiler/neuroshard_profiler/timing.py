"""Timers and what is made of their repeats. Knows no kernels.

On a CPU the clock is the calling thread's own processor time: what other processes take of the core is not counted,
only how they disturb its caches is. The thread must be pinned and alone, or work of other threads would be missed.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from neuroshard_profiler.backends.base import Repeats, Times

if TYPE_CHECKING:
    import torch

_MS_PER_SECOND = 1000.0


class Timer(Protocol):
    """Times the three points of a call: its start, between forward and backward, and its end."""

    def mark(self) -> None:
        """Set the next point."""
        ...

    def elapsed_ms(self) -> tuple[float, float]:
        """Return both intervals of the last three marks."""
        ...


class ThreadTimer:
    """Processor time of the calling thread."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """Set the next point."""
        self._marks.append(time.thread_time())

    def elapsed_ms(self) -> tuple[float, float]:
        """Return both intervals of the last three marks."""
        start, middle, end = self._marks[-3:]
        self._marks.clear()
        return _MS_PER_SECOND * (middle - start), _MS_PER_SECOND * (end - middle)


class CudaTimer:
    """CUDA events: time between points of the device's stream, whatever the host does."""

    def __init__(self, events: "Callable[[], torch.cuda.Event]", synchronize: Callable[[], None]) -> None:
        self._new_event = events
        self._synchronize = synchronize
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Set the next point."""
        event = self._new_event()
        event.record()
        self._events.append(event)

    def elapsed_ms(self) -> tuple[float, float]:
        """Return both intervals of the last three marks, once the device is done."""
        self._synchronize()
        start, middle, end = self._events[-3:]
        self._events.clear()
        return start.elapsed_time(middle), middle.elapsed_time(end)


def median_times(call: Callable[[int], tuple[float, float]], repeats: Repeats) -> Times:
    """Return the medians of repeated calls.

    Args:
        call: makes the call of this number and returns its forward and backward milliseconds.
        repeats: how often; those of the warm-up do not count.
    """
    for number in range(repeats.warm_up):
        call(number)
    timed: list[tuple[float, float]] = []
    total_ms = 0.0
    while len(timed) < repeats.least or (len(timed) < repeats.most and total_ms < repeats.enough_ms):
        timed.append(call(repeats.warm_up + len(timed)))
        total_ms += sum(timed[-1])
    times = np.array(timed)
    forward_ms, backward_ms = np.median(times, axis=0)
    return Times(
        forward_ms=float(forward_ms),
        backward_ms=float(backward_ms),
        spread=relative_spread(times.sum(axis=1)),
        num_repeats=len(times),
    )


def relative_spread(times: np.ndarray) -> float:
    """Return the interquartile range as a share of the median; 0 where the median is 0."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float((high - low) / median) if median > 0 else 0.0


@contextmanager
def pinned_core(core: int | None = None) -> Iterator[int]:
    """Bind this process to one core while the context lasts. ``core`` None: the last one it may use."""
    allowed = os.sched_getaffinity(0)
    chosen = max(allowed) if core is None else core
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, allowed)
