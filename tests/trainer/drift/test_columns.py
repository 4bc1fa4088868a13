"""Columns that lack values, or are distributed otherwise."""

import numpy as np
import pytest
from neuroshard_trainer.drift.columns import (
    DenseColumns,
    FloatArray,
    ShareReference,
    ShareWatch,
    alike_values,
    shares_moved,
)
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


@pytest.mark.parametrize(("run", "expected"), [(1, 1.0), (8, 8.0)])
def test_runs_of_equal_values_tell_how_alike_neighbors_are(run: int, expected: float) -> None:
    """Whatever their distribution is; a constant has nothing to compare."""
    rng = np.random.default_rng(3)
    drawn = np.stack((rng.normal(size=512), rng.random(512) < 0.3, np.ones(512)), axis=1)

    found = alike_values(np.repeat(drawn, run, axis=0))

    assert found.tolist() == [pytest.approx(expected, rel=0.1), pytest.approx(expected, rel=0.1), 1.0]


def test_a_share_that_is_constant_in_runs_has_not_moved() -> None:
    """Of 60 sessions a batch, next to columns without any; a few batches alone tell too little of it."""
    rng, moved = np.random.default_rng(4), []
    for _ in range(40):
        watch = ShareWatch(0.1, 3, ShareReference())
        for _ in range(3 + 20):
            batch = np.column_stack((np.repeat(rng.random(60) < 0.5, 8), rng.random((480, 3)) < 0.5)).astype(float)
            moved.append(watch.add(batch.mean(axis=0), np.full(4, 480), alike_values(batch))[0])

    assert not any(moved)
