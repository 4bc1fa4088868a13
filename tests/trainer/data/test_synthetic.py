"""Made-up samples."""

import builders
import numpy as np
import pytest
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import require_valid
from neuroshard_trainer.data.synthetic import SyntheticSource, zipf_ranks
from trainer_builders import TABLES


def source(num_samples: int = 10_000, seed: int = 0) -> SyntheticSource:
    """Return made-up samples for the small tables."""
    tables = builders.table_set(*TABLES)
    return SyntheticSource(tables, features_of(TABLES), num_dense=3, num_samples=num_samples, seed=seed)


def test_blocks_can_be_read_again_and_in_any_order() -> None:
    """A block is a function of the seed and its number."""
    first, second = source().read(2), source().read(2)

    np.testing.assert_array_equal(first.lookups["user"].values, second.lookups["user"].values)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert sum(source().block_sizes) == 10_000
    assert not np.array_equal(first.labels, source(seed=1).read(2).labels)


def test_lookups_have_the_tables_statistics() -> None:
    """Ids exist, and the mean number of lookups is the pooling factor."""
    made = source()
    block = made.read(0)

    require_valid(block, features_of(TABLES), made, 0, np.arange(len(block)))
    assert block.lookups["user"].lengths.mean() == pytest.approx(2.5, abs=0.05)
    assert set(block.lookups["user"].lengths) == {2, 3}
    assert set(block.lookups["item"].lengths) == {1}


@pytest.mark.parametrize("exponent", [0.0, 0.85, 1.0, 1.3])
def test_ranks_follow_zipf(exponent: float) -> None:
    """The shares of the ranges 1-10 and 1-100 are those of the integral that stands for the sum."""
    ranks = zipf_ranks(np.random.default_rng(0).random(200_000), 1000, exponent)

    def mass(end: float) -> float:
        return float(np.log(end)) if exponent == 1 else (end ** (1 - exponent) - 1) / (1 - exponent)

    assert ranks.min() >= 0
    assert ranks.max() < 1000
    for top in (10, 100):
        assert (ranks < top).mean() == pytest.approx(mass(top + 1) / mass(1001), abs=0.01)


def test_tables_of_any_size_are_possible() -> None:
    """Nothing is as long as the table, and no id overflows."""
    table = builders.table("vast", num_embeddings=10**13)
    made = SyntheticSource(builders.table_set(table), features_of((table,)), num_dense=1, num_samples=1000, seed=0)

    values = made.read(0).lookups["vast"].values

    assert values.min() >= 0
    assert values.max() < 10**13
    assert len(np.unique(values)) > 100


def test_labels_hold_a_signal() -> None:
    """Each id decides some of the label, so that ids seen in one half of the samples predict the other half."""
    block = source().read(0)
    country = block.lookups["country"].values
    half = len(country) // 2

    rates = np.array([block.labels[:half][country[:half] == value].mean() for value in range(7)])
    likely = rates[country[half:]] > np.median(rates)

    assert block.labels[half:][likely].mean() > block.labels[half:][~likely].mean() + 0.1
