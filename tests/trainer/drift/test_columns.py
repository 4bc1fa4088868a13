"""Columns that lack values, or are distributed otherwise."""

import numpy as np
import pytest
from neuroshard_trainer.drift.columns import DenseColumns, FloatArray, shares_moved
from numpy.typing import NDArray

SAMPLES = 1024
FILLS = np.array([0.0, 0.0, np.nan])


def batch(rng: np.random.Generator, *, missing: float = 0.1, shift: float = 0.0) -> NDArray[np.float32]:
    """Return values of three columns, of which the first has missing ones and the last is shifted."""
    values = rng.normal(size=(SAMPLES, 3)).astype(np.float32)
    values[rng.random(SAMPLES) < missing, 0] = 0.0
    values[:, 2] += shift
    return values


def columns(rng: np.random.Generator) -> DenseColumns:
    """Return the reference of three batches."""
    return DenseColumns.of([batch(rng) for _ in range(3)], FILLS)


def test_more_missing_values_are_found_in_one_batch() -> None:
    """With the shares before and now, by column; fewer are none."""
    rng = np.random.default_rng(0)
    known = columns(rng)

    found = known.nulls(batch(rng, missing=0.3))

    assert list(found) == [0]
    assert list(found[0]) == [pytest.approx(0.1, abs=0.03), pytest.approx(0.3, abs=0.04)]
    assert known.nulls(batch(rng, missing=0.0)) == {}


def test_another_distribution_is_found_in_one_batch() -> None:
    """With the largest difference of the shares below a value."""
    rng = np.random.default_rng(1)
    known = columns(rng)

    found = known.moved(batch(rng, shift=1.0))

    assert list(found) == [2]
    assert found[2] == pytest.approx(0.38, abs=0.05)
    assert known.moved(batch(rng)) == {}


def test_samples_that_are_alike_are_expected_to_vary() -> None:
    """Each value eight times in a row, as those of a session are: 300 batches of 100 columns have no finding."""
    rng = np.random.default_rng(2)

    def sessions() -> NDArray[np.float32]:
        return np.repeat(rng.normal(size=(16, 100)), 8, axis=0).astype(np.float32)

    known = DenseColumns.of([sessions() for _ in range(3)], np.full(100, np.nan))

    assert np.median(known.reference.excess) > 4
    assert not any(known.moved(sessions()) for _ in range(300))


@pytest.mark.parametrize("samples", [64, 512, 4096])
def test_shares_that_are_drawn_have_not_moved(samples: int) -> None:
    """In a million pairs, of shares from none to a half."""
    rng = np.random.default_rng(samples)
    shares: FloatArray = np.repeat([0.0, 0.01, 0.2, 0.5], 250_000)
    before, now = (rng.binomial(count, shares) / count for count in (3 * samples, samples))

    moved = shares_moved(before, now, num_before=3 * samples, num_now=samples, excess=1.0, least=0.05)

    assert not moved.any()
