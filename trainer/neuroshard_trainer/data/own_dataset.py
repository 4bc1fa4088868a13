"""Samples of a torch ``IterableDataset`` of the user's own, named ``package.module:Class``.

The class is called once in each reader process with the keywords of OwnDataset's ``arguments``, and iterated over:
a sample is ``(label, dense, lookups)`` with a number, a sequence of numbers, and a mapping from features to row ids.
When an iteration ends, the next epoch begins.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from neuroshard_api.process.errors import DataError, ExpectedError

from neuroshard_trainer.data.collation import Collate, HostBatch, collated, filled
from neuroshard_trainer.data.samples import Feature, IndexArray, Jagged, Samples
from neuroshard_trainer.data.source import require_valid


def dataset_class(name: str) -> Callable[..., Iterable[Any]]:
    """Return the class ``package.module:Class``. Raises DataError."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Iterable[Any]] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise DataError(
            f"spec.data.dataset: {name!r} cannot be imported ({error})"
            f"; hint: install its package in the trainer's image, or "
            "put its folder on PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise DataError(f"spec.data.dataset: module {module!r} has no {attribute!r}; hint: check the name") from error
    return found


@dataclass(frozen=True, kw_only=True)
class OwnDataset:
    """This rank's batches of a user's dataset.

    Batch ``position / global_batch_size`` is made from the shard that belongs to the rank and, in turn, to one of its
    reader processes. After a restart with other numbers of ranks or readers every shard passes over its part of the
    samples that were used, which need not be the same samples; with equal numbers they are.
    """

    name: str
    path: str | None
    features: Sequence[Feature]
    num_dense: int
    rank: int
    world_size: int
    batch_size: int
    num_readers: int
    seed: int
    collate: Collate = collated

    def __post_init__(self) -> None:
        self.__dict__["_streams"] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": {}}

    def collating(self, collate: Collate) -> "OwnDataset":
        """Return the same samples, put together in another way."""
        return replace(self, collate=collate)

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in a step."""
        return self.world_size * self.batch_size

    def training(self, position: int) -> HostBatch:
        """Return a batch of the training samples; positions must come in order."""
        return self.collate([self._next(position, evaluation=False)[0]], self.features)

    def validation(self, position: int) -> HostBatch:
        """Return a batch of the samples of an evaluation; positions must come in order, from 0 on."""
        samples, num_real = self._next(position, evaluation=True)
        return replace(self.collate([filled([samples], batch_size=self.batch_size)], self.features), num_real=num_real)

    def length(self, *, evaluation: bool) -> int | None:
        """Return the samples of an epoch or an evaluation, over all shards; None: the dataset does not tell."""
        dataset = self._dataset(shard=0, evaluation=evaluation)
        return len(dataset) if isinstance(dataset, Sized) else None

    def place(self, _block: int, row: int) -> str:
        """Return the name of the dataset."""
        return f"spec.data.dataset {self.name}, rank {self.rank}, sample {row} of a batch"

    def _dataset(self, *, shard: int, evaluation: bool) -> Iterable[Any]:
        arguments = {
            "path": self.path,
            "features": [feature.name for feature in self.features],
            "num_dense": self.num_dense,
            "shard": shard,
            "num_shards": self.world_size * max(1, self.num_readers),
            "seed": self.seed,
            "evaluation": evaluation,
        }
        return dataset_class(self.name)(**arguments)

    def _next(self, position: int, *, evaluation: bool) -> tuple[Samples, int]:
        """Return a batch's samples, and how many are not repetition."""
        readers = max(1, self.num_readers)
        turn, reader = divmod(position // self.global_batch_size, readers)
        shard = self.rank * readers + reader
        streams: dict[tuple[int, bool], Iterator[Any]] = self.__dict__["_streams"]
        try:
            if (shard, evaluation) not in streams or (evaluation and turn == 0):
                streams[shard, evaluation] = _endless(self._dataset(shard=shard, evaluation=evaluation), evaluation)
                for _ in range(turn * self.batch_size):
                    next(streams[shard, evaluation], None)
            taken = [sample for _, sample in zip(range(self.batch_size), streams[shard, evaluation], strict=False)]
        except ExpectedError:
            raise
        except Exception as error:
            raise DataError(f"spec.data.dataset: {self.name} raised {type(error).__name__}: {error}") from error
        if not taken and not evaluation:
            raise DataError(f"spec.data.dataset: {self.name}: shard {shard} yields no samples; hint: use fewer shards")
        samples = self._samples(taken) if taken else self._nothing()
        rows: IndexArray = np.arange(len(samples))
        if taken:
            require_valid(samples, self.features, self, 0, rows)  # type: ignore[arg-type]
        return samples, len(taken)

    def _nothing(self) -> Samples:
        none = Jagged.single(np.zeros(0, dtype=np.int64))
        empty = replace(none, lengths=np.zeros(1, dtype=np.int32))
        return Samples(
            labels=np.zeros(1, dtype=np.float32),
            dense=np.zeros((1, self.num_dense), dtype=np.float32),
            lookups={feature.name: empty for feature in self.features},
        )

    def _samples(self, taken: Sequence[Any]) -> Samples:
        try:
            labels, dense, lookups = zip(*taken, strict=True)
            stacked = np.asarray(dense, dtype=np.float32).reshape(len(taken), self.num_dense)
            return Samples(
                labels=np.asarray(labels, dtype=np.float32),
                dense=stacked,
                lookups={feature.name: _jagged(feature.name, lookups) for feature in self.features},
            )
        except (TypeError, ValueError, KeyError) as error:
            raise DataError(
                f"spec.data.dataset: {self.name}: a sample must be (label, {self.num_dense} dense features, lookups by "
                f"feature), found {str(taken[0])[:80]} ({type(error).__name__}: {error})"
            ) from error


def _jagged(feature: str, lookups: Sequence[Mapping[str, Any]]) -> Jagged:
    ids = [np.asarray(each[feature], dtype=np.int64).reshape(-1) for each in lookups]
    return Jagged.of_lengths(np.concatenate(ids), np.array([len(each) for each in ids]))


def _endless(dataset: Iterable[Any], once: bool) -> Iterator[Any]:  # noqa: FBT001 - named by its only caller
    while True:
        empty = True
        for sample in dataset:
            empty = False
            yield sample
        if once or empty:
            return
