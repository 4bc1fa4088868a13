"""Memory of a rank's device: what torch's allocator counts, and what is outside of it. Imports no torch by itself."""

import os
import resource
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Protocol

from neuroshard_api.process.allocator import ALLOCATOR_VARIABLES, EXPANDABLE_SEGMENTS, has_expandable_segments

if TYPE_CHECKING:
    import torch

_BYTES_PER_KIB = 1024


class CountsMemory(Protocol):
    """The part of torch.cuda that counts memory."""

    def max_memory_allocated(self, device: "torch.device") -> int:
        """Return the most bytes of tensors since the start."""
        ...

    def max_memory_reserved(self, device: "torch.device") -> int:
        """Return the most bytes that the allocator held since the start."""
        ...

    def mem_get_info(self, device: "torch.device") -> tuple[int, int]:
        """Return the free bytes of the device, and all of its bytes."""
        ...


def use_expandable_segments(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's allocator grow its segments, unless the user configures it. Asked before torch is imported.

    The lookups of a step vary from batch to batch, and with them the sizes of tensors. Segments of fixed sizes then
    hold memory that no tensor fits; those that grow give it to any.
    """
    if has_expandable_segments(environment) is None:
        environment[ALLOCATOR_VARIABLES[0]] = EXPANDABLE_SEGMENTS


def measured_memory(device: "torch.device", *, cuda: CountsMemory | None = None) -> dict[str, int]:
    """Return the memory of this rank by fields of a step report.

    Args:
        device: of this rank. On a CPU the peak is that of the process, and there is nothing else.
        cuda: counts. None: torch.cuda.
    """
    if device.type != "cuda":
        return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_KIB}
    if cuda is None:
        import torch  # noqa: PLC0415 - the allocator is configured before

        cuda = torch.cuda
    free, total = cuda.mem_get_info(device)
    return {
        "peak_memory_bytes": cuda.max_memory_allocated(device),
        "peak_reserved_bytes": cuda.max_memory_reserved(device),
        "device_used_bytes": total - free,
    }
