"""Batches of one rank as TorchRec takes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx._symbolic_trace import PHWithMeta
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from neuroshard_trainer.data.collation import HostBatch


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
    first_samples: torch.Tensor | None = None
    """[groups, samples] for each sample the one that has its lists of a group, INT64. None: each has its own."""
    num_distinct: tuple[int, ...] = ()
    """By group, samples that have lists of their own."""

    @property
    def inputs(self) -> tuple[torch.Tensor | KeyedJaggedTensor, ...]:
        """Arguments of the model's forward."""
        if self.first_samples is None:
            return self.dense, self.lookups
        return self.dense, self.lookups, self.first_samples

    @classmethod
    def of(cls, host: HostBatch, keys: Sequence[str]) -> "Batch":
        """Return a batch with a key for each feature. The values per key are known, so that no device is asked."""
        return cls(
            dense=host.dense,
            lookups=KeyedJaggedTensor(
                keys=list(keys), values=host.values, lengths=host.lengths, length_per_key=host.values_per_feature
            ),
            labels=host.labels,
            num_real=host.num_real,
            first_samples=host.first_samples,
            num_distinct=host.num_distinct,
        )

    def to(self, device: torch.device, non_blocking: bool = True) -> "Batch":  # noqa: FBT001, FBT002 - torchrec's
        """Return the batch on a device; a copy from pinned memory to a GPU does not wait."""
        if device.type == "cpu":
            return self
        return Batch(
            dense=self.dense.to(device, non_blocking=non_blocking),
            lookups=self.lookups.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            num_real=self.num_real,
            first_samples=None
            if self.first_samples is None
            else self.first_samples.to(device, non_blocking=non_blocking),
            num_distinct=self.num_distinct,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until a stream is past what it was asked for so far."""
        for tensor in (self.dense, self.lookups, self.labels, self.first_samples):
            if tensor is not None:
                tensor.record_stream(stream)

    def to_proxy_tuple(self, _model: nn.Module) -> tuple[PHWithMeta, ...]:
        """Tell TorchRec's pipeline which fields the model's forward takes, in the order of its arguments."""
        fields = ("dense", "lookups") if self.first_samples is None else ("dense", "lookups", "first_samples")
        return tuple(PHWithMeta(ph_key=field) for field in fields)


def counted(batches: Iterator[Batch], count: Callable[[int, Sequence[int]], None]) -> Iterator[Batch]:
    """Yield batches; of each without repeats ``count`` gets the samples, and by group those with lists of their own."""
    for batch in batches:
        if batch.num_distinct:
            count(len(batch.labels), batch.num_distinct)
        yield batch
