"""Copies of pooled embeddings from servers to a trainer's GPU, and of their gradients back.

Gloo exchanges tensors in host memory. A copy between a GPU and pages that are not locked goes through pages of the
driver's, and the host waits for it. Through locked pages of torch's allocator the GPU copies by itself, and a trainer
waits for gradients alone, which gloo sends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

Locked = Callable[[torch.Tensor], torch.Tensor]
"""Returns locked memory of the host, of the shape and type of a tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCopies:
    """Copies to and from one device."""

    device: torch.device
    locked: Locked
    wait: Callable[[], None]
    """Waits for the work that the device has been asked for."""

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        """Return host values on the device, whose later work has them; the host does not wait."""
        return self.locked(values).copy_(values).to(self.device, non_blocking=True)

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the device in host memory, where they are there."""
        copied = self.locked(values).copy_(values, non_blocking=True)
        self.wait()
        return copied


def copies_of(device: torch.device) -> DeviceCopies | None:
    """Return the copies of a trainer's device. None: it computes in host memory."""
    if device.type == "cpu":
        return None
    return DeviceCopies(
        device=device,
        locked=partial(torch.empty_like, device="cpu", pin_memory=True),
        wait=lambda: torch.cuda.current_stream(device).synchronize(),
    )
