"""One GPU as a device: times of the device itself, cold caches, warm clocks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import DeviceKind
from neuroshard_costs.fitting.versions import library_versions

from neuroshard_profiler.devices.base import EmbeddingCall, TimedSample, sample_times
from neuroshard_profiler.devices.cuda_runtime import CudaRuntime, TorchCuda
from neuroshard_profiler.devices.exchange_timers import CudaExchangeTimer, ExchangeRepeats, gpu_exchanges
from neuroshard_profiler.devices.nvml import Clocks, clocks_of
from neuroshard_profiler.devices.timing import HOST_BOUND, CudaTimer, IdleCudaTimer, median_times
from neuroshard_profiler.times import Repeats, Times

CUDA_REPEATS = Repeats(warm_up=3, warm_up_ms=100.0, least=5, most=101, enough_ms=100.0)
"""Drawing a sample takes the host seconds, in which an idle GPU lowers its clocks: 100 ms of calls raise them."""
_GRADIENT = 1e-3
_COPIES = 20
_IN_CACHE = 4  # an array of this fraction of a cache stays in it
_BEYOND_CACHE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaDevice:
    """One GPU of this node."""

    cuda: CudaRuntime
    kind: DeviceKind = "cuda"
    repeats: Repeats = CUDA_REPEATS
    clocks: Callable[[], Clocks] = Clocks
    """Reads the clocks and what holds them down."""

    @classmethod
    def of_this_node(cls, index: int) -> "CudaDevice":
        """Return the GPU of this index; the process drives it from now on."""
        cuda = TorchCuda(index)
        return cls(cuda=cuda, clocks=clocks_of(cuda.properties.uuid))

    @property
    def torch(self) -> torch.device:
        """The same in torch's words."""
        return torch.device("cuda", self.cuda.index)

    @property
    def source(self) -> str:
        """The label of its records."""
        return f"measured:{self.cuda.properties.name}"

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the GPU."""
        return self.cuda.properties.total_memory

    def describe(self, *, num_processes: int) -> DeviceType:  # noqa: ARG002 - a GPU's memory is its own
        """Return the device's numbers: a preset's for a GPU that is known, else those of driver and measured copies."""
        product = self.cuda.properties.name.replace(" ", "-")
        known = next((each for each in load_presets().values() if each.device.product == product), None)
        return known.device if known else self._described(product)

    def environment(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Return driver, libraries, and the highest clock."""
        return {
            **library_versions(("torch", *packages)),
            **self.cuda.versions,
            "max_clock_mhz": str(self.cuda.properties.clock_rate // 1000),
        }

    def exchanges(self) -> tuple[CudaExchangeTimer, ExchangeRepeats]:
        """Return events of the device, and exchanges of at most 2 GiB, as the free memory allows."""
        return CudaExchangeTimer(self.cuda), gpu_exchanges(self.cuda.free_bytes)

    def measure(
        self,
        sample: TimedSample,  # noqa: ARG002 - the GPU itself refuses what it has no memory for
        build: Callable[[], EmbeddingCall],
        repeats: Repeats,
        *,
        is_idle: bool = False,
        is_cold: bool = True,
    ) -> Times:
        """Time the calls that ``build`` makes ready. Raises OutOfDeviceMemoryError, DeviceLostError, or KernelError."""
        try:
            return sample_times(lambda: self._timed(build(), repeats, is_idle=is_idle, is_cold=is_cold))
        finally:
            self.cuda.empty_cache()

    def _timed(self, embedding: EmbeddingCall, repeats: Repeats, *, is_idle: bool, is_cold: bool) -> Times:
        timer = IdleCudaTimer(self.cuda) if is_idle else CudaTimer(self.cuda, is_cold=is_cold)
        gradient = torch.full_like(embedding.forward(0), _GRADIENT)

        def call(number: int) -> tuple[float, float]:
            return timer.time_ms(lambda: embedding.forward(number), lambda pooled: embedding.backward(pooled, gradient))

        times = median_times(call, repeats, slowed_by=lambda: self.clocks().slowed_by)
        if timer.is_host_bound and not is_idle:
            times = replace(times, disturbance=times.disturbance or HOST_BOUND)
        return times.under({**self.clocks().conditions, "timed": "host" if timer.is_host_bound else "device"})

    def _described(self, product: str) -> DeviceType:
        properties = self.cuda.properties
        return DeviceType(
            name=product.lower(),
            product=product,
            memory_bytes=properties.total_memory,
            memory_bandwidth_bytes_per_second=self._copy_bytes_per_second(_BEYOND_CACHE * properties.L2_cache_size),
            cache_bytes=properties.L2_cache_size,
            cache_bandwidth_bytes_per_second=self._copy_bytes_per_second(properties.L2_cache_size // _IN_CACHE),
            num_multiprocessors=properties.multi_processor_count,
            clock_hz=1e3 * properties.clock_rate,
            source="the driver, and measured copies",
        )

    def _copy_bytes_per_second(self, num_bytes: int) -> float:
        """Return bytes read and written per second by copies of arrays of this size.

        The arrays are given back: another process profiles this GPU.
        """
        copies_ms = self._copies_ms(num_bytes)
        self.cuda.empty_cache()
        return 2e3 * _COPIES * num_bytes / copies_ms

    def _copies_ms(self, num_bytes: int) -> float:
        copy = self.cuda.copier(num_bytes)
        timer = CudaTimer(self.cuda, is_cold=False)

        def copies() -> None:
            for _ in range(_COPIES):
                copy()

        return median_times(lambda _: timer.time_ms(copies, lambda _: None), self.repeats).forward_ms
