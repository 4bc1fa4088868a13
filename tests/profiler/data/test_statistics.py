"""Specification of what a sample of training data says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.tables import REUSE_BINS, IdRule
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.backends.lookups import draw_lookups
from neuroshard_profiler.data.batches import DataBatch, FeatureBatch
from neuroshard_profiler.data.statistics import SampledFeature, SharedRows, data_statistics
from support.builders import table
from support.profiler.profiler_builders import compute_sample


def batch(*lists: list[int], sessions: list[int] | None = None) -> DataBatch:
    """Return a batch with one feature, whose lists are given sample by sample."""
    feature = FeatureBatch(
        lengths=np.array([len(each) for each in lists], dtype=np.int64),
        ids=np.array([entry for each in lists for entry in each], dtype=np.int64),
    )
    return DataBatch(
        num_samples=len(lists),
        features={"item": feature},
        sessions=None if sessions is None else np.array(sessions, dtype=np.int64),
    )


def test_rows_pooling_and_reuse_are_counted() -> None:
    """One row hit once, one twice, one three times: a third each in the bins 1, 2 and 3 to 4."""
    (item,) = data_statistics([batch([1, 2], [2, 9], [9, 9])], batch_size=3, ids_are_rows=True).features

    assert (item.num_rows, item.pooling_factor) == (10, 2.0)
    assert item.reuse_histogram[:4] == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0.0))
    assert item.duplication_factor is None


def test_hashes_are_counted_and_not_taken_as_rows() -> None:
    """A hash says nothing about the table's size; distinct ones over all batches do."""
    (item,) = data_statistics([batch([900], [7]), batch([7], [8])], batch_size=2, ids_are_rows=False).features

    assert item.num_rows == 3


@pytest.mark.parametrize(
    ("ids", "rule", "rows"),
    [
        ([0, 5, 9], IdRule.EXACT, 10),
        ([2**20 - 1], IdRule.EXACT, 2**20),
        ([2**20], IdRule.HASH, 2),
        ([*range(2000), 1024 * 2001 - 1], IdRule.EXACT, 1024 * 2001),
        ([*range(2000), 1024 * 2001], IdRule.HASH, 4002),
        ([-1, 3], IdRule.HASH, 4),
        ([2**62], IdRule.HASH, 2),
    ],
    ids=["numbers", "few of a million", "few of more", "many of many", "too far apart", "negative", "64 bits"],
)
def test_integers_are_rows_where_they_number_some(ids: list[int], rule: IdRule, rows: int) -> None:
    """Others are hashed, into two rows for each."""
    (item,) = data_statistics([batch(ids)], batch_size=1, ids_are_rows=True).features

    assert (item.id_rule, item.num_rows, item.num_ids) == (rule, rows, len(ids))
    assert (item.shared is None) == (rule is IdRule.EXACT)


def test_texts_are_hashed() -> None:
    """Whatever their hashes are, and no other rule is allowed."""
    texts = batch([3, 4])
    texts = replace(texts, features={"item": replace(texts.features["item"], are_texts=True)})

    (item,) = data_statistics([texts], batch_size=1, ids_are_rows=True).features

    assert (item.id_rule, item.num_rows) == (IdRule.HASH, 4)
    with pytest.raises(DataError, match="'item': its ids are texts, which have the id rule Hash alone; hint: give"):
        data_statistics([texts], batch_size=1, ids_are_rows=True, id_rule=IdRule.MODULO)


def test_texts_that_number_rows_are_rows() -> None:
    """As the ids of a CSV file do, which are all texts, unless one is not an integer."""

    def counted(*numbers: list[int] | None) -> SampledFeature:
        texts = FeatureBatch(lengths=np.array([1]), ids=np.array([77]), are_texts=True)
        known = [None if each is None else np.array(each, dtype=np.int64) for each in numbers]
        batches = [
            DataBatch(num_samples=1, features={"item": replace(texts, numbers=each)}, sessions=None) for each in known
        ]
        return data_statistics(batches, batch_size=1, ids_are_rows=True).features[0]

    assert (counted([3, 5], [], [0, 9]).id_rule, counted([3, 5], [0, 9]).num_rows) == (IdRule.EXACT, 10)
    assert counted([3, 5], None).id_rule is IdRule.HASH


@pytest.mark.parametrize(("rows_per_id", "expected"), [(1.0, 0.632), (2.0, 0.393), (4.0, 0.221), (10.0, 0.095)])
def test_the_ids_that_share_a_row_are_counted(rows_per_id: float, expected: float) -> None:
    """The share is near that of ids thrown at random, 1 - exp(-1 / rows per id), of ids and lookups alike."""
    ids = [-1 - each * each for each in range(20_000)]
    batches = [batch(ids[:15_000]), batch(ids[10_000:])]

    (item,) = data_statistics(batches, batch_size=1, ids_are_rows=True, rows_per_id=rows_per_id).features

    assert item.num_rows == 20_000 * rows_per_id
    assert item.shared is not None
    assert (item.shared.ids, item.shared.lookups) == pytest.approx((expected, expected), abs=0.015)


def test_lookups_of_a_shared_row_are_those_that_training_puts_there() -> None:
    """By the trainer's own rule: 3 and 13 are one row of 10, which 4 of 5 lookups use."""
    (item,) = data_statistics(
        [batch([3, 3, 3, 13, 5])], batch_size=1, ids_are_rows=True, id_rule=IdRule.MODULO, rows_per_id=10 / 3
    ).features

    assert item.num_rows == 10
    assert item.shared == SharedRows(ids=2 / 3, lookups=0.8)


def test_a_last_batch_that_is_short_does_not_bend_the_reuse() -> None:
    """Rows of a smaller batch repeat less."""
    whole = data_statistics([batch([1], [1])], batch_size=2, ids_are_rows=True)
    more = data_statistics([batch([1], [1]), batch([1])], batch_size=2, ids_are_rows=True)

    assert more.features[0].reuse_histogram == whole.features[0].reuse_histogram
    assert more.reuse_batch_size == 2


def test_a_sample_smaller_than_a_batch_states_its_own_size() -> None:
    """The reuse is then rescaled from there."""
    assert data_statistics([batch([1], [2], [3])], batch_size=1000, ids_are_rows=True).reuse_batch_size == 3


def test_lists_that_repeat_within_a_session_are_duplicates() -> None:
    """Three samples of session 0 with one list, one of session 1 with the same: 4 samples, 2 to store."""
    statistics = data_statistics(
        [batch([1, 2], [1, 2], [1, 2], [1, 2], sessions=[0, 0, 0, 1])], batch_size=4, ids_are_rows=True
    )

    assert statistics.features[0].duplication_factor == 2.0
    assert statistics.samples_per_session == 2.0


@given(lists=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=12))
def test_duplicates_are_those_of_a_plain_count(lists: list[list[int]]) -> None:
    """Order matters in a list, and an empty list is a list."""
    sessions = [index % 2 for index in range(len(lists))]
    (item,) = data_statistics([batch(*lists, sessions=sessions)], batch_size=len(lists), ids_are_rows=True).features
    distinct = {(session, tuple(each)) for session, each in zip(sessions, lists, strict=True)}

    assert item.duplication_factor == len(lists) / len(distinct)
    assert sum(item.reuse_histogram) == pytest.approx(1.0 if any(lists) else 0.0)


def test_a_table_set_of_drawn_data_describes_the_data() -> None:
    """What was drawn by a Zipf exponent comes back as rows, pooling and reuse."""
    drawn = draw_lookups(
        compute_sample(table(num_embeddings=500, pooling_factor=4.0, zipf_exponent=1.0), batch_size=2000),
        np.random.default_rng(0),
    )[0]
    data = DataBatch(
        num_samples=2000, features={"my item": FeatureBatch(lengths=drawn.lengths, ids=drawn.rows)}, sessions=None
    )
    tables = data_statistics([data], batch_size=2000, ids_are_rows=True).table_set(
        embedding_dim=32, name="shop", source="sample"
    )
    (made,) = tables.tables

    assert (made.name, made.feature_names) == ("my_item", ("my item",))
    assert 490 <= made.num_embeddings <= 500
    assert made.pooling_factor == pytest.approx(4.0, rel=0.05)
    assert made.reuse_histogram is not None
    assert len(made.reuse_histogram) == REUSE_BINS
    assert tables.reuse_batch_size == 2000


def test_a_feature_without_ids_is_named() -> None:
    """A table that nothing looks up cannot be planned."""
    statistics = data_statistics([batch([], [])], batch_size=2, ids_are_rows=True)

    with pytest.raises(DataError, match="feature 'item' has no ids in 2 samples; hint: give --ignore item"):
        statistics.table_set(embedding_dim=8, name="x", source="data")


def test_data_without_samples_is_refused() -> None:
    """No samples have no statistics."""
    with pytest.raises(DataError, match="holds no samples"):
        data_statistics([], batch_size=2, ids_are_rows=True)
