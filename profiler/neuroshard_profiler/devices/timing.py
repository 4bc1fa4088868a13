"""Timers of one forward and backward call, and medians of repeats. Knows no kernels.

Both timers make the caches cold: in training, hundreds of megabytes of the all-to-all and of the dense part pass
between a lookup and its backward call, and between two steps. So a buffer twice as large as the cache passes through it
before each call, outside the measured intervals: written on a CPU, read on a GPU, whose kernels are so short that
bringing written lines to the memory would count.

On a CPU the clock is the calling thread's processor time: what other processes take of the core does not count, only
how they disturb its caches does. The thread must be pinned and alone, or work of other threads would be missed. Calls
during which the core was slowed (devices.core_gauge) are repeated.

On a GPU the clock is the device's. Calling a kernel from Python takes longer than many kernels run, so the timer first
queues a kernel that spins: while the device spins, the host queues both calls, and the device then runs them without a
gap. A host that needs longer than the spin finds the first mark passed; the timer then spins twice as long.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from neuroshard_profiler.times import Repeats, Times

if TYPE_CHECKING:
    from neuroshard_profiler.devices.cuda_runtime import CudaEvent, CudaRuntime

_MS_PER_SECOND = 1000.0
_FIRST_SPIN_CYCLES = 2**21
"""1.1 ms at 1.9 GHz: forward and backward of one fused call take the host some 0.8 ms."""
_MAX_SPIN_CYCLES = 2**26
_SLOWED_PER_LEAST = 3
HOST_BOUND = "waiting for the host"
"""The disturbance of times that the longest spin did not free of the host."""

Pooled = TypeVar("Pooled")


class ThreadTimer:
    """Processor time of the calling thread."""

    def __init__(self, *, flushed_bytes: int = 0) -> None:
        """Prepare to write ``flushed_bytes`` before each call; 0 leaves the caches warm."""
        self._flushed = np.zeros(flushed_bytes // 8)

    def time_ms(self, forward: Callable[[], Pooled], backward: Callable[[Pooled], object]) -> tuple[float, float]:
        """Return the milliseconds of both calls."""
        self._flush()
        start = time.thread_time()
        pooled = forward()
        forward_ms = _MS_PER_SECOND * (time.thread_time() - start)
        self._flush()
        start = time.thread_time()
        backward(pooled)
        return forward_ms, _MS_PER_SECOND * (time.thread_time() - start)

    def _flush(self) -> None:
        self._flushed += 1.0


class CudaTimer:
    """Time of the device, without the host's share."""

    def __init__(self, cuda: "CudaRuntime", *, is_cold: bool = True) -> None:
        """Time on the current stream of a device. ``is_cold``: with nothing of the calls in its cache."""
        self._cuda = cuda
        self._flushed_bytes = 2 * cuda.properties.L2_cache_size if is_cold else 0
        self._spin_cycles = _FIRST_SPIN_CYCLES
        self.is_host_bound = False
        """Whether some times include waiting for the host, since no spin was long enough."""

    def time_ms(self, forward: Callable[[], Pooled], backward: Callable[[Pooled], object]) -> tuple[float, float]:
        """Return the milliseconds of both calls. Calls them again, with a longer spin, if the device got ahead."""
        while True:
            self._flush()
            self._cuda.spin(self._spin_cycles)
            marks = [self._mark()]
            pooled = forward()
            marks.append(self._mark())
            self._flush()
            marks.append(self._mark())
            backward(pooled)
            marks.append(self._mark())
            host_was_ahead = not marks[0].query()
            self._cuda.synchronize()
            if host_was_ahead or self._spin_cycles >= _MAX_SPIN_CYCLES:
                self.is_host_bound |= not host_was_ahead
                return marks[0].elapsed_time(marks[1]), marks[2].elapsed_time(marks[3])
            self._spin_cycles *= 2

    def _flush(self) -> None:
        if self._flushed_bytes > 0:
            self._cuda.flush(self._flushed_bytes)

    def _mark(self) -> "CudaEvent":
        event = self._cuda.event()
        event.record()
        return event


class IdleCudaTimer:
    """Time of a device that is idle when the host begins to launch a call."""

    is_host_bound = True

    def __init__(self, cuda: "CudaRuntime") -> None:
        self._cuda = cuda

    def time_ms(self, forward: Callable[[], Pooled], backward: Callable[[Pooled], object]) -> tuple[float, float]:
        """Return the milliseconds of both calls, the waiting for the host included."""
        forward_ms, pooled = self._timed(forward)
        backward_ms, _ = self._timed(lambda: backward(pooled))
        return forward_ms, backward_ms

    def _timed(self, call: Callable[[], Pooled]) -> tuple[float, Pooled]:
        self._cuda.flush(2 * self._cuda.properties.L2_cache_size)
        self._cuda.synchronize()
        start, end = self._cuda.event(), self._cuda.event()
        start.record()
        result = call()
        end.record()
        self._cuda.synchronize()
        return start.elapsed_time(end), result


def median_times(
    call: Callable[[int], tuple[float, float]],
    repeats: Repeats,
    *,
    slowed_by: Callable[[], str | None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Return the medians of repeated calls.

    Args:
        call: makes the call of this number and returns its forward and backward milliseconds.
        repeats: how often; those of the warm-up do not count.
        slowed_by: what slows the device now; None where it runs at full speed. Calls that begin or end where it does
            not are left out and repeated, at most 3 * ``repeats.least`` of them. Where all calls are such, they count,
            and the times have the reasons as their disturbance.
        clock: seconds, for the length of the warm-up.
    """
    number = 0
    until = clock() + repeats.warm_up_ms / _MS_PER_SECOND
    while number < repeats.warm_up or clock() < until:
        call(number)
        number += 1
    undisturbed: list[tuple[float, float]] = []
    slowed: list[tuple[float, float]] = []
    total_ms = 0.0
    reasons: dict[str, None] = {}
    before = slowed_by()
    while len(slowed) < _SLOWED_PER_LEAST * repeats.least and (
        len(undisturbed) < repeats.least or (len(undisturbed) < repeats.most and total_ms < repeats.enough_ms)
    ):
        found = call(number + len(undisturbed) + len(slowed))
        after = slowed_by()
        if before is None and after is None:
            undisturbed.append(found)
            total_ms += sum(found)
        else:
            slowed.append(found)
            reasons.update(dict.fromkeys(filter(None, (before, after))))
        before = after
    timed = undisturbed or slowed
    times = np.array(timed)
    forward_ms, backward_ms = np.median(times, axis=0)
    return Times(
        forward_ms=float(forward_ms),
        backward_ms=float(backward_ms),
        spread=relative_spread(times.sum(axis=1)),
        num_repeats=len(times),
        disturbance=None if undisturbed else f"slowed by {'; '.join(reasons)}",
        conditions={"slowed_calls": f"{len(slowed)} of {len(undisturbed) + len(slowed)}"} if slowed else {},
    )


def relative_spread(times: np.ndarray) -> float:
    """Return the interquartile range as a share of the median; 0 where the median is 0."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float((high - low) / median) if median > 0 else 0.0


@contextmanager
def pinned_core(core: int) -> Iterator[None]:
    """Bind this process to one core while the context lasts."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
