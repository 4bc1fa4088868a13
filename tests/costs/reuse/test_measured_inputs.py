"""Requests for inputs as a trainer counted them."""

from typing import Any

import pytest
from neuroshard_api.documents.input_statistics import FeatureStatistics
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.reuse.measured_inputs import with_measured_inputs
from support.builders import request, table, table_set
from support.planner.searches import planned
from support.trainer.training_builders import input_statistics

SINGLES = (1.0, *[0.0] * 16)
PAIRS = (0.0, 1.0, *[0.0] * 15)


def counted(feature: str, **fields: Any) -> FeatureStatistics:
    """Return the statistics of a feature."""
    usual = {"lookups_per_sample": 3.0, "distinct_rows_per_lookup": 0.5, "distinct_lists_per_sample": 1.0}
    return FeatureStatistics(feature=feature, **{**usual, **fields})


def measured(asked: PlanRequest, *features: FeatureStatistics, batch_size: int = 1024) -> PlanRequest:
    """Return the request for these statistics."""
    found = input_statistics(features=features, batch_size=batch_size, counted_samples=batch_size, changed_features=())
    return with_measured_inputs(asked, found)


def test_counted_tables_get_their_pooling_factor() -> None:
    """The sum over a table's features; a table with a feature that was not counted stays as it is."""
    asked = request(
        table("user", pooling_factor=1.0),
        table("pair", pooling_factor=1.0, feature_names=("left", "right")),
        table("half", pooling_factor=7.0, feature_names=("left", "unknown")),
    )
    after = measured(asked, counted("user", lookups_per_sample=6.0), counted("left"), counted("right"))

    assert [each.pooling_factor for each in after.tables.tables] == [6.0, 6.0, 7.0]


def test_tables_that_were_counted_without_repeats_stay() -> None:
    """Their lookups would be divided by the duplication factor twice."""
    asked = request(table("user", pooling_factor=12.0), table("item", pooling_factor=1.0))
    found = input_statistics(
        features=(counted("user"), counted("item")), changed_features=(), without_repeats=("user",)
    )

    assert [each.pooling_factor for each in with_measured_inputs(asked, found).tables.tables] == [12.0, 3.0]


def test_a_feature_without_lookups_leaves_a_table_that_can_be_planned() -> None:
    """A pooling factor of 0 is none that a table set has."""
    after = measured(request(table("user")), counted("user", lookups_per_sample=0.0))

    assert 0 < after.tables.tables[0].pooling_factor <= 0.001
    assert planned(after).tables


def test_counted_reuse_takes_the_place_of_the_skew() -> None:
    """At the batch size of the statistics, where no table of the set has a histogram of another."""
    asked = request(table("user", zipf_exponent=1.2), table("item", zipf_exponent=0.7))
    after = measured(asked, counted("user", reuse_histogram=SINGLES))
    user, item = after.tables.tables

    assert (user.reuse_histogram, user.zipf_exponent) == (SINGLES, None)
    assert (item.reuse_histogram, item.zipf_exponent) == (None, 0.7)
    assert after.tables.reuse_batch_size == 1024


def test_counted_reuse_is_rescaled_to_the_batch_of_the_set() -> None:
    """The set has one batch size for all histograms: a batch of half the samples has fewer repeats."""
    members = table_set(
        table("user", num_embeddings=10**9), table("item", reuse_histogram=SINGLES), reuse_batch_size=512
    )
    asked = request(table("user")).model_copy(update={"tables": members})
    after = measured(asked, counted("user", reuse_histogram=PAIRS))
    user, item = after.tables.tables

    assert (after.tables.reuse_batch_size, item.reuse_histogram) == (512, SINGLES)
    assert user.reuse_histogram is not None
    assert user.reuse_histogram[0] == pytest.approx(2 / 3)
    assert user.reuse_histogram[1] == pytest.approx(1 / 3)


def test_statistics_of_another_model_are_refused() -> None:
    """The error names features that were found."""
    with pytest.raises(RecordsError, match=r"statistics: have features of no table of the request \(found other\)"):
        measured(request(table("user")), counted("other"))
