"""Batches of one rank as tensors, made ahead of time on a thread."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.fx._symbolic_trace import PHWithMeta
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from neuroshard_trainer.data.order import BlockRows, SampleOrder
from neuroshard_trainer.data.samples import Feature, IndexArray, Samples, joined
from neuroshard_trainer.data.source import SampleSource, require_valid

PREFETCHED_BATCHES = 3
"""Batches that are ready or being made while one is trained on."""
CACHED_BLOCKS = 4
"""Blocks kept between batches; a batch ends where it ends, mostly within a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Pipelineable):  # type: ignore[misc] # torchrec's, untyped
    """The samples of one rank and step; every rank has equally many."""

    dense: torch.Tensor
    """FP32, shape (samples, dense features)."""
    lookups: KeyedJaggedTensor
    labels: torch.Tensor
    """FP32, shape (samples,)."""
    num_real: int
    """Samples that count; the ones behind them fill up the last batch of an evaluation."""

    def to(self, device: torch.device, non_blocking: bool = True) -> "Batch":  # noqa: FBT001, FBT002 - torchrec's
        """Return the batch on a device; a copy to a GPU does not wait."""
        if device.type == "cpu":
            return self
        return Batch(
            dense=self.dense.pin_memory().to(device, non_blocking=non_blocking),
            lookups=self.lookups.pin_memory().to(device, non_blocking=non_blocking),
            labels=self.labels.pin_memory().to(device, non_blocking=non_blocking),
            num_real=self.num_real,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until a stream is past what it was asked for so far."""
        for tensor in (self.dense, self.lookups, self.labels):
            tensor.record_stream(stream)

    def to_proxy_tuple(self, _model: nn.Module) -> tuple[PHWithMeta, ...]:
        """Tell TorchRec's pipeline which fields the model's forward takes, in the order of its arguments."""
        return PHWithMeta(ph_key="dense"), PHWithMeta(ph_key="lookups")


class BatchMaker:
    """Makes any batch of this rank.

    Args:
        source: the samples.
        order: which of them come when, over all ranks.
        features: in the order of the batch's keys.
        rank, world_size: which part of every global batch is made here.
        batch_size: samples of each rank.
    """

    def __init__(
        self,
        source: SampleSource,
        order: SampleOrder,
        features: Sequence[Feature],
        *,
        rank: int,
        world_size: int,
        batch_size: int,
    ) -> None:
        self._source = source
        self._order = order
        self._features = features
        self._rank = rank
        self._batch_size = batch_size
        self.global_batch_size = world_size * batch_size
        self._block = lru_cache(CACHED_BLOCKS)(self._checked_block)

    def training(self, position: int) -> Batch:
        """Return this rank's part of the global batch that begins at a training sample, counted through all epochs."""
        start = position + self._rank * self._batch_size
        return self._batch(self._samples(self._order.training(start, self._batch_size)))

    def validation(self, position: int) -> Batch:
        """Return this rank's part of the global batch that begins at a held-out sample; there is at least one."""
        start = position + self._rank * self._batch_size
        parts = list(self._order.validation(start, self._batch_size)) or list(self._order.validation(0, 1))
        samples = self._samples(parts)
        num_real = min(max(0, self._order.num_validation - start), self._batch_size)
        filled: IndexArray = np.arange(self._batch_size) % len(samples)
        return self._batch(samples.take(filled), num_real=num_real)

    def _samples(self, parts: Iterable[BlockRows]) -> Samples:
        return joined([self._block(part.block).take(part.rows) for part in parts])

    def _checked_block(self, block: int) -> Samples:
        samples = self._source.read(block)
        require_valid(samples, self._features, self._source, block)
        return samples

    def _batch(self, samples: Samples, *, num_real: int | None = None) -> Batch:
        jagged = [samples.lookups[feature.name] for feature in self._features]
        return Batch(
            dense=torch.from_numpy(samples.dense),
            lookups=KeyedJaggedTensor(
                keys=[feature.name for feature in self._features],
                values=torch.from_numpy(np.concatenate([each.values for each in jagged])),
                lengths=torch.from_numpy(np.concatenate([each.lengths for each in jagged])).to(torch.int32),
            ),
            labels=torch.from_numpy(samples.labels),
            num_real=len(samples) if num_real is None else num_real,
        )


def prefetched(make: Callable[[int], Batch], positions: Iterable[int], device: torch.device) -> Iterator[Batch]:
    """Yield the batches at these positions, each made on a thread before it is asked for.

    What goes wrong on the thread is raised here, when the batch is asked for.
    """
    remaining = iter(positions)
    pending: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        try:
            while True:
                while len(pending) < PREFETCHED_BATCHES and (position := next(remaining, None)) is not None:
                    pending.append(thread.submit(make, position))
                if not pending:
                    return
                yield pending.popleft().result().to(device)
        finally:
            for future in pending:
                future.cancel()
