"""Repeated lists of a batch: found by comparing each sample with the one before it, and sent once.

    samples         a  a  a  b  b  c        lists of one group of features
    sent            a  -  -  b  -  c        empty lists in place of repeats
    first sample    0  0  0  3  3  5        where each sample's pooled embeddings are

The batch keeps its size, so that every sharding type takes it as any other. In the grouped form the lists of a group
are apart from it, and their number is that of its distinct samples:

    apart           a  b  c
    first sample    0  0  0  1  1  2        positions among them

Lists are compared by value: the result is exact whatever the order of the samples, which decides only how many repeats
are next to each other. Lists that a clustered log has once for several samples are not compared: two of them count as
different, which may cost lookups and changes no result.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from neuroshard_trainer.data.collation import DistinctLists, HostBatch, batch_of
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import (
    Feature,
    IndexArray,
    Jagged,
    Lists,
    Samples,
    SharedLists,
    joined_jagged,
    joined_lists,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutRepeats:
    """Puts samples together without the lists of some groups of features that repeat."""

    groups: tuple[tuple[int, ...], ...]
    """Positions of each group's features among the batch's keys. A sample repeats a group where all of the group's
    lists equal those of the sample before it."""
    apart: Collection[int] = frozenset()
    """Groups whose distinct lists are apart from the batch."""
    filled_to: int = 1
    """Number of which the lists apart are a multiple, for codecs that encode values in groups: empty ones fill up."""

    def __call__(self, parts: Sequence[Samples], features: Sequence[Feature]) -> HostBatch:
        """Return the batch of all parts, one behind the other."""
        num_samples = sum(map(len, parts))
        in_groups = {position for members in self.groups for position in members}
        lookups: list[list[Jagged]] = [
            [] if position in in_groups else [part.lookups[feature.name].by_sample for part in parts]
            for position, feature in enumerate(features)
        ]
        first_samples = np.empty((len(self.groups), num_samples), dtype=np.int64)
        num_distinct, own_lists = [], []
        for group, members in enumerate(self.groups):
            lists = [joined_lists([part.lookups[features[position].name] for part in parts]) for position in members]
            repeats = _all_repeated(lists)
            firsts = np.flatnonzero(~repeats)
            num_distinct.append(len(firsts))
            distinct = [_firsts_of(each, firsts) for each in lists]
            if group in self.apart:
                first_samples[group] = np.cumsum(~repeats) - 1
                own_lists.append(distinct_lists([_filled(each, self.filled_to) for each in distinct], members, group))
            else:
                first_samples[group] = np.maximum.accumulate(np.where(repeats, 0, np.arange(num_samples)))
                for position, each in zip(members, distinct, strict=True):
                    lookups[position] = [_at(each, firsts, num_samples)]
        taken = {position for each in own_lists for position in each.positions}
        return replace(
            batch_of(parts, [each for position, each in enumerate(lookups) if position not in taken]),
            first_samples=torch.from_numpy(first_samples),
            num_distinct=tuple(num_distinct),
            apart=tuple(own_lists),
        )


def _all_repeated(features: Sequence[Lists]) -> NDArray[np.bool_]:
    """Return [samples] whether each sample's lists all equal those of the sample before it; the first one's never."""
    compared = [each for each in features if isinstance(each, Jagged)]
    shared = [each.continues for each in features if isinstance(each, SharedLists)]
    among: NDArray[np.bool_] | None = np.logical_and.reduce(shared) if shared else None
    return among if among is not None and not compared else repeated(compared, among)


def _firsts_of(lists: Lists, firsts: IndexArray) -> Jagged:
    """Return the lists of the samples that repeat none; every list that is shared is of one of them."""
    own = lists.lists if isinstance(lists, SharedLists) else lists
    return own if len(own.lengths) == len(firsts) else lists.take(firsts).by_sample


def _filled(lists: Jagged, multiple: int) -> Jagged:
    """Return lists with empty ones behind them, a multiple of a number in all."""
    missing = np.zeros(-len(lists.lengths) % multiple, dtype=lists.lengths.dtype)
    return replace(lists, lengths=np.concatenate((lists.lengths, missing))) if len(missing) else lists


def distinct_lists(lists: Sequence[Jagged], positions: tuple[int, ...], group: int) -> DistinctLists:
    """Return lists that are apart from a batch.

    Args:
        lists: by feature.
        positions: of the features among the batch's keys.
        group: position of theirs among the first samples.
    """
    found = joined_jagged(lists)
    return DistinctLists(
        group=group,
        positions=positions,
        values=torch.from_numpy(found.values),
        lengths=torch.from_numpy(found.lengths),
        values_per_feature=[len(each.values) for each in lists],
    )


def _at(lists: Jagged, places: IndexArray, num_samples: int) -> Jagged:
    """Return lists at these places among the samples, and empty ones elsewhere."""
    lengths = np.zeros(num_samples, dtype=np.int32)
    lengths[places] = lists.lengths
    return Jagged(values=lists.values, lengths=lengths)
