"""Datasets as users write them, for the format Dataset; reader processes import them by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset

Sample = tuple[float, Sequence[float], Mapping[str, Sequence[int]]]
NUM_SAMPLES, NUM_EVALUATION_SAMPLES = 60, 14


class Numbered(IterableDataset[Sample]):
    """Samples that look up their own number; each shard has every num_shards-th."""

    def __init__(
        self, *, features: Sequence[str], num_dense: int, shard: int, num_shards: int, evaluation: bool, **_: Any
    ) -> None:
        self._features, self._num_dense = features, num_dense
        self._end = NUM_EVALUATION_SAMPLES if evaluation else NUM_SAMPLES
        self._numbers = range(shard, self._end, num_shards)

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[Sample]:
        for number in self._numbers:
            yield number % 2, [number] * self._num_dense, {name: [number] for name in self._features}


class Wrong(Numbered):
    """Samples without lookups."""

    def __iter__(self) -> Iterator[Any]:
        yield 1.0, [0.0]


class Silent(Numbered):
    """No samples at all."""

    def __iter__(self) -> Iterator[Sample]:
        yield from ()
