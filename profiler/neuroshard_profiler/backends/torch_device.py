"""The CPU core or the GPU that a torch backend times on: label, timer, memory. Knows no kernels."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from neuroshard_api.host_memory import keep_freed_memory
from neuroshard_api.presets import load_presets
from neuroshard_api.records import ComputeSample
from neuroshard_api.tables import Optimizer
from neuroshard_api.topology import DeviceType
from neuroshard_costs.fitting.versions import library_versions
from neuroshard_costs.shards import BYTES_PER_ELEMENT
from torch import Tensor

from neuroshard_profiler.backends.base import DeviceKind, Repeats, Times
from neuroshard_profiler.errors import OutOfDeviceMemoryError, SettingsError
from neuroshard_profiler.hardware import (
    available_memory_bytes,
    cpu_device,
    cpu_model,
    driver_version,
    total_memory_bytes,
)
from neuroshard_profiler.timing import CudaTimer, ThreadTimer, Timer, median_times, pinned_core

_STATE_ELEMENTS = {Optimizer.SGD: 0, Optimizer.ROWWISE_ADAGRAD: 0, Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2}
_FP32_BYTES = 4
_INDEX_BYTES = 8
_COPIES = 20
_ALLOCATOR_MESSAGE = "DefaultCPUAllocator"


class EmbeddingCall(Protocol):
    """Tables with the batches that are looked up in turn."""

    def forward(self, number: int) -> Tensor:
        """Return the pooled embeddings [batch, columns of all tables] of the call of this number."""
        ...

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Bring a gradient back into the tables, the optimizer's update included."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchDevice:
    """One core, or one GPU."""

    kind: DeviceKind
    keeps_freed_memory: bool = False

    @classmethod
    def of_kind(cls, kind: DeviceKind | None) -> "TorchDevice":
        """Return the device to time on. ``kind`` None: the GPU if there is one. Raises SettingsError.

        On a CPU the process keeps the memory that it frees from now on, as NeuroShard's trainer does.
        """
        if kind == "cuda" and not torch.cuda.is_available():
            raise SettingsError("there is no GPU that torch can use here; profile the CPU, or check the driver")
        chosen = kind or ("cuda" if torch.cuda.is_available() else "cpu")
        return cls(kind=chosen, keeps_freed_memory=chosen == "cpu" and keep_freed_memory())

    @property
    def torch(self) -> torch.device:
        """The same in torch's words."""
        return torch.device(self.kind)

    @property
    def source(self) -> str:
        """The label of its records."""
        return f"cpu:{cpu_model()}" if self.kind == "cpu" else f"measured:{torch.cuda.get_device_name()}"

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the GPU, or of this machine."""
        if self.kind == "cpu":
            return total_memory_bytes()
        return int(torch.cuda.get_device_properties(0).total_memory)

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return the device's numbers: a preset's for a GPU that is known, else what the system tells.

        Args:
            num_processes: of a node, which share a CPU's memory.
        """
        if self.kind == "cpu":
            with pinned_core() as core:
                return cpu_device(num_processes=num_processes, core=core)
        product = torch.cuda.get_device_name().replace(" ", "-")
        known = next((each for each in load_presets().values() if each.device.product == product), None)
        return known.device if known else _described_gpu(product)

    def environment(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Return driver, libraries and clocks."""
        found = library_versions(("torch", *packages))
        if self.kind == "cpu":
            freed = "kept" if self.keeps_freed_memory else "returned"
            return {**found, "kernel": platform.release(), "threads": "1, pinned", "freed_memory": freed}
        properties = torch.cuda.get_device_properties(0)
        found["driver"] = driver_version() or "unknown"
        found["cuda"] = torch.version.cuda or "unknown"
        found["clock_mhz"] = str(getattr(properties, "clock_rate", 0) // 1000)
        return found

    def measure(self, sample: ComputeSample, build: Callable[[], EmbeddingCall], repeats: Repeats) -> Times:
        """Time the calls that ``build`` makes ready. Raises OutOfDeviceMemoryError."""
        if self.kind == "cpu" and needed_bytes(sample) > available_memory_bytes():
            # Linux grants what it does not have and kills later, so it is asked before.
            raise OutOfDeviceMemoryError(f"the sample needs {needed_bytes(sample)} bytes")
        try:
            with self._alone():
                return self._timed(build(), repeats)
        except torch.OutOfMemoryError as error:
            raise OutOfDeviceMemoryError(str(error)) from error
        except RuntimeError as error:
            if _ALLOCATOR_MESSAGE in str(error):
                raise OutOfDeviceMemoryError(str(error)) from error
            raise
        finally:
            if self.kind == "cuda":
                torch.cuda.empty_cache()

    def _timed(self, embedding: EmbeddingCall, repeats: Repeats) -> Times:
        timer = self._timer()
        gradient = torch.full_like(embedding.forward(0), 1e-3)

        def call(number: int) -> tuple[float, float]:
            timer.mark()
            pooled = embedding.forward(number)
            timer.mark()
            embedding.backward(pooled, gradient)
            timer.mark()
            return timer.elapsed_ms()

        return median_times(call, repeats)

    def _timer(self) -> Timer:
        if self.kind == "cpu":
            return ThreadTimer()
        return _cuda_timer()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """On a CPU: one thread, on one core."""
        threads = torch.get_num_threads()
        with pinned_core() if self.kind == "cpu" else nullcontext():
            torch.set_num_threads(1)
            try:
                yield
            finally:
                torch.set_num_threads(threads)


def _described_gpu(product: str) -> DeviceType:
    """Describe a GPU that is no preset by what its driver tells and by measured copies."""
    properties = torch.cuda.get_device_properties(0)
    cache_bytes = int(properties.L2_cache_size)
    return DeviceType(
        name=product.lower(),
        product=product,
        memory_bytes=properties.total_memory,
        memory_bandwidth_bytes_per_second=_gpu_copy_bytes_per_second(16 * cache_bytes),
        cache_bytes=cache_bytes,
        cache_bandwidth_bytes_per_second=_gpu_copy_bytes_per_second(cache_bytes // 4),
        num_multiprocessors=properties.multi_processor_count,
        clock_hz=1e3 * properties.clock_rate,
        source="the driver, and measured copies",
    )


def _gpu_copy_bytes_per_second(num_bytes: int) -> float:
    """Return bytes read and written per second by copies of arrays of this size."""
    source = torch.ones(num_bytes // 4, device="cuda")
    target = torch.empty_like(source)
    timer = _cuda_timer()

    def copies(_: int) -> tuple[float, float]:
        timer.mark()
        for _ in range(_COPIES):
            target.copy_(source)
        timer.mark()
        timer.mark()
        return timer.elapsed_ms()

    return 2e3 * _COPIES * num_bytes / median_times(copies, Repeats()).forward_ms


def _cuda_timer() -> CudaTimer:
    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    return CudaTimer(event, torch.cuda.synchronize)


def needed_bytes(sample: ComputeSample) -> int:
    """Return what weights, optimizer state, inputs and pooled embeddings of a sample need."""
    state = _STATE_ELEMENTS[sample.optimizer]
    total = 0.0
    for table in sample.tables:
        elements = table.num_embeddings * table.embedding_dim
        total += elements * (BYTES_PER_ELEMENT[table.data_type] + state * _FP32_BYTES)
        total += table.num_embeddings * _FP32_BYTES * (sample.optimizer == Optimizer.ROWWISE_ADAGRAD)
        total += sample.batch_size * (_INDEX_BYTES * (1 + table.pooling_factor) + 2 * _FP32_BYTES * table.embedding_dim)
    return int(total)
