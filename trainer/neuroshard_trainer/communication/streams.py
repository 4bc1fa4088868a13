"""Memory of tensors that one stream makes and another one reads, for torch's allocator. Queues no work.

A callback of a collective's future runs on a separate stream. Once it has returned on the host, nothing holds the
tensors that it reads, and the allocator gives their memory to the stream that made them, whose next kernel may write
there before the callback's kernel has read. torch.Tensor.record_stream keeps such memory until the reader is done.
"""

from collections.abc import Callable
from typing import Protocol

import torch


class DeviceTensor(Protocol):
    """The part of a tensor that concerns the allocator."""

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU; the host has no streams."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it is."""
        ...

    def record_stream(self, stream: torch.Stream, /) -> None:
        """Keep the memory until everything that the stream has queued so far is done."""


def used_on_this_stream(
    *tensors: DeviceTensor, current_stream: Callable[[torch.device], torch.Stream] = torch.cuda.current_stream
) -> None:
    """Keep the memory of tensors that kernels on the current stream read, which other streams may have made."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(current_stream(tensor.device))
