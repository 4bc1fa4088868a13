"""Statistics of inputs, and when they are others than before."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_trainer.data.synthetic import zipf_ranks
from neuroshard_trainer.drift.input_statistics import (
    FeatureCounts,
    InputDrift,
    counts_of,
    feature_counts,
    statistics_of,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 2048
ROWS = 1_000_000
Lists = list[list[int]]


def counted(lists: Sequence[Sequence[int]]) -> FeatureCounts:
    """Return the counts of lists of rows."""
    values = np.array([row for each in lists for row in each], dtype=np.int64)
    return feature_counts(values, np.array([len(each) for each in lists], dtype=np.int32))


def batch(seed: int, *, pooling: int = 10, exponent: float = 0.85, samples: int = SAMPLES) -> dict[str, FeatureCounts]:
    """Return the counts of a batch with Zipf-distributed lookups."""
    rows = zipf_ranks(np.random.default_rng(seed).random(samples * pooling), ROWS, exponent)
    return {"item": feature_counts(rows, np.full(samples, pooling))}


def drift() -> InputDrift:
    """Return what compares with two usual batches."""
    return InputDrift(statistics_of([batch(0), batch(1)], plan_sha256="0" * 64, first_step=0, last_step=100))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=30))
def test_counts_are_those_of_sets(lists: Lists) -> None:
    """Of rows, and of lists with their order and repetitions."""
    assert counted(lists) == FeatureCounts(
        samples=len(lists),
        lookups=sum(map(len, lists)),
        distinct_rows=len({row for each in lists for row in each}),
        distinct_lists=len({tuple(each) for each in lists}),
    )


def test_a_batch_is_counted_by_feature() -> None:
    """As TorchRec holds it, with samples that look nothing up."""
    lookups = KeyedJaggedTensor(
        keys=["user", "item"], values=torch.tensor([7, 7, 1, 2, 1, 2]), lengths=torch.tensor([1, 0, 1, 2, 2, 0])
    )

    assert counts_of(lookups) == {"user": counted([[7], [], [7]]), "item": counted([[1, 2], [1, 2], []])}


def test_statistics_are_means_over_batches() -> None:
    """By samples and by lookups, not by batches."""
    batches = [{"item": counted([[1, 1], [1, 1]])}, {"item": counted([[1, 2], [3, 4]])}]

    found = statistics_of(batches, plan_sha256="0" * 64, first_step=3, last_step=103)

    (item,) = found.features
    assert (found.batch_size, found.num_batches, found.first_step, found.last_step) == (2, 2, 3, 103)
    assert item.lookups_per_sample == 2.0
    assert item.distinct_rows_per_lookup == pytest.approx(5 / 8)
    assert item.distinct_lists_per_sample == pytest.approx(3 / 4)


@pytest.mark.parametrize("changed", [{"pooling": 13}, {"pooling": 8}, {"exponent": 0.95}, {"exponent": 0.75}], ids=str)
def test_pooling_and_skew_are_found_at_the_second_batch(changed: dict[str, float]) -> None:
    """One batch alone may be odd."""
    watching = drift()

    assert watching.add(batch(10, **changed)) == ()  # type: ignore[arg-type] # pooling is whole
    assert watching.add(batch(11, **changed)) == ("item",)  # type: ignore[arg-type]
    assert watching.add(batch(12)) == ()


def test_usual_batches_raise_no_alarm() -> None:
    """Over 50 sampled batches, which are 5,000 steps."""
    watching = drift()

    assert not any(watching.add(batch(seed)) for seed in range(100, 150))


def test_another_batch_size_shows_nothing() -> None:
    """The last batch of an epoch is smaller, and has more distinct rows per lookup."""
    watching = drift()

    assert not any(watching.add(batch(seed, samples=500)) for seed in range(5))


def test_a_feature_without_lookups_is_no_error() -> None:
    """It changed once it had some, and stays the same while it has none."""
    empty = {"item": counted([[]] * 8)}
    watching = InputDrift(statistics_of([empty], plan_sha256="0" * 64, first_step=0, last_step=0))

    assert watching.add(empty) == watching.add(empty) == ()
    full = {"item": counted([[each] for each in range(8)])}
    assert [watching.add(full) for _ in range(2)] == [(), ("item",)]


def test_statistics_pass_through_their_document() -> None:
    """As another process reads them."""
    written = statistics_of([batch(0)], plan_sha256="0" * 64, first_step=0, last_step=0)

    assert type(written).from_json(written.to_json()) == written
