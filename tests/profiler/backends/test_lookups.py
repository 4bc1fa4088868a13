"""Specification of the rows that a measured batch looks up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_costs.reuse.hit_counts import BIN_EDGES
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_profiler.backends.lookups import draw_batches, draw_lookups
from support.builders import table
from support.profiler.profiler_builders import compute_sample


def histogram(**shares: float) -> tuple[float, ...]:
    """Return a reuse histogram from shares such as ``b0=0.5, b3=0.5``."""
    return tuple(shares.get(f"b{index}", 0.0) for index in range(17))


@given(
    num_rows=st.integers(1, 5000),
    pooling=st.floats(0.1, 20.0),
    exponent=st.floats(0.0, 3.0),
    batch_size=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)
def test_rows_exist_and_every_lookup_has_one(
    num_rows: int, pooling: float, exponent: float, batch_size: int, seed: int
) -> None:
    """An id beyond the table would crash the kernel, a missing one would shift all bags."""
    sample = compute_sample(
        table(num_embeddings=num_rows, pooling_factor=pooling, zipf_exponent=exponent), batch_size=batch_size
    )
    (lookups,) = draw_lookups(sample, np.random.default_rng(seed))

    assert len(lookups.lengths) == batch_size
    assert lookups.lengths.sum() == len(lookups.rows)
    assert ((lookups.rows >= 0) & (lookups.rows < num_rows)).all()


def test_one_hot_features_have_one_lookup_per_sample() -> None:
    """A pooling factor of exactly 1 is a categorical column, not an average."""
    (lookups,) = draw_lookups(compute_sample(table()), np.random.default_rng(0))

    assert (lookups.lengths == 1).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"num_embeddings": 20_000, "zipf_exponent": 0.0},
        {"num_embeddings": 20_000, "zipf_exponent": 1.2},
        {"num_embeddings": 300, "zipf_exponent": 0.7, "pooling_factor": 8.0},
        {"num_embeddings": 20_000, "reuse_histogram": histogram(b0=0.7, b2=0.2, b5=0.1)},
    ],
    ids=["uniform", "skewed", "small and multi-hot", "measured histogram"],
)
def test_rows_repeat_as_the_cost_models_expect(fields: dict[str, Any]) -> None:
    """The features of a record describe what the kernel really did: distinct rows, and hits of each."""
    sample = compute_sample(table(**fields), batch_size=16_384, reuse_batch_size=16_384)
    expected = sample_shards(sample)
    (lookups,) = draw_lookups(sample, np.random.default_rng(0))
    hits = np.unique(lookups.rows, return_counts=True)[1]
    bins = np.bincount(np.searchsorted(BIN_EDGES, hits), minlength=17) / len(hits)

    assert len(hits) == pytest.approx(expected.unique_rows[0], rel=0.05)
    assert np.abs(bins - expected.reuse_histogram[0]).sum() < 0.15


def test_the_batches_of_a_sample_differ() -> None:
    """A call that finds last call's rows in the cache would be too fast."""
    first, second, *_ = draw_batches(compute_sample(table(num_embeddings=10**6)), seed=3)

    assert not np.array_equal(first[0].rows, second[0].rows)


def test_popular_rows_are_spread_over_the_table() -> None:
    """Neighbouring popular rows would share pages, which those of real tables do not."""
    sample = compute_sample(table(num_embeddings=10**6, zipf_exponent=1.5), batch_size=4096)
    (lookups,) = draw_lookups(sample, np.random.default_rng(0))
    rows, hits = np.unique(lookups.rows, return_counts=True)
    popular = np.sort(rows[np.argsort(-hits)[:20]])

    assert np.diff(popular).min() > 100
