"""Gradients of which only the largest entries are sent: those at or above a threshold, as many as there is room for.

    all-gather of every rank's message  ->  sums, in the order of the ranks, over their number

A message, in bytes of n entries in blocks of 65,536 with room for r of them:

    4 for each block        how many of its entries follow
    2 r                     position of each in its block
    2 r                     value of each, in BF16

What is left over includes what rounding takes of a value, so that sent and carried values add up to the gradient bit
by bit. No count reaches the host: the room is fixed, and a threshold whose kept share is below half, or more than there
is room for, is replaced on the device. Source of the method: Gupta and others, "Training Recommender Systems at Scale",
KDD 2021, arXiv 2010.08899.
"""

import math

import torch
import torch.distributed as dist
from neuroshard_api.documents.gradient_exchange import CAPACITY_OVER_KEPT, LEAST_OVER_KEPT
from torch.futures import Future

from neuroshard_trainer.communication.streams import used_on_this_stream

SAMPLE = 65_536
"""Entries of a bucket whose quantile is the threshold."""
BLOCK = 65_536
"""Entries whose positions fit into 16 bits."""
_LOWEST = -32_768
"""Of a signed position; torch counts, compares, and adds none without a sign."""


class SparseGradients:
    """Thresholds of one model's buckets.

    Args:
        kept_share: of the entries, above 0 and at most 0.5.
        refresh_steps: after which a threshold is computed again.
        group: of all ranks.
    """

    def __init__(self, *, kept_share: float, refresh_steps: int, group: dist.ProcessGroup) -> None:
        self._kept_share = kept_share
        self._refresh_steps = refresh_steps
        self._group = group
        self._thresholds: dict[tuple[int, int], torch.Tensor] = {}
        """Of each bucket, by index and size."""
        self._places: dict[int, torch.Tensor] = {}
        """Positions of sampled entries, by size."""
        self._num_kept: torch.Tensor | None = None
        self._num_entries = 0

    def exchanged(
        self, bucket: int, values: torch.Tensor, *, step: int
    ) -> tuple[torch.Tensor, Future[torch.Tensor], int]:
        """Return the remainder, the future mean of all ranks' values, and the bytes that this rank sent.

        Args:
            bucket: index, equal on all ranks.
            values: [n] gradients in FP32; the mean is written here.
            step: counted since the start.
        """
        size = values.numel()
        room = max(1, math.ceil(CAPACITY_OVER_KEPT * self._kept_share * size))
        magnitudes = values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
        threshold = self._threshold(bucket, magnitudes, step=step)
        # What is not a number goes alone and at once: there is room for it, and all ranks must see it.
        is_large = magnitudes >= torch.where(magnitudes.amax() == math.inf, math.inf, threshold)
        places = torch.nonzero_static(is_large, size=room, fill_value=size).view(-1)
        self._count(is_large, room)
        late = torch.cat((values, values.new_zeros(1)))
        wanted = late[places]
        sent = wanted.to(torch.bfloat16)
        left = wanted - sent.float()
        late[places] = torch.where(left.isfinite(), left, 0.0)
        message = packed(places, sent, size=size)
        received = message.new_empty((self._group.size(), *message.shape))
        work = dist.all_gather(list(received), message, group=self._group, async_op=True)
        assert work is not None, "asynchronous, and of a group with this rank"

        def added(_: Future[torch.Tensor]) -> torch.Tensor:
            used_on_this_stream(received, values)
            total = values.new_zeros(size + 1)
            for theirs in received:  # one rank after the other: equal sums on all ranks
                positions, entries = unpacked(theirs, size=size, room=room)
                total.index_add_(0, positions, entries.float())
            return values.copy_(total[:size]).div_(len(received))

        return late[:size], work.get_future().then(added), message.nbytes

    def take_kept_share(self) -> float | None:
        """Return the share of entries that was sent since the last call. None: nothing was."""
        kept, self._num_kept = self._num_kept, None
        num_entries, self._num_entries = self._num_entries, 0
        return None if kept is None else float(kept) / num_entries

    def _count(self, is_large: torch.Tensor, room: int) -> None:
        kept = is_large.sum(dtype=torch.float64).clamp(max=room)
        self._num_kept = kept if self._num_kept is None else self._num_kept + kept
        self._num_entries += is_large.numel()

    def _threshold(self, bucket: int, magnitudes: torch.Tensor, *, step: int) -> torch.Tensor:
        """Return the threshold of a step: the last one while it keeps half to double, else a quantile of a sample."""
        size = magnitudes.numel()
        if size not in self._places:
            generator = torch.Generator().manual_seed(size)
            places = torch.randint(size, (SAMPLE,), generator=generator) if size > SAMPLE else torch.arange(size)
            self._places[size] = places.to(magnitudes.device)
        sampled = magnitudes[self._places[size]]
        rank = max(1, math.ceil(len(sampled) * (1 - self._kept_share)))
        fresh = sampled.kthvalue(rank).values.clamp(min=torch.finfo(magnitudes.dtype).tiny)
        last = self._thresholds.get((bucket, size))
        if last is None or step % self._refresh_steps == 0:
            threshold = fresh
        else:
            share = (magnitudes >= last).double().mean() / self._kept_share
            is_off = (share < LEAST_OVER_KEPT) | (share > CAPACITY_OVER_KEPT)
            threshold = torch.where(is_off, fresh, last)
        self._thresholds[bucket, size] = threshold
        return threshold


def packed(places: torch.Tensor, values: torch.Tensor, *, size: int) -> torch.Tensor:
    """Return the bytes of a message.

    Args:
        places: [r] ascending positions of entries; ``size`` for room that is not used.
        values: [r] of them in BF16.
        size: number of entries, sent or not.
    """
    blocks = torch.where(places < size, places // BLOCK, _num_blocks(size))
    counts = torch.zeros(_num_blocks(size) + 1, dtype=torch.int32, device=places.device)
    counts.index_add_(0, blocks, torch.ones_like(blocks, dtype=torch.int32))
    positions = (places % BLOCK + _LOWEST).to(torch.int16)
    return torch.cat([part.view(torch.uint8) for part in (counts[:-1], positions, values)])


def unpacked(message: torch.Tensor, *, size: int, room: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the [room] positions and values of a message; those of unused room have the position ``size``."""
    num_blocks = _num_blocks(size)
    counts, positions, values = torch.split(message, [4 * num_blocks, 2 * room, 2 * room])
    ends = counts.view(torch.int32).cumsum(0)
    entry = torch.arange(room, device=message.device)
    block = torch.searchsorted(ends, entry, right=True)
    places = block * BLOCK + (positions.view(torch.int16).long() - _LOWEST)
    return torch.where(entry < ends[-1], places, size), values.view(torch.bfloat16)


def _num_blocks(size: int) -> int:
    return -(-size // BLOCK)
