"""Samples as the tensors of one batch, in the memory of the host. Needs torch, but nothing of TorchRec."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
import torch
from neuroshard_api.documents.communication import WIRE_FORMATS

from neuroshard_trainer.data.order import BlockRows, SampleOrder
from neuroshard_trainer.data.samples import NO_LOOKUPS, Feature, IndexArray, Jagged, Samples, joined, joined_jagged
from neuroshard_trainer.data.source import SampleSource, require_valid


@dataclass(frozen=True, kw_only=True, slots=True)
class DistinctLists:
    """The lists of a group of features without repeats."""

    group: int
    """Position of the group among the first samples."""
    positions: tuple[int, ...]
    """Of the features among the batch's keys."""
    values: torch.Tensor
    """Row ids of the features one after the other, INT64."""
    lengths: torch.Tensor
    """Lookups of each feature and list, INT32, shape (features * lists,): those of the distinct samples, then the empty
    ones that fill up the groups of codecs."""
    values_per_feature: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBatch:
    """The samples of one rank and step; every rank has equally many."""

    dense: torch.Tensor
    """FP32, shape (samples, dense features)."""
    values: torch.Tensor
    """Row ids of all features one after the other, INT64."""
    lengths: torch.Tensor
    """Lookups of each feature and sample, INT32, shape (features * samples,)."""
    values_per_feature: list[int]
    labels: torch.Tensor
    """FP32, shape (samples,)."""
    num_real: int
    """Samples that count; the ones behind them fill up the last batch of an evaluation."""
    num_positive: int = 0
    """Labels that are 1."""
    first_samples: torch.Tensor | None = None
    """[groups, samples] for each sample the one that has its lists of a group, INT64: its position among the samples,
    or among the distinct ones where the group's lists are apart. None: each has its own."""
    num_distinct: tuple[int, ...] = ()
    """By group, samples that have lists of their own."""
    apart: tuple[DistinctLists, ...] = ()
    """Lists of the groups in the grouped form; ``values`` and ``lengths`` are of all other features."""

    def pin_memory(self) -> "HostBatch":
        """Return the batch in memory that a GPU reads by itself."""
        return replace(
            self,
            dense=self.dense.pin_memory(),
            values=self.values.pin_memory(),
            lengths=self.lengths.pin_memory(),
            labels=self.labels.pin_memory(),
            first_samples=None if self.first_samples is None else self.first_samples.pin_memory(),
            apart=tuple(
                replace(each, values=each.values.pin_memory(), lengths=each.lengths.pin_memory()) for each in self.apart
            ),
        )


LEAST_EVALUATED = 1024
"""Samples of a batch of an evaluation, unless the training's are fewer: below it, launches take as long as the work."""
WHOLE_GROUPS = lcm(*(form.least_samples for form in WIRE_FORMATS.values()))
"""Samples that fill the groups of every codec: the guard of narrow types encodes batches of evaluations."""


class BatchMaker:
    """Makes any batch of this rank.

    Args:
        source: the samples.
        order: which of them come when, over all ranks.
        features: in the order of the batch's keys.
        rank, world_size: which part of every global batch is made here.
        batch_size: samples of each rank.
        drifted: training samples, ascending, and what global batches that begin there or later are read from instead.
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
        drifted: Sequence[tuple[int, SampleSource]] = (),
    ) -> None:
        self._source = source
        self._drifted = drifted
        self._order = order
        self._features = features
        self._rank = rank
        self._world_size = world_size
        self._batch_size = batch_size
        self.global_batch_size = world_size * batch_size
        self._collate: Collate = collated

    def collating(self, collate: "Collate") -> "BatchMaker":
        """Return the maker of the same samples, put together in another way."""
        made = copy(self)
        made._collate = collate  # noqa: SLF001 - its own
        return made

    def for_evaluation(self, *, num_readers: int) -> "BatchMaker":
        """Return the maker of an evaluation's batches: smaller ones where there are fewer of them than readers.

        Held-out samples come from all blocks, each of which one reader reads whole for a few of its samples. In one
        batch of 65,536 all blocks of 6 million samples were read by one of 10 readers.

        Args:
            num_readers: reader processes of each rank. 0: the training thread reads.
        """
        shares = self._world_size * max(1, num_readers)
        own_share = -(-self._order.num_validation // shares)
        made = BatchMaker(
            self._source,
            self._order,
            self._features,
            rank=self._rank,
            world_size=self._world_size,
            batch_size=min(self._batch_size, -(-max(own_share, LEAST_EVALUATED) // WHOLE_GROUPS) * WHOLE_GROUPS),
            drifted=self._drifted,
        )
        return made.collating(self._collate)

    def training(self, position: int) -> HostBatch:
        """Return this rank's part of the global batch that begins at a training sample, counted through all epochs."""
        start = position + self._rank * self._batch_size
        parts = self._taken(self._order.training(start, self._batch_size), self._source_at(position))
        return self._collate(parts, self._features)

    def validation(self, position: int) -> HostBatch:
        """Return this rank's part of the global batch that begins at a held-out sample; there is at least one."""
        start = position + self._rank * self._batch_size
        parts = list(self._order.validation(start, self._batch_size)) or list(self._order.validation(0, 1))
        num_real = min(max(0, self._order.num_validation - start), self._batch_size)
        samples = filled(self._taken(parts, self._source), batch_size=self._batch_size)
        return replace(self._collate([samples], self._features), num_real=num_real)

    def place(self, position: int, sample: int) -> str:
        """Return the place, for people, of a sample of this rank's part of a global batch, as of ``training``."""
        start = position + self._rank * self._batch_size
        source = self._source_at(position)
        for part in self._order.training(start, self._batch_size):
            if sample < len(part.rows):
                return source.place(part.block, int(part.rows[sample]))
            sample -= len(part.rows)
        raise AssertionError("a batch has that many samples")

    def lookups_per_sample(self, count: int) -> Mapping[str, float]:
        """Return the mean lookups of each feature among the first training samples, at most that many."""
        first = self._order.training(0, min(count, self._order.num_training))
        found = joined(self._taken(first, self._source))
        return {name: len(lists.by_sample.values) / len(found) for name, lists in found.lookups.items()}

    def _source_at(self, position: int) -> SampleSource:
        return next((each for begin, each in reversed(self._drifted) if begin <= position), self._source)

    def _taken(self, parts: Iterable[BlockRows], source: SampleSource) -> list[Samples]:
        taken = []
        for part in parts:
            samples = source.take(part.block, part.rows)
            require_valid(samples, self._features, source, part.block, part.rows)
            taken.append(samples)
        return taken


def filled(parts: Sequence[Samples], *, batch_size: int) -> Samples:
    """Return the samples of a whole batch, of which the first count; the rest repeats those that there are."""
    samples = joined(parts)
    if len(samples) < batch_size:
        repeated: IndexArray = np.arange(batch_size) % len(samples)
        samples = samples.take(repeated)
    return samples


Collate = Callable[[Sequence[Samples], Sequence[Feature]], HostBatch]
"""Puts samples together, the parts one behind the other."""


def collated(parts: Sequence[Samples], features: Sequence[Feature]) -> HostBatch:
    """Return samples as tensors, the parts one behind the other."""
    return batch_of(parts, [[part.lookups[feature.name].by_sample for part in parts] for feature in features])


def batch_of(parts: Sequence[Samples], lookups: Sequence[Sequence[Jagged]]) -> HostBatch:
    """Return a batch with the labels and dense features of all parts.

    Args:
        parts: samples, one part behind the other; there is at least one.
        lookups: by feature, in pieces that are one behind the other.
    """
    pieces = [piece for feature in lookups for piece in feature]
    found = joined_jagged(pieces) if pieces else NO_LOOKUPS
    return HostBatch(
        dense=torch.from_numpy(np.concatenate([part.dense for part in parts])),
        values=torch.from_numpy(found.values),
        lengths=torch.from_numpy(found.lengths),
        values_per_feature=[sum(len(piece.values) for piece in feature) for feature in lookups],
        labels=torch.from_numpy(np.concatenate([part.labels for part in parts])),
        num_real=sum(len(part) for part in parts),
        num_positive=sum(int(np.count_nonzero(part.labels)) for part in parts),
    )


Make = Callable[[int], HostBatch]
"""Makes the batch of a position."""
