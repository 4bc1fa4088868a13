"""Batches of ids: for each feature how many ids each sample has, and all ids one after the other. Reads no files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from neuroshard_costs.shards import IndexArray

NO_BOUNDS = (2**63 - 1, -(2**63))
"""Of no texts at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureBatch:
    """One feature of a batch."""

    lengths: IndexArray
    """[samples]"""
    ids: IndexArray
    """[sum of lengths] equal for equal ids: integers, those of 64 bits without a sign wrapped around, or hashes."""
    are_texts: bool = False
    """Whether the ids are texts, of which ``ids`` has the hashes."""
    numbers: IndexArray | None = None
    """[sum of lengths] the values of texts that all are integers, as in CSV. None: some are not."""

    @property
    def integers(self) -> IndexArray | None:
        """[sum of lengths] the values. None: some are texts other than integers."""
        return self.numbers if self.are_texts else self.ids

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Smallest and largest value. None: some are texts other than integers."""
        if self.integers is None:
            return None
        return (int(self.integers.min()), int(self.integers.max())) if len(self.integers) else NO_BOUNDS


@dataclass(frozen=True, kw_only=True, slots=True)
class DataBatch:
    """Consecutive samples."""

    num_samples: int
    features: Mapping[str, FeatureBatch]
    sessions: IndexArray | None
    """[samples] a number for each session, the same in all batches of a data set. None: the data names none."""

    def part(self, first: int, last: int) -> "DataBatch":
        """Return the samples from the first to before the last."""
        return DataBatch(
            num_samples=last - first,
            features={name: _part(feature, first, last) for name, feature in self.features.items()},
            sessions=None if self.sessions is None else self.sessions[first:last],
        )


def evenly(batches: Iterable[DataBatch], num_samples: int) -> Iterator[DataBatch]:
    """Yield the samples of batches of one data set in batches of another size; the last may have fewer."""
    waiting: list[DataBatch] = []
    missing = num_samples
    for batch in batches:
        first = 0
        while batch.num_samples - first >= missing:
            yield _joined([*waiting, batch.part(first, first + missing)])
            first += missing
            waiting, missing = [], num_samples
        if first < batch.num_samples:
            waiting.append(batch.part(first, batch.num_samples))
            missing -= batch.num_samples - first
    if waiting:
        yield _joined(waiting)


def joined_bounds(bounds: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the bounds of all texts; None: some are other texts than integers."""
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _part(feature: FeatureBatch, first: int, last: int) -> FeatureBatch:
    ends = np.concatenate(([0], np.cumsum(feature.lengths)))
    held = slice(ends[first], ends[last])
    return replace(
        feature,
        lengths=feature.lengths[first:last],
        ids=feature.ids[held],
        numbers=None if feature.numbers is None else feature.numbers[held],
    )


def _joined(batches: Sequence[DataBatch]) -> DataBatch:
    if len(batches) == 1:
        return batches[0]
    sessions = [each.sessions for each in batches if each.sessions is not None]
    return DataBatch(
        num_samples=sum(each.num_samples for each in batches),
        features={
            name: FeatureBatch(
                lengths=np.concatenate([each.features[name].lengths for each in batches]),
                ids=np.concatenate([each.features[name].ids for each in batches]),
                are_texts=any(each.features[name].are_texts for each in batches),
                numbers=_joined_numbers([each.features[name].numbers for each in batches]),
            )
            for name in batches[0].features
        },
        sessions=np.concatenate(sessions) if sessions else None,
    )


def _joined_numbers(numbers: Sequence[IndexArray | None]) -> IndexArray | None:
    known = [each for each in numbers if each is not None]
    return np.concatenate(known) if len(known) == len(numbers) else None
