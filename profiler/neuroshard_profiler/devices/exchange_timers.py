"""Timers of a collective on one rank: from its own start to its end. Know no collectives.

On CPUs a call returns when it is done, so the clock is the host's. On GPUs it is the device's: events around the
collective on the current stream, which NCCL's own stream waits for and is waited for by. A kernel that spins lets the
host queue everything before the device begins; a collective of a few bytes after it makes all devices begin together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from neuroshard_profiler.devices.cuda_runtime import CudaRuntime

_MS_PER_SECOND = 1000.0
_FIRST_SPIN_CYCLES = 2**22
_MAX_SPIN_CYCLES = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeRepeats:
    """How often an exchange is timed, and how large exchanges are."""

    warm_up: int
    timed: int
    link_bytes: int
    """Sent to each peer where bandwidth is measured: long against the latency, small against the memory."""
    max_bytes: int
    """Most that the fullest device sends in all."""


CPU_EXCHANGES = ExchangeRepeats(warm_up=2, timed=9, link_bytes=2**23, max_bytes=2**25)
GPU_EXCHANGES = ExchangeRepeats(warm_up=5, timed=21, link_bytes=2**26, max_bytes=2**31)
_COPIES_OF_AN_EXCHANGE = 8
"""Buffers of one exchange: input, registered copy, received, side by side, permuted; and as much again for NCCL."""


def gpu_exchanges(free_bytes: int) -> ExchangeRepeats:
    """Return the settings for a GPU with so much free memory: exchanges as large as a job's, if they fit."""
    fitting = min(GPU_EXCHANGES.max_bytes, free_bytes // _COPIES_OF_AN_EXCHANGE)
    return ExchangeRepeats(
        warm_up=GPU_EXCHANGES.warm_up,
        timed=GPU_EXCHANGES.timed,
        link_bytes=GPU_EXCHANGES.link_bytes,
        max_bytes=fitting,
    )


class ExchangeTimer(Protocol):
    """Times a collective on this rank."""

    @property
    def fell_behind(self) -> bool:
        """Whether some times include waiting for the host, which a longer spin may hide."""
        ...

    def time_ms(self, barrier: Callable[[], object], call: Callable[[], object], *, offset_ms: float = 0.0) -> float:
        """Return the milliseconds of a call that starts so long after the barrier."""
        ...

    def spin_longer(self) -> bool:
        """Forget that the timer fell behind, and spin longer from now on. False: there is nothing longer."""
        ...


class HostExchangeTimer:
    """The host's clock."""

    fell_behind = False

    def time_ms(self, barrier: Callable[[], object], call: Callable[[], object], *, offset_ms: float = 0.0) -> float:
        """Return the milliseconds of a call."""
        barrier()
        until = time.perf_counter() + offset_ms / _MS_PER_SECOND
        while time.perf_counter() < until:
            pass
        start = time.perf_counter()
        call()
        return _MS_PER_SECOND * (time.perf_counter() - start)

    def spin_longer(self) -> bool:
        """Return False: nothing is queued."""
        return False


class CudaExchangeTimer:
    """Events of the device."""

    def __init__(self, cuda: CudaRuntime) -> None:
        self._cuda = cuda
        self._spin_cycles = _FIRST_SPIN_CYCLES
        self._cycles_per_ms: float | None = None
        """Of the clock at the last late start. The driver tells the highest clock alone, which a power cap lowers."""
        self.fell_behind = False

    def time_ms(self, barrier: Callable[[], object], call: Callable[[], object], *, offset_ms: float = 0.0) -> float:
        """Return the milliseconds of a call. ``barrier`` queues a collective and does not wait for it."""
        cycles_per_ms = self._cycles_per_ms or (self._measured_cycles_per_ms() if offset_ms > 0 else 0.0)
        self._cuda.spin(self._spin_cycles)
        barrier()
        late_start, start, end = self._cuda.event(), self._cuda.event(), self._cuda.event()
        late_start.record()
        cycles = int(offset_ms * cycles_per_ms)
        if cycles > 0:
            self._cuda.spin(cycles)
        start.record()
        call()
        end.record()
        self.fell_behind |= start.query()
        self._cuda.synchronize()
        if cycles > 0:
            self._cycles_per_ms = cycles / late_start.elapsed_time(start)
        return start.elapsed_time(end)

    def _measured_cycles_per_ms(self) -> float:
        """Return the clock by a spin between two events, on a device that spins before, so that no launch counts."""
        begin, end = self._cuda.event(), self._cuda.event()
        self._cuda.spin(_FIRST_SPIN_CYCLES)
        begin.record()
        self._cuda.spin(_FIRST_SPIN_CYCLES)
        end.record()
        self._cuda.synchronize()
        return _FIRST_SPIN_CYCLES / begin.elapsed_time(end)

    def spin_longer(self) -> bool:
        """Spin twice as long from now on."""
        self.fell_behind = False
        if self._spin_cycles >= _MAX_SPIN_CYCLES:
            return False
        self._spin_cycles *= 2
        return True
