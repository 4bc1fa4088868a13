"""Samples as arrays: labels, dense features, and a jagged array of row ids for each feature. Reads no files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from neuroshard_api.documents.tables import Table
from neuroshard_api.process.errors import InputError
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IndexArray = NDArray[np.int64]
LengthArray = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)  # without slots, for what is computed once
class Jagged:
    """Lookups of one feature, sample after sample."""

    values: IndexArray
    """Row ids, shape (sum of lengths,)."""
    lengths: LengthArray
    """Lookups of each sample, shape (samples,)."""

    @classmethod
    def single(cls, values: IndexArray) -> "Jagged":
        """Return one lookup per sample."""
        found = cls(values=values, lengths=np.ones(len(values), dtype=np.int32))
        found.__dict__["is_single"] = True  # as it would be found once more
        return found

    @classmethod
    def of_lengths(cls, values: IndexArray, lengths: NDArray[Any]) -> "Jagged":
        """Return lookups that are given sample after sample."""
        return cls(values=values, lengths=lengths.astype(np.int32, copy=False))

    @property
    def by_sample(self) -> "Jagged":
        """A list for every sample: itself."""
        return self

    @cached_property
    def offsets(self) -> IndexArray:
        """Where each sample's values begin, and behind them the number of values."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    @cached_property
    def is_single(self) -> bool:
        """Whether each sample has one lookup."""
        return len(self.values) == len(self.lengths) and bool(self.lengths.max(initial=0) <= 1)

    def take(self, rows: IndexArray) -> "Jagged":
        """Return these samples, in this order."""
        if self.is_single:
            return Jagged.single(self.values[rows])
        lengths = self.lengths[rows]
        return Jagged(values=self.values[ranges(self.offsets[rows], lengths)], lengths=lengths)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLists:
    """Lookups of one feature of which samples next to each other share a list, as a clustered log stores them."""

    lists: Jagged
    """In the order of their samples; each has at least one."""
    of_sample: IndexArray
    """[samples] position of each sample's list: 0 at the first, and from sample to sample equal or one more."""

    def take(self, rows: IndexArray) -> "SharedLists":
        """Return these samples, in this order."""
        of_sample = self.of_sample[rows]
        opens = ~_continues(of_sample)
        return SharedLists(lists=self.lists.take(of_sample[opens]), of_sample=np.cumsum(opens) - 1)

    @property
    def continues(self) -> NDArray[np.bool_]:
        """[samples] whether a sample has the list of the sample before it; the first one never."""
        return _continues(self.of_sample)

    @property
    def values(self) -> IndexArray:
        """Row ids of all samples, as in ``Jagged``."""
        return self.by_sample.values

    @property
    def lengths(self) -> LengthArray:
        """[samples] lookups of each."""
        lengths: LengthArray = self.lists.lengths[self.of_sample]
        return lengths

    @property
    def by_sample(self) -> Jagged:
        """A list for every sample."""
        is_alone = len(self.lists.lengths) == len(self.of_sample)
        return self.lists if is_alone else self.lists.take(self.of_sample)


Lists = Jagged | SharedLists
"""Lookups of one feature and some samples."""
NO_LOOKUPS = Jagged(values=np.zeros(0, dtype=np.int64), lengths=np.zeros(0, dtype=np.int32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Some samples."""

    labels: FloatArray
    """0 or 1, shape (samples,)."""
    dense: FloatArray
    """Shape (samples, dense features)."""
    lookups: Mapping[str, Lists]
    """By feature."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: IndexArray) -> "Samples":
        """Return these samples, in this order."""
        return Samples(
            labels=self.labels[rows],
            dense=self.dense[rows],
            lookups={feature: jagged.take(rows) for feature, jagged in self.lookups.items()},
        )


def joined(parts: Sequence[Samples]) -> Samples:
    """Return all samples of the parts, one behind the other; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Samples(
        labels=np.concatenate([part.labels for part in parts]),
        dense=np.concatenate([part.dense for part in parts]),
        lookups={feature: joined_lists([part.lookups[feature] for part in parts]) for feature in parts[0].lookups},
    )


def joined_lists(parts: Sequence[Lists]) -> Lists:
    """Return the lookups of all parts, one behind the other; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    if not any(isinstance(part, SharedLists) for part in parts):
        return joined_jagged([part.by_sample for part in parts])
    shared = [part if isinstance(part, SharedLists) else _unshared(part) for part in parts]
    firsts = np.cumsum([0, *(len(each.lists.lengths) for each in shared[:-1])])
    return SharedLists(
        lists=joined_jagged([each.lists for each in shared]),
        of_sample=np.concatenate([first + each.of_sample for first, each in zip(firsts, shared, strict=True)]),
    )


def joined_jagged(parts: Sequence[Jagged]) -> Jagged:
    """Return the lookups of all parts, one behind the other."""
    return Jagged(
        values=np.concatenate([part.values for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
    )


def ranges(starts: IndexArray, lengths: NDArray[np.integer]) -> IndexArray:
    """Return the numbers from each start on, as many as its length, one range behind the other."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    found: IndexArray = np.repeat(starts - before, lengths)
    found += np.arange(len(found))
    return found


def _continues(of_sample: IndexArray) -> NDArray[np.bool_]:
    continues: NDArray[np.bool_] = np.zeros(len(of_sample), dtype=np.bool_)
    continues[1:] = of_sample[1:] == of_sample[:-1]
    return continues


def _unshared(lists: Jagged) -> SharedLists:
    return SharedLists(lists=lists, of_sample=np.arange(len(lists.lengths)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One feature, and the table it is looked up in."""

    name: str
    table: Table

    @property
    def pooling_factor(self) -> float:
        """Mean lookups per sample: the table's, shared equally among its features."""
        return self.table.pooling_factor / self.table.num_features


def features_of(tables: Sequence[Table]) -> tuple[Feature, ...]:
    """Return the features of all tables, in the tables' order; a table without names has one feature of its own.

    Raises:
        InputError: one feature is looked up in two tables.
    """
    features = tuple(Feature(name=name, table=table) for table in tables for name in table.features)
    owner: dict[str, str] = {}
    for feature in features:
        other = owner.setdefault(feature.name, feature.table.name)
        if other != feature.table.name:
            raise InputError(
                f"tables {other!r} and {feature.table.name!r} both look up feature {feature.name!r}; "
                "hint: give each table features of its own, with the data in both"
            )
    return features
