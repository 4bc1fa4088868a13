"""The CPU core or the GPU that a torch backend times on: label, timer, memory. Knows no kernels."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from neuroshard_api.records import ComputeSample
from neuroshard_api.tables import Optimizer
from neuroshard_planner.costs.shards import BYTES_PER_ELEMENT
from torch import Tensor

from neuroshard_profiler.backends.base import Repeats, Times
from neuroshard_profiler.errors import OutOfDeviceMemoryError, SettingsError
from neuroshard_profiler.hardware import available_memory_bytes, cpu_model, driver_version, library_versions
from neuroshard_profiler.timing import CudaTimer, ThreadTimer, Timer, median_times, pinned_core

DeviceKind = Literal["cpu", "cuda"]

_STATE_ELEMENTS = {Optimizer.SGD: 0, Optimizer.ROWWISE_ADAGRAD: 0, Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2}
_FP32_BYTES = 4
_INDEX_BYTES = 8
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

    @classmethod
    def of_kind(cls, kind: DeviceKind | None) -> "TorchDevice":
        """Return the device to time on. ``kind`` None: the GPU if there is one. Raises SettingsError."""
        if kind == "cuda" and not torch.cuda.is_available():
            raise SettingsError("there is no GPU that torch can use here; profile the CPU, or check the driver")
        return cls(kind=kind or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def torch(self) -> torch.device:
        """The same in torch's words."""
        return torch.device(self.kind)

    @property
    def source(self) -> str:
        """The label of its records."""
        return f"cpu:{cpu_model()}" if self.kind == "cpu" else f"measured:{torch.cuda.get_device_name()}"

    def environment(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Return driver, libraries and clocks."""
        found = library_versions(("torch", *packages))
        if self.kind == "cpu":
            return {**found, "kernel": platform.release(), "threads": "1, pinned"}
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
        return CudaTimer(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)

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
