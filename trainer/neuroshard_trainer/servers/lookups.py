"""Batches with the lookups of tables on servers apart: a trainer's, and a server's, which have no samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from neuroshard_trainer.data.collation import Collate, DistinctLists, HostBatch, batch_of
from neuroshard_trainer.data.deduplication import distinct_lists
from neuroshard_trainer.data.samples import Feature, Samples, joined_jagged


@dataclass(frozen=True, kw_only=True, slots=True)
class FarApart:
    """Puts a trainer's samples together."""

    positions: tuple[int, ...]
    """Of the features of tables on servers, among the batch's keys."""

    def __call__(self, parts: Sequence[Samples], features: Sequence[Feature]) -> HostBatch:
        """Return the batch of all parts, one behind the other."""
        lookups = [[part.lookups[feature.name].by_sample for part in parts] for feature in features]
        near = [each for position, each in enumerate(lookups) if position not in self.positions]
        far = [joined_jagged(lookups[position]) for position in self.positions]
        return replace(batch_of(parts, near), apart=(distinct_lists(far, self.positions, group=0),))


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSamples:
    """Makes a server's batches."""

    num_features: int
    positions: tuple[int, ...]
    """Of the features of tables on servers, among the batch's keys."""
    global_batch_size: int
    """Samples of all trainers in a step."""

    def collating(self, _collate: Collate) -> Self:
        """Return itself: there is nothing to put together."""
        return self

    def training(self, _position: int) -> HostBatch:
        """Return the batch of any position."""
        no_ids, no_lengths = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
        apart = DistinctLists(
            group=0,
            positions=self.positions,
            values=no_ids,
            lengths=no_lengths,
            values_per_feature=[0] * len(self.positions),
        )
        return HostBatch(
            dense=torch.empty(0, 0),
            values=no_ids,
            lengths=no_lengths,
            values_per_feature=[0] * (self.num_features - len(self.positions)),
            labels=torch.empty(0),
            num_real=0,
            apart=(apart,),
        )

    def validation(self, position: int) -> HostBatch:
        """Return the batch of any position."""
        return self.training(position)
