"""Repeated lists of a batch: found by comparing each sample with the one before it, and sent once.

    samples         a  a  a  b  b  c        lists of one group of features
    sent            a  -  -  b  -  c        empty lists in place of repeats
    first sample    0  0  0  3  3  5        where each sample's pooled embeddings are

The batch keeps its size, so that every sharding type takes it as any other. In the grouped form the lists of a group
are apart from it, and their number is that of its distinct samples:

    apart           a  b  c
    first sample    0  0  0  1  1  2        positions among them

Lists are compared by value: the result is
exact whatever the order of the samples, which decides only how many repeats are next to each other.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from neuroshard_trainer.data.collation import DistinctLists, HostBatch, Make
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import Jagged


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplicated:
    """Makes batches in which the repeats of some groups of features are left out."""

    make: Make
    groups: tuple[tuple[int, ...], ...]
    """Positions of each group's features among the batch's keys."""
    apart: frozenset[int] = frozenset()
    """Groups whose lists are apart."""

    def __call__(self, position: int) -> HostBatch:
        """Return the batch of a position."""
        return deduplicated(self.make(position), self.groups, apart=self.apart)


def deduplicated(
    batch: HostBatch, groups: Sequence[Sequence[int]], *, apart: Collection[int] = frozenset()
) -> HostBatch:
    """Return the batch without the lists that repeat, and where each sample's lists are.

    Args:
        batch: with all lists.
        groups: positions of features; a sample repeats a group where all of the group's lists equal those of the sample
            before it.
        apart: groups whose distinct lists are apart from the batch.
    """
    num_samples = len(batch.labels)
    lengths = batch.lengths.numpy().reshape(-1, num_samples)
    values = np.split(batch.values.numpy(), np.cumsum(batch.values_per_feature)[:-1])
    features = [Jagged(values=own, lengths=counts) for own, counts in zip(values, lengths, strict=True)]
    first_samples = np.empty((len(groups), num_samples), dtype=np.int64)
    num_distinct, own_lists = [], []
    for group, members in enumerate(groups):
        repeats = repeated([features[position] for position in members])
        num_distinct.append(num_samples - int(np.count_nonzero(repeats)))
        for position in members:
            features[position] = _without(features[position], repeats, keeps_bags=group not in apart)
        if group in apart:
            first_samples[group] = np.cumsum(~repeats) - 1
            own_lists.append(_distinct_lists(features, tuple(members), group))
        else:
            first_samples[group] = np.maximum.accumulate(np.where(repeats, 0, np.arange(num_samples)))
    taken = {position for each in own_lists for position in each.positions}
    left = [each for position, each in enumerate(features) if position not in taken]
    return replace(
        batch,
        values=_joined([each.values for each in left], batch.values),
        lengths=_joined([each.lengths for each in left], batch.lengths),
        values_per_feature=[len(each.values) for each in left],
        first_samples=torch.from_numpy(first_samples),
        num_distinct=tuple(num_distinct),
        apart=tuple(own_lists),
    )


def _distinct_lists(features: Sequence[Jagged], positions: tuple[int, ...], group: int) -> DistinctLists:
    own = [features[position] for position in positions]
    return DistinctLists(
        group=group,
        positions=positions,
        values=torch.from_numpy(np.concatenate([each.values for each in own])),
        lengths=torch.from_numpy(np.concatenate([each.lengths for each in own])),
        values_per_feature=[len(each.values) for each in own],
    )


def _joined(parts: Sequence[NDArray[Any]], like: torch.Tensor) -> torch.Tensor:
    """Return the parts one after the other; without parts an empty tensor of the type of another."""
    return torch.from_numpy(np.concatenate(parts)) if parts else like[:0]


def _without(feature: Jagged, repeats: NDArray[np.bool_], *, keeps_bags: bool) -> Jagged:
    """Return the feature without its repeats: with an empty list in place of each, or with fewer lists."""
    kept = np.repeat(~repeats, feature.lengths)
    lengths = np.where(repeats, 0, feature.lengths) if keeps_bags else feature.lengths[~repeats]
    return Jagged(values=feature.values[kept], lengths=lengths.astype(np.int32))
