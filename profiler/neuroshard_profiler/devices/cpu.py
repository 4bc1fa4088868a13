"""One CPU core as a device: pinned, one thread, processor time, caches written over between calls.

Each process of a profile has a core of its own, so that all of them measure at once as the ranks of a training work at
once: they share caches and memory bandwidth.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_api.sharding.kernels import DeviceKind
from neuroshard_costs.fitting.versions import library_versions

from neuroshard_profiler.devices.base import EmbeddingCall, TimedSample, needed_bytes, sample_times
from neuroshard_profiler.devices.core_gauge import CORE_LOOP, CoreGauge
from neuroshard_profiler.devices.exchange_timers import CPU_EXCHANGES, ExchangeRepeats, HostExchangeTimer
from neuroshard_profiler.devices.timing import ThreadTimer, median_times, pinned_core
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from neuroshard_profiler.hardware import (
    available_memory_bytes,
    cpu_device,
    cpu_model,
    last_level_cache_bytes,
    total_memory_bytes,
)
from neuroshard_profiler.times import Repeats, Times

_GRADIENT = 1e-3
_MAX_FLUSHED_BYTES = 2**26
"""A core writes so much in some 10 ms; caches beyond half of it are shared by many cores, all of which use them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuDevice:
    """One core of this machine."""

    core: int
    kind: DeviceKind = "cpu"
    keeps_freed_memory: bool = False
    flushed_bytes: int = 0
    """Written between the calls. 0: caches stay warm."""
    repeats: Repeats = Repeats()  # noqa: RUF009 - frozen

    @classmethod
    def of_this_machine(cls, index: int = 0) -> "CpuDevice":
        """Return the core of this index, from the last one that the process may use on: the first serves interrupts.

        The process keeps the memory that it frees from now on, as NeuroShard's trainer does.
        """
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        core = cores[index % len(cores)]
        return cls(
            core=core,
            keeps_freed_memory=keep_freed_memory(),
            flushed_bytes=min(2 * last_level_cache_bytes(core), _MAX_FLUSHED_BYTES),
        )

    @property
    def torch(self) -> torch.device:
        """The same in torch's words."""
        return torch.device("cpu")

    @property
    def source(self) -> str:
        """The label of its records."""
        return f"cpu:{cpu_model()}"

    @property
    def total_memory_bytes(self) -> int:
        """Memory of this machine."""
        return total_memory_bytes()

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return the core's numbers, and its share of the memory."""
        with pinned_core(self.core):
            return cpu_device(num_processes=num_processes, core=self.core)

    def environment(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Return libraries and settings."""
        return {
            **library_versions(("torch", *packages)),
            "kernel": platform.release(),
            "threads": "1, pinned",
            "freed_memory": "kept" if self.keeps_freed_memory else "returned",
            "flushed_bytes": str(self.flushed_bytes),
        }

    def exchanges(self) -> tuple[HostExchangeTimer, ExchangeRepeats]:
        """Return the host's clock, and few exchanges of at most 32 MiB: gloo copies them through memory."""
        return HostExchangeTimer(), CPU_EXCHANGES

    def measure(
        self,
        sample: TimedSample,
        build: Callable[[], EmbeddingCall],
        repeats: Repeats,
        *,
        is_idle: bool = False,  # noqa: ARG002 - a core is its own host
        is_cold: bool = True,
    ) -> Times:
        """Time the calls that ``build`` makes ready. Raises OutOfDeviceMemoryError or KernelError."""
        if needed_bytes(sample) > available_memory_bytes():
            # Linux grants memory that it does not have and kills later, so it is asked before.
            raise OutOfDeviceMemoryError(f"the sample needs {needed_bytes(sample)} bytes")
        with _alone(self.core):
            return sample_times(lambda: self._timed(build(), repeats, is_cold=is_cold))

    def _timed(self, embedding: EmbeddingCall, repeats: Repeats, *, is_cold: bool) -> Times:
        timer = ThreadTimer(flushed_bytes=self.flushed_bytes if is_cold else 0)
        gradient = torch.full_like(embedding.forward(0), _GRADIENT)
        gauge = CoreGauge()
        times = median_times(
            lambda number: timer.time_ms(
                lambda: embedding.forward(number), lambda pooled: embedding.backward(pooled, gradient)
            ),
            repeats,
            slowed_by=gauge.slowed_by,
        )
        return times.under({CORE_LOOP: f"{gauge.full_speed_ms:.5f}"})


@contextmanager
def _alone(core: int) -> Iterator[None]:
    """One thread, on one core."""
    threads = torch.get_num_threads()
    with pinned_core(core):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
