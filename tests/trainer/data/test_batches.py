"""Batches of the ranks."""

from collections.abc import Sequence

import numpy as np
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data import collation
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker, HostBatch
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import Jagged, Samples, features_of
from neuroshard_trainer.data.source import DecodedBlocks
from support import builders

TABLES = (builders.table("number", num_embeddings=100), builders.table("words", num_embeddings=100))
KEYS = ("number", "words")


class Numbered(DecodedBlocks):
    """Samples that look up their own number, once and then as often as it says modulo three."""

    block_sizes: Sequence[int] = (30, 20)

    def __init__(self, *, label: float = 1.0, shift: int = 0, dense: float = 0.0) -> None:
        super().__init__()
        self._label, self._shift, self._dense = label, shift, dense

    def read(self, block: int) -> Samples:
        """Return a block."""
        numbers = np.arange(self.block_sizes[block], dtype=np.int64) + 30 * block
        return Samples(
            labels=np.full(len(numbers), self._label, dtype=np.float32),
            dense=np.stack((numbers, numbers * 0 + self._dense), axis=1).astype(np.float32),
            lookups={
                "number": Jagged.single(numbers + self._shift),
                "words": Jagged.of_lengths(np.repeat(numbers, numbers % 3), numbers % 3),
            },
        )

    def place(self, block: int, row: int) -> str:
        """Return the sample's number."""
        return f"sample {30 * block + row}"


def maker(rank: int = 0, world_size: int = 1, batch_size: int = 8, source: Numbered | None = None) -> BatchMaker:
    """Return a maker of one rank's batches."""
    made = source or Numbered()
    order = SampleOrder(made.block_sizes, validation_percent=20, seed=0, shuffle=True)
    features = features_of(TABLES)
    return BatchMaker(made, order, features, rank=rank, world_size=world_size, batch_size=batch_size)


def numbers(batch: HostBatch) -> list[int]:
    """Return the samples' numbers."""
    return [int(number) for number in batch.values[: batch.values_per_feature[0]]]


def test_a_batch_keeps_each_samples_parts_together() -> None:
    """Dense features, labels and lookups of one row belong to one sample."""
    host = maker().training(3)
    batch = Batch.of(host, KEYS)

    assert batch.dense[:, 0].tolist() == numbers(host)
    assert batch.lookups.keys() == list(KEYS)
    assert batch.lookups["words"].lengths().tolist() == [number % 3 for number in numbers(host)]
    assert batch.labels.tolist() == [1.0] * 8


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_batch_of_one(world_size: int) -> None:
    """The global batch is the same samples in the same order, however many ranks take it."""
    whole = numbers(maker(batch_size=16).training(32))

    parts = [maker(rank, world_size, 16 // world_size).training(32) for rank in range(world_size)]

    assert [number for part in parts for number in numbers(part)] == whole


def test_an_evaluation_counts_every_held_out_sample_once() -> None:
    """The last batch is filled up to the size of the others, on ranks beyond the end too."""
    ranks = [maker(rank, 2, batch_size=4) for rank in range(2)]
    batches = [each.validation(position) for position in (0, 8) for each in ranks]

    assert [batch.num_real for batch in batches] == [4, 4, 2, 0]
    assert {len(batch.labels) for batch in batches} == {4}
    real = [number for batch in batches for number in numbers(batch)[: batch.num_real]]
    assert len(set(real)) == 10


def test_the_readers_of_an_evaluation_share_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch for all of them would leave it to one reader to read all blocks; no batch is larger than a step's."""
    monkeypatch.setattr(collation, "LEAST_EVALUATED", 2)
    monkeypatch.setattr(collation, "WHOLE_GROUPS", 1)
    ranks = [maker(rank, 2, batch_size=40).for_evaluation(num_readers=2) for rank in range(2)]
    size = ranks[0].global_batch_size
    batches = [each.validation(position) for position in range(0, 10, size) for each in ranks]

    assert size == 2 * 3, "10 samples among 2 readers of 2 ranks"
    real = [number for batch in batches for number in numbers(batch)[: batch.num_real]]
    assert len(real) == len(set(real)) == 10
    assert maker(0, 1, batch_size=4).for_evaluation(num_readers=0).global_batch_size == 4
    monkeypatch.setattr(collation, "LEAST_EVALUATED", 5)
    assert ranks[0].for_evaluation(num_readers=2).global_batch_size == 2 * 3, "of this maker's batches"
    assert maker(0, 2, batch_size=40).for_evaluation(num_readers=9).global_batch_size == 2 * 5


def test_a_batch_of_an_evaluation_fills_the_groups_of_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of narrow types encodes it, whatever the number of held-out samples is."""
    monkeypatch.setattr(collation, "LEAST_EVALUATED", 2)

    assert maker(0, 2, batch_size=64).for_evaluation(num_readers=0).global_batch_size == 2 * 32


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Numbered(shift=60), r"sample (4\d): 'number' looks up row 10\d, table 'number' has rows 0 to 99"),
        (Numbered(shift=-1), r"sample 0: 'number' looks up row -1, table"),
        (Numbered(label=3.0), r"sample \d+: the label must be 0 or 1, found 3"),
        (Numbered(dense=float("nan")), r"sample \d+: dense feature \d+ is nan, expected a finite number"),
    ],
    ids=["id too large", "negative id", "label", "dense"],
)
def test_a_sample_that_cannot_be_used_is_named(source: Numbered, expected: str) -> None:
    """By its place in the stored order."""
    made = maker(source=source)

    with pytest.raises(DataError, match=expected):
        _ = [made.training(position) for position in range(0, 40, 8)]
