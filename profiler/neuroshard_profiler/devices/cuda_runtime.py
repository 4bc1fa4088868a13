"""The part of torch.cuda that the profiler needs, as a Protocol: tests put a stream that follows CUDA's rules there."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from neuroshard_api.process.gpu_driver import driver_version


class CudaEvent(Protocol):
    """A point in a stream, as torch.cuda.Event."""

    def record(self) -> None:
        """Queue the event behind everything queued so far."""

    def query(self) -> bool:
        """Return whether the device has reached it."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:  # noqa: ANN401 - an event of the same maker
        """Return the milliseconds to a later event of the same kind.

        Raises RuntimeError unless the device has reached both.
        """
        ...


class Properties(Protocol):
    """What the driver tells of a device, as torch.cuda.get_device_properties."""

    @property
    def name(self) -> str:
        """Product."""
        ...

    @property
    def uuid(self) -> object:
        """Unique identifier; its text is hexadecimal."""
        ...

    @property
    def total_memory(self) -> int:
        """Bytes."""
        ...

    @property
    def L2_cache_size(self) -> int:  # noqa: N802 - torch's name
        """Bytes."""
        ...

    @property
    def multi_processor_count(self) -> int:
        """Streaming multiprocessors."""
        ...

    @property
    def clock_rate(self) -> int:
        """Highest clock in kHz."""
        ...


class CudaRuntime(Protocol):
    """One device and its current stream."""

    @property
    def index(self) -> int:
        """Of the device among the visible ones."""
        ...

    @property
    def properties(self) -> Properties:
        """What the driver tells."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Driver, CUDA, and NCCL."""
        ...

    @property
    def free_bytes(self) -> int:
        """Memory that nobody has taken."""
        ...

    def event(self) -> CudaEvent:
        """Return an event with a time."""
        ...

    def spin(self, cycles: int) -> None:
        """Queue a kernel that does nothing for a number of cycles of the multiprocessors' clock."""

    def flush(self, num_bytes: int) -> None:
        """Queue a read of that many bytes, which replaces whatever the caches hold, written lines too."""

    def copier(self, num_bytes: int) -> Callable[[], object]:
        """Return a function that queues one copy of that many bytes."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done everything queued."""

    def empty_cache(self) -> None:
        """Give unused memory back to the driver."""


class TorchCuda:
    """A GPU of this node through torch."""

    def __init__(self, index: int) -> None:
        """Make it the current device of the process."""
        self.index = index
        torch.cuda.set_device(index)
        self.properties: Properties = torch.cuda.get_device_properties(index)
        self._flushed: torch.Tensor | None = None

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """Driver, CUDA, and NCCL."""
        return cuda_versions()

    @property
    def free_bytes(self) -> int:
        """Memory that nobody has taken."""
        free, _ = torch.cuda.mem_get_info(self.index)
        return int(free)

    def event(self) -> CudaEvent:
        """Return an event with a time."""
        event: CudaEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
        return event

    def spin(self, cycles: int) -> None:
        """Queue a kernel that spins."""
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call] # noqa: SLF001 - used by torch's own tests

    def flush(self, num_bytes: int) -> None:
        """Queue a sum over a buffer that is kept for the next time.

        A write would leave the cache full of lines that the next kernel has to bring to the memory: 50 MB, some 16 us
        at 3 TB/s, as long as a short call takes.
        """
        if self._flushed is None or self._flushed.nbytes < num_bytes:
            self._flushed = torch.zeros(
                -(-num_bytes // 4), dtype=torch.float32, device=torch.device("cuda", self.index)
            )
        self._flushed.sum()

    def copier(self, num_bytes: int) -> Callable[[], object]:
        """Return a function that queues one copy."""
        source = torch.ones(num_bytes, dtype=torch.uint8, device=torch.device("cuda", self.index))
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def empty_cache(self) -> None:
        """Give unused memory back, the buffer of ``flush`` too."""
        self._flushed = None
        torch.cuda.empty_cache()


def cuda_versions() -> dict[str, str]:
    """Return the versions of the kernel's driver, of the CUDA that torch was built for, and of its NCCL."""
    nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else ()  # type: ignore[no-untyped-call] # torch's
    return {
        "driver": driver_version() or "unknown",
        "cuda": torch.version.cuda or "unknown",
        "nccl": ".".join(map(str, nccl)) or "none",
    }
