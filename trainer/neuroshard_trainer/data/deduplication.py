"""Repeated lists of a batch: found by comparing each sample with the one before it, and sent once.

    samples         a  a  a  b  b  c        lists of one group of features
    sent            a  -  -  b  -  c        empty lists in place of repeats
    first sample    0  0  0  3  3  5        where each sample's pooled embeddings are

The batch keeps its size, so that every sharding type takes it as any other. Lists are compared by value: the result is
exact whatever the order of the samples, which decides only how many repeats are next to each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from neuroshard_trainer.data.collation import HostBatch, Make
from neuroshard_trainer.data.samples import IndexArray, Jagged


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplicated:
    """Makes batches in which the repeats of some groups of features are left out."""

    make: Make
    groups: tuple[tuple[int, ...], ...]
    """Positions of each group's features among the batch's keys."""

    def __call__(self, position: int) -> HostBatch:
        """Return the batch of a position."""
        return deduplicated(self.make(position), self.groups)


def deduplicated(batch: HostBatch, groups: Sequence[Sequence[int]]) -> HostBatch:
    """Return the batch without the lists that repeat, and where each sample's lists are.

    Args:
        batch: with all lists.
        groups: positions of features; a sample repeats a group where all of the group's lists equal those of the sample
            before it.
    """
    num_samples = len(batch.labels)
    lengths = batch.lengths.numpy().reshape(-1, num_samples)
    values = np.split(batch.values.numpy(), np.cumsum(batch.values_per_feature)[:-1])
    features = [Jagged(values=own, lengths=counts) for own, counts in zip(values, lengths, strict=True)]
    first_samples = np.empty((len(groups), num_samples), dtype=np.int64)
    for group, members in enumerate(groups):
        repeats = repeated([features[position] for position in members])
        first_samples[group] = np.maximum.accumulate(np.where(repeats, 0, np.arange(num_samples)))
        for position in members:
            features[position] = _emptied(features[position], repeats)
    return replace(
        batch,
        values=torch.from_numpy(np.concatenate([each.values for each in features])),
        lengths=torch.from_numpy(np.concatenate([each.lengths for each in features])),
        values_per_feature=[len(each.values) for each in features],
        first_samples=torch.from_numpy(first_samples),
        num_distinct=tuple(int(np.count_nonzero(own == np.arange(num_samples))) for own in first_samples),
    )


def repeated(features: Sequence[Jagged]) -> NDArray[np.bool_]:
    """Return [samples] whether each sample's lists all equal those of the sample before it; the first one's never."""
    lengths = features[0].lengths
    repeats: NDArray[np.bool_] = np.ones(len(lengths), dtype=np.bool_)
    repeats[:1] = False
    for feature in features:
        repeats[1:] &= feature.lengths[1:] == feature.lengths[:-1]
    for feature in features:
        repeats[_unequal(feature, repeats)] = False
    return repeats


def _unequal(feature: Jagged, candidates: NDArray[np.bool_]) -> IndexArray:
    """Return which candidates, whose lists are as long as those before them, have another value in them."""
    owners = np.repeat(np.arange(len(feature.lengths)), feature.lengths)
    at = np.flatnonzero(candidates[owners])
    differs = feature.values[at] != feature.values[at - feature.lengths[owners[at]]]
    unequal: IndexArray = owners[at[differs]]
    return unequal


def _emptied(feature: Jagged, repeats: NDArray[np.bool_]) -> Jagged:
    """Return the feature with empty lists in place of repeats."""
    kept = np.repeat(~repeats, feature.lengths)
    return Jagged(values=feature.values[kept], lengths=np.where(repeats, 0, feature.lengths).astype(np.int32))
