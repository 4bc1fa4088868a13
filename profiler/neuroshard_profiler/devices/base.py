"""What every device promises to the backends that time calls on it. Knows no kernels."""

import gc
from collections.abc import Callable
from typing import Protocol

import torch
from neuroshard_api.documents.records import (
    MAX_FAILURE_CHARACTERS,
    CodecSample,
    ComputeSample,
    ExpansionSample,
    MatrixSample,
)
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import DeviceKind
from neuroshard_costs.shards import BYTES_PER_ELEMENT, INDEX_BYTES, state_row_bytes
from torch import Tensor

from neuroshard_profiler.devices.exchange_timers import ExchangeRepeats, ExchangeTimer
from neuroshard_profiler.errors import DeviceLostError, KernelError, OutOfDeviceMemoryError, UnusableSampleError
from neuroshard_profiler.times import Repeats, Times

TimedSample = ComputeSample | ExpansionSample | CodecSample | MatrixSample
"""What is timed in a pair of calls, forward and backward."""
_FP32_BYTES = 4
_MEMORY_MESSAGES = ("DefaultCPUAllocator", "CUDA error: out of memory")
"""Of torch's allocator on CPUs, and of the driver's cudaErrorMemoryAllocation, which comes for memory that torch's
allocator on GPUs does not hold (pinned, managed), and does not lose the device."""


class EmbeddingCall(Protocol):
    """Tables with the batches that are looked up in turn."""

    def forward(self, number: int) -> Tensor:
        """Return the pooled embeddings [batch, columns of all tables] of the call of this number."""
        ...

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Bring a gradient back into the tables, the optimizer's update included."""
        ...


class TimedDevice(Protocol):
    """One core, or one GPU."""

    @property
    def kind(self) -> DeviceKind:
        """What it is."""
        ...

    @property
    def torch(self) -> torch.device:
        """The same in torch's words."""
        ...

    @property
    def source(self) -> str:
        """The label of its records."""
        ...

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the GPU, or of this machine."""
        ...

    @property
    def repeats(self) -> Repeats:
        """How often its calls are timed."""
        ...

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return the device's numbers. ``num_processes`` of a node share a CPU's memory."""
        ...

    def environment(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Return driver, libraries, and settings."""
        ...

    def exchanges(self) -> tuple[ExchangeTimer, ExchangeRepeats]:
        """Return the timer of this device's part of collectives, their number, and their sizes."""
        ...

    def measure(
        self,
        sample: TimedSample,
        build: Callable[[], EmbeddingCall],
        repeats: Repeats,
        *,
        is_idle: bool = False,
        is_cold: bool = True,
    ) -> Times:
        """Time the calls that ``build`` makes ready.

        Args:
            sample: what they look up.
            build: makes tables and batches.
            repeats: how often.
            is_idle: whether a GPU is idle at the start of each call, so that the host's launches count. A CPU is its
                own host, whose launches always count.
            is_cold: whether nothing of a call is in the caches when it begins. Otherwise what the last one left there.

        Raises:
            OutOfDeviceMemoryError: the sample does not fit.
            DeviceLostError: the device refuses every call from now on.
            KernelError: a kernel failed, and the next sample may succeed.
        """
        ...


def sample_times(measure: Callable[[], Times]) -> Times:
    """Return the times of a sample, or raise what torch raised for it as an error that ends this sample only.

    The error holds no frame of the sample: as long as one lives, so do its tables, and the next sample is measured in
    the memory that they leave. A frame that holds its own exception is a cycle, which only the collector frees.

    Raises:
        OutOfDeviceMemoryError: the sample does not fit.
        DeviceLostError: the driver failed; CUDA reports such an error again at every later call of the process.
        KernelError: a kernel refused the sample, or failed.
    """
    try:
        return measure()
    except RuntimeError as error:
        failure = _sample_failure(error)
    gc.collect()
    raise failure


def _sample_failure(error: RuntimeError) -> UnusableSampleError:
    reason = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _MEMORY_MESSAGES):
        return OutOfDeviceMemoryError(reason)
    return DeviceLostError(reason) if isinstance(error, torch.AcceleratorError) else KernelError(reason)


def needed_bytes(sample: TimedSample) -> int:
    """Return the bytes of a sample's weights, optimizer state, inputs, and pooled embeddings.

    Copies have pooled embeddings alone, before and after, and the gradients of both. Codecs have values as they were,
    in a type that is not wider, and decoded. Layers have inputs, weights, outputs, and the gradients of each.
    """
    if isinstance(sample, MatrixSample):
        sides = sample.num_inputs + sample.num_outputs
        return 2 * _FP32_BYTES * (sample.batch_size * sides + sample.num_inputs * sample.num_outputs)
    if isinstance(sample, CodecSample):
        return 3 * _FP32_BYTES * sample.num_values
    if isinstance(sample, ExpansionSample):
        return 4 * _FP32_BYTES * sample.batch_size * sample.num_features * sample.embedding_dim
    total = 0.0
    for table in sample.tables:
        row_bytes = table.embedding_dim * BYTES_PER_ELEMENT[table.data_type]
        total += table.num_embeddings * (row_bytes + state_row_bytes(sample.optimizer, table.embedding_dim))
        total += sample.batch_size * (INDEX_BYTES * (1 + table.pooling_factor) + 2 * _FP32_BYTES * table.embedding_dim)
    return int(total)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind, as records have it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_FAILURE_CHARACTERS]
