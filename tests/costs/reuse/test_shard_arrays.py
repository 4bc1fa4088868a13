"""From tables to shard arrays."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.tables import REUSE_BINS, DataType, Optimizer, Table
from neuroshard_costs.reuse.shard_arrays import DEFAULT_ZIPF_EXPONENT, rescaled_counts, shard_arrays, zipf_counts
from neuroshard_costs.shards import OPTIMIZERS, ShardArrays
from support.builders import table, table_set

PUBLISHED = (0.423, 0.165, 0.167, 0.121, 0.073, 0.031, 0.011, 0.004, 0.002, 0.001, 0.001, 0.001, 0, 0, 0, 0, 0)

bins = st.lists(st.floats(0, 1), min_size=REUSE_BINS, max_size=REUSE_BINS).filter(lambda shares: sum(shares) > 0.1)


def arrays(*members: Table, batch: int = 65536) -> ShardArrays:
    """Return the arrays of these tables under SGD."""
    return shard_arrays(table_set(*members), global_batch_size=batch, optimizer=Optimizer.SGD)


def assert_possible(shards: ShardArrays) -> None:
    """Check the rules of any reuse: shares sum to 1, no more rows are touched than exist or are looked up."""
    assert shards.reuse_histogram.sum(axis=1) == pytest.approx(1.0)
    assert (shards.reuse_histogram >= 0).all()
    assert (shards.unique_rows > 0).all()
    assert (shards.unique_rows <= shards.num_rows).all()
    assert (shards.unique_rows <= shards.lookups).all()


@given(
    rows=st.integers(1, 10**13),
    pooling=st.floats(0.01, 1000),
    exponent=st.floats(0, 4),
    batch=st.integers(1, 2**31),
)
def test_any_zipf_table_has_possible_reuse(rows: int, pooling: float, exponent: float, batch: int) -> None:
    """From one row to 10^13 and from one lookup in a hundred samples on, at every skew and batch."""
    assert_possible(
        arrays(table(num_embeddings=rows, pooling_factor=pooling, zipf_exponent=exponent), batch=batch),
    )


@given(rows=st.integers(1, 10**13), pooling=st.floats(0.01, 1000), shares=bins, batch=st.integers(1, 2**31))
def test_any_measured_table_has_possible_reuse(rows: int, pooling: float, shares: list[float], batch: int) -> None:
    """Any histogram can be rescaled to any batch, also one that does not go with the table's rows and lookups."""
    histogram = tuple(share / sum(shares) for share in shares)

    assert_possible(
        arrays(table(num_embeddings=rows, pooling_factor=pooling, reuse_histogram=histogram), batch=batch),
    )


def test_uniform_lookups_are_balls_in_bins() -> None:
    """With exponent 0 the touched rows are R * (1 - exp(-N / R))."""
    shards = arrays(table(num_embeddings=100_000, zipf_exponent=0.0), batch=50_000)

    assert shards.unique_rows[0] == pytest.approx(100_000 * (1 - np.exp(-0.5)), rel=1e-9)


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.3])
def test_zipf_reuse_agrees_with_drawn_lookups(exponent: float) -> None:
    """Touched rows and their bins are those of lookups drawn from the distribution."""
    rows, lookups = 20_000, 200_000
    frequency = np.arange(1, rows + 1) ** -exponent
    counts = np.random.default_rng(0).multinomial(lookups, frequency / frequency.sum())
    drawn = np.bincount(
        np.searchsorted(2 ** np.arange(REUSE_BINS - 1), counts[counts > 0]), minlength=REUSE_BINS
    ).astype(float)

    expected = zipf_counts(np.array([float(rows)]), lookups=np.array([float(lookups)]), exponents=np.array([exponent]))

    assert expected.sum() == pytest.approx(drawn.sum(), rel=0.01)
    assert expected[0] / expected.sum() == pytest.approx(drawn / drawn.sum(), abs=0.01)


def test_a_steeper_skew_touches_fewer_rows() -> None:
    """The hotter the hot rows, the fewer others are looked up."""
    shards = arrays(*(table(f"t{index}", zipf_exponent=index / 2) for index in range(5)))

    assert all(more > less for more, less in pairwise(shards.unique_rows))


def test_tables_that_say_nothing_get_the_set_s_exponent_and_then_the_default() -> None:
    """The table's own exponent counts first, then the set's, then the one fitted to published traces."""
    own, default = table("a", zipf_exponent=1.2), table("b")
    of_set = shard_arrays(
        table_set(own, default, zipf_exponent=0.5), global_batch_size=65536, optimizer=Optimizer.SGD
    ).unique_rows
    explicit = arrays(own, table("b", zipf_exponent=0.5), table("c", zipf_exponent=DEFAULT_ZIPF_EXPONENT)).unique_rows

    assert of_set == pytest.approx(explicit[:2])
    assert arrays(default).unique_rows == pytest.approx(explicit[2:])


def test_a_histogram_is_kept_at_the_batch_it_was_measured_at() -> None:
    """At the set's reuse batch size the arrays hold the histogram as given."""
    shards = arrays(table(num_embeddings=10**7, pooling_factor=8.0, reuse_histogram=PUBLISHED), batch=65536)

    assert shards.reuse_histogram[0] == pytest.approx(PUBLISHED)


def test_a_histogram_changes_little_when_the_batch_does() -> None:
    """One sample more or less makes no jump."""
    before, same, after = (
        rescaled_counts(
            np.array([PUBLISHED]), num_rows=np.array([1e7]), lookups=np.array([5e5]), ratio=1 + step / 65536
        )
        for step in (-1, 0, 1)
    )

    assert before == pytest.approx(same, rel=1e-3, abs=1)
    assert after == pytest.approx(same, rel=1e-3, abs=1)


@pytest.mark.parametrize("ratio", [1 / 16, 1 / 4, 4])
def test_a_rescaled_zipf_histogram_is_that_of_the_other_batch(ratio: float) -> None:
    """Measuring at one batch and rescaling agrees with the histogram derived at the other batch."""
    rows, lookups, exponent = np.array([1e6]), np.array([1e6]), np.array([0.9])
    measured = zipf_counts(rows, lookups=lookups, exponents=exponent)
    wanted = zipf_counts(rows, lookups=lookups * ratio, exponents=exponent)

    found = rescaled_counts(measured / measured.sum(), num_rows=rows, lookups=lookups, ratio=ratio)

    assert found.sum() == pytest.approx(wanted.sum(), rel=0.15)
    assert np.abs(found / found.sum() - wanted / wanted.sum()).sum() / 2 < 0.12


def test_a_larger_batch_touches_more_rows_of_a_measured_table() -> None:
    """New rows join as the batch grows, up to all rows of the table."""
    member = table(num_embeddings=10**6, pooling_factor=8.0, reuse_histogram=PUBLISHED)

    unique = [arrays(member, batch=2**exponent).unique_rows[0] for exponent in range(10, 28, 2)]

    assert all(fewer < more for fewer, more in pairwise(unique))
    assert unique[-1] == pytest.approx(10**6, rel=0.01)


def test_declared_fields_arrive_in_the_arrays() -> None:
    """Rows, columns, lookups, bags, weight and output bytes and optimizer are those of the tables and the call."""
    members = (
        table("a", embedding_dim=8, data_type=DataType.FP16),
        table("b", pooling_factor=3.5, feature_names=("f", "g", "h")),
    )

    shards = shard_arrays(
        table_set(*members), global_batch_size=100, optimizer=Optimizer.ADAM, output_data_type=DataType.BF16
    )

    assert shards.num_columns.tolist() == [8, 64]
    assert shards.bytes_per_element.tolist() == [2, 4]
    assert shards.lookups.tolist() == [100, 350]
    assert shards.bags.tolist() == [100, 300]
    assert shards.output_bytes_per_element.tolist() == [2, 2]
    assert [OPTIMIZERS[code] for code in shards.optimizer] == [Optimizer.ADAM] * 2


def test_a_tables_own_optimizer_comes_before_that_of_all() -> None:
    """Which counts for the others."""
    found = arrays(table("a"), table("b", optimizer=Optimizer.ADAM))

    assert [OPTIMIZERS[code] for code in found.optimizer] == [Optimizer.SGD, Optimizer.ADAM]
    assert found.state_row_bytes.tolist() == [0, 8 * found.num_columns[1]]
