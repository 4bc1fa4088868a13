"""A dataset of the user's own in batches."""

from typing import Any

import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.own_dataset import OwnDataset
from neuroshard_trainer.data.samples import features_of
from support import builders
from support.trainer.own_datasets import NUM_EVALUATION_SAMPLES, NUM_SAMPLES

TABLES = (builders.table("user", num_embeddings=NUM_SAMPLES),)


def dataset(name: str = "support.trainer.own_datasets:Numbered", **fields: Any) -> OwnDataset:
    """Return one rank's batches."""
    values = {"rank": 0, "world_size": 1, "batch_size": 5, "num_readers": 0, "num_dense": 2, "path": None, "seed": 0}
    return OwnDataset(name=name, features=features_of(TABLES), **{**values, **fields})


def numbers(made: OwnDataset, steps: range) -> list[int]:
    """Return the samples of some steps in turn."""
    size = made.global_batch_size
    return [int(value) for step in steps for value in made.training(step * size).values]


@pytest.mark.parametrize(("world_size", "readers"), [(1, 1), (2, 1), (2, 3)])
def test_the_shards_of_ranks_and_readers_are_an_epoch(world_size: int, readers: int) -> None:
    """Every sample comes once, and the next epoch begins where one ends."""
    made = [dataset(rank=rank, world_size=world_size, num_readers=readers) for rank in range(world_size)]
    steps = NUM_SAMPLES // (5 * world_size)

    epoch = [number for each in made for number in numbers(each, range(steps))]
    again = [number for each in made for number in numbers(each, range(steps, 2 * steps))]

    assert sorted(epoch) == sorted(again) == list(range(NUM_SAMPLES))


def test_a_restart_goes_on_with_the_very_next_samples() -> None:
    """With equal numbers of ranks and readers, in the middle of an epoch and of the readers' turn."""
    through = numbers(dataset(num_readers=2), range(20))

    assert numbers(dataset(num_readers=2), range(7, 20)) == through[7 * 5 :]


def test_an_evaluation_counts_every_sample_once_each_time() -> None:
    """What fills the last batches up does not count; a second evaluation begins from the start."""
    made = [dataset(rank=rank, world_size=2, num_readers=1, batch_size=4) for rank in range(2)]
    for _ in range(2):
        batches = [each.validation(position) for position in (0, 8, 16) for each in made]
        real = [int(value) for batch in batches for value in batch.values[: batch.num_real]]
        assert sorted(real) == list(range(NUM_EVALUATION_SAMPLES))


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("no_such_package:Class", {}, "'no_such_package:Class' cannot be imported"),
        ("support.trainer.own_datasets:Missing", {}, "module 'support.trainer.own_datasets' has no 'Missing'"),
        ("support.trainer.own_datasets:Wrong", {}, "a sample must be .*lookups by feature.*, found"),
        ("support.trainer.own_datasets:Silent", {}, "shard 0 yields no samples"),
        ("support.trainer.own_datasets:Numbered", {"num_dense": 2, "world_size": 1, "batch_size": 70}, None),
    ],
    ids=["package", "class", "samples", "silent", "larger than the data"],
)
def test_a_dataset_that_cannot_be_used_is_named(name: str, fields: dict[str, Any], expected: str | None) -> None:
    """With what it yields."""
    made = dataset(name, **fields)
    if expected is None:
        assert len(made.training(0).labels) == fields["batch_size"]
        return
    with pytest.raises(DataError, match=expected):
        made.training(0)


def test_a_row_outside_its_table_is_named() -> None:
    """As in every other format."""
    made = OwnDataset(
        name="support.trainer.own_datasets:Numbered",
        features=features_of((builders.table("user", num_embeddings=3),)),
        rank=0,
        world_size=1,
        batch_size=5,
        num_readers=0,
        num_dense=2,
        path=None,
        seed=0,
    )

    with pytest.raises(DataError, match=r"own_datasets:Numbered, rank 0, sample 3 of a batch: 'user' looks up row 3"):
        made.training(0)
