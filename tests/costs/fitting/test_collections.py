"""What a further collection of tables adds, from records of one and of two."""

import pytest
from neuroshard_api.documents.bundle import CollectionParts
from neuroshard_api.documents.records import CollectionSample, CollectionTimes, ProfileRecord
from neuroshard_costs.fitting.collections import MIN_RECORDS, fitted_collection
from support.profiler.record_builders import compute_record

ONE = CollectionParts(indices_ms=2.0, compute_ms=(1.0, 8.0), exchange_ms=(3.0, 4.0))


def collections_record(*, added_ms: float, failure: str | None = None) -> ProfileRecord:
    """Return a record in which a second collection adds this to all but backward compute, which it shortens by half."""
    two = CollectionParts(
        indices_ms=ONE.indices_ms + added_ms,
        compute_ms=(ONE.compute_ms[0] + added_ms, ONE.compute_ms[1] / 2),
        exchange_ms=(ONE.exchange_ms[0] + 2 * added_ms, ONE.exchange_ms[1] + 3 * added_ms),
    )
    sample = CollectionSample(batch_size_per_device=256, num_tables=8, embedding_dim=64, pooling_factor=1)
    times = None if failure else CollectionTimes(one=ONE, two=two)
    return ProfileRecord(source="cpu:some", collections=sample, collection_times=times, failure=failure)


def test_a_further_collection_costs_the_median_of_two_less_one() -> None:
    """One disturbed record moves nothing, and no part is negative."""
    records = [collections_record(added_ms=added) for added in (0.5, 40.0, 0.6)]

    found = fitted_collection([compute_record(), *records])

    assert found is not None
    assert found.indices_ms == pytest.approx(0.6)
    assert found.compute_ms == pytest.approx((0.6, 0.0))
    assert found.exchange_ms == pytest.approx((1.2, 1.8))


def test_few_records_of_collections_are_not_fitted() -> None:
    """Nor are those that failed."""
    records = [collections_record(added_ms=1.0)] * (MIN_RECORDS - 1)

    assert fitted_collection([*records, collections_record(added_ms=1.0, failure="no memory")]) is None
