"""Batches of one rank as TorchRec takes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx._symbolic_trace import PHWithMeta
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from neuroshard_trainer.data.collation import DistinctLists, HostBatch


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
    num_positive: int = 0
    """Labels that are 1."""
    first_samples: torch.Tensor | None = None
    """[groups, samples] for each sample the one that has its lists of a group, INT64, as in a HostBatch. None: each
    has its own."""
    num_distinct: tuple[int, ...] = ()
    """By group, samples that have lists of their own."""
    group_lookups: tuple[KeyedJaggedTensor, ...] = ()
    """Distinct lists of each group in the grouped form, or those of tables on servers, which no device gets.
    ``lookups`` are of all other features."""
    groups_apart: tuple[int, ...] = ()
    """Positions of those groups among the first samples."""

    @property
    def inputs(self) -> tuple[torch.Tensor | KeyedJaggedTensor | tuple[KeyedJaggedTensor, ...], ...]:
        """Arguments of the model's forward."""
        return tuple(getattr(self, field) for field in self._fields)

    @property
    def _fields(self) -> tuple[str, ...]:
        """Fields that the model's forward takes, in the order of its arguments."""
        fields = ("dense", "lookups") if self.first_samples is None else ("dense", "lookups", "first_samples")
        return (*fields, "group_lookups") if self.group_lookups else fields

    @property
    def lookups_by_sample(self) -> KeyedJaggedTensor:
        """All lookups with a list for every sample, empty where it repeats that of the sample before."""
        if not self.group_lookups:
            return self.lookups
        apart = self.group_lookups
        if self.first_samples is None:  # of tables on servers
            apart = tuple(each.to(self.dense.device) for each in apart)
        parts = [self.lookups] if self.lookups.keys() else []
        lengths = [each.lengths().view(len(each.keys()), -1) for each in parts]
        for group, lookups in zip(self.groups_apart, apart, strict=True):
            own = lookups.lengths().view(len(lookups.keys()), -1)
            if self.first_samples is None:
                lengths.append(own)
                continue
            positions = self.first_samples[group]
            is_first = torch.ones_like(positions, dtype=torch.bool)
            is_first[1:] = positions[1:] != positions[:-1]
            spread = own.new_zeros(len(own), len(positions))
            spread[:, is_first] = own[:, : self.num_distinct[group]]
            lengths.append(spread)
        parts += apart
        return KeyedJaggedTensor(
            keys=[key for each in parts for key in each.keys()],  # noqa: SIM118 - no dictionary
            values=torch.cat([each.values() for each in parts]),
            lengths=torch.cat(lengths).view(-1),
        )

    @classmethod
    def of(cls, host: HostBatch, keys: Sequence[str]) -> "Batch":
        """Return a batch with a key for each feature. The values per key are known, so that no device is asked."""
        taken = {position for each in host.apart for position in each.positions}
        return cls(
            dense=host.dense,
            lookups=_lookups([key for position, key in enumerate(keys) if position not in taken], host),
            labels=host.labels,
            num_real=host.num_real,
            num_positive=host.num_positive,
            first_samples=host.first_samples,
            num_distinct=host.num_distinct,
            group_lookups=tuple(_lookups([keys[position] for position in each.positions], each) for each in host.apart),
            groups_apart=tuple(each.group for each in host.apart),
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
            num_positive=self.num_positive,
            first_samples=None
            if self.first_samples is None
            else self.first_samples.to(device, non_blocking=non_blocking),
            num_distinct=self.num_distinct,
            group_lookups=self.group_lookups
            if self.first_samples is None
            else tuple(each.to(device, non_blocking=non_blocking) for each in self.group_lookups),
            groups_apart=self.groups_apart,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until a stream is past what it was asked for so far."""
        for tensor in (self.dense, self.lookups, self.labels, self.first_samples, *self.group_lookups):
            if tensor is not None:
                tensor.record_stream(stream)

    def to_proxy_tuple(self, _model: nn.Module) -> tuple[PHWithMeta | tuple[PHWithMeta, ...], ...]:
        """Tell TorchRec's pipeline which fields the model's forward takes, in the order of its arguments."""
        groups = tuple(PHWithMeta(ph_key=f"group_lookups[{number}]") for number in range(len(self.group_lookups)))
        return tuple(groups if field == "group_lookups" else PHWithMeta(ph_key=field) for field in self._fields)


def _lookups(keys: Sequence[str], lists: HostBatch | DistinctLists) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(keys), values=lists.values, lengths=lists.lengths, length_per_key=lists.values_per_feature
    )


def counted(batches: Iterator[Batch], count: Callable[[int, Sequence[int]], None]) -> Iterator[Batch]:
    """Yield batches; of each without repeats ``count`` gets the samples, and by group those with lists of their own."""
    for batch in batches:
        if batch.num_distinct:
            count(len(batch.labels), batch.num_distinct)
        yield batch
