"""What a device needs besides tensors: memory outside torch's allocator, and what the allocator cannot give out.

Outside are CUDA's context, libraries, and NCCL's buffers. Inside, the allocator holds segments of the driver's memory
and gives out parts of them. A step asks for tensors of other sizes on several streams, so that free parts are left over
that no request fits. Weights and optimizer state are allocated once and leave no gaps: the gaps follow the *moving*
part, which is allocated and freed in each step.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from neuroshard_api.documents.request import PlanRequest

from neuroshard_costs.shards import IndexArray

OUTSIDE_BYTES = 5 * 2**29
"""Used on the device but not held by torch's allocator: 1.0 to 2.7 GB on two A100 of 80 GB, in the messages of
TorchRec's pipeline benchmark (pull requests 3580, 3770, 4008, 4067; the highest is 4008)."""
MOST_OUTSIDE = 1 / 16
"""Largest share of a device that is outside: on a small one, contexts and channels are smaller."""
GAPS_EXPANDABLE = 0.18
"""Gaps over the moving part with segments that grow (expandable_segments:True), and without: one model in both ways on
an A100, no retry of malloc (TorchRec's pull request 4375). Without, gaps of up to 0.9 were published; of these the
allocator gives back what it can before it fails."""
GAPS_FIXED = 0.37


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserve:
    """Bytes of a device that no tensor may take: a fixed part, and a share of the moving part."""

    fixed_bytes: int
    gap_share: float

    @classmethod
    def of(cls, request: PlanRequest, *, capacity_bytes: int) -> Self:
        """Return the reserve of a request's devices.

        Args:
            request: says what is kept free, or leaves it to the rule.
            capacity_bytes: what the tensors and the reserve may take. Where it is less than the device's memory, the
                rest is room for what is outside.
        """
        memory, device_bytes = request.memory, request.topology.device.memory_bytes
        if memory.reserve_fraction is not None:
            return cls(fixed_bytes=memory.reserve_bytes + int(memory.reserve_fraction * capacity_bytes), gap_share=0.0)
        outside = min(OUTSIDE_BYTES, int(MOST_OUTSIDE * device_bytes))
        gap_share = GAPS_EXPANDABLE if memory.expandable_segments else GAPS_FIXED
        return cls(
            fixed_bytes=memory.reserve_bytes + max(0, outside - (device_bytes - capacity_bytes)),
            gap_share=0.0 if request.topology.device.is_cpu else gap_share,  # malloc gives large blocks back
        )

    def gap_bytes(self, moving_bytes: int) -> int:
        """Return the gaps next to that many moving bytes."""
        return int(self.gap_share * moving_bytes)

    def with_gaps(self, moving_bytes: IndexArray) -> IndexArray:
        """Return moving bytes of shards and their gaps, [n]; together never less than the gaps of the sum."""
        size: IndexArray = moving_bytes + np.ceil(self.gap_share * moving_bytes).astype(np.int64)
        return size


def least_memory(request: PlanRequest, *, tensor_bytes: int) -> int:
    """Return the least memory of a device on which tensors and their gaps may take that many bytes.

    Args:
        request: says what is kept free, or leaves it to the rule.
        tensor_bytes: with their gaps, without the fixed part of the reserve.
    """
    memory = request.memory
    needed = tensor_bytes + memory.reserve_bytes
    if memory.reserve_fraction is not None:
        return -int(-needed // (1 - memory.reserve_fraction))
    return min(needed + OUTSIDE_BYTES, -int(-needed // (1 - MOST_OUTSIDE)) + 1)
