"""What copies to repeated lists cost, from records of them."""

import pytest
from neuroshard_api.documents.records import ExpansionSample, ProfileRecord
from neuroshard_costs.expansion import expansion_ms
from neuroshard_costs.fitting.expansions import MIN_RECORDS, fitted_expansion
from support.profiler.record_builders import compute_record

SIZES = tuple((batch_size, columns) for batch_size in (256, 512, 2048) for columns in (16, 128))
"""Samples and columns."""


def expansion_record(size: tuple[int, int], *, feature_ms: float = 0.0, row_ms: float, byte_ms: float) -> ProfileRecord:
    """Return a record of two features that take these times and those of their rows and bytes, and twice backward."""
    sample = ExpansionSample(batch_size=size[0], num_features=2, embedding_dim=size[1], factor=4)
    times_ms = 2 * feature_ms + size[0] * (row_ms + 2 * 4 * size[1] * byte_ms)
    return ProfileRecord(source="cpu:some", expansion=sample, forward_ms=times_ms, backward_ms=2 * times_ms)


@pytest.mark.parametrize(
    ("feature_ms", "row_ms", "byte_ms"), [(0.05, 1e-4, 2e-6), (0.0, 0.0, 2e-6), (0.05, 0.0, 2e-6), (0.0, 1e-4, 0.0)]
)
def test_times_of_features_rows_and_bytes_are_told_apart(feature_ms: float, row_ms: float, byte_ms: float) -> None:
    """Whether all cost time or some of them; the price is that of the records."""
    records = [expansion_record(size, feature_ms=feature_ms, row_ms=row_ms, byte_ms=byte_ms) for size in SIZES]
    found = fitted_expansion([*records, compute_record()])

    assert found is not None
    assert found.feature_ms == pytest.approx((feature_ms, 2 * feature_ms), abs=1e-9)
    assert found.group_row_ms == pytest.approx((row_ms, 2 * row_ms), abs=1e-9)
    assert found.byte_ms == pytest.approx((byte_ms, 2 * byte_ms), abs=1e-12)
    price = expansion_ms(2, 512, 512 * 64, device=None, measured=found)  # type: ignore[arg-type] # needs no device
    assert price == pytest.approx(3 * (2 * feature_ms + 512 * (row_ms + 64 * byte_ms)))


def test_no_time_is_negative() -> None:
    """Where rows would seem to gain time, they cost none."""
    found = fitted_expansion([expansion_record(size, row_ms=-1e-5, byte_ms=2e-6) for size in SIZES])

    assert found is not None
    assert found.group_row_ms == (0.0, 0.0)
    assert 0 < found.byte_ms[0] < 2e-6


def test_few_records_are_not_fitted() -> None:
    """Nor are those of copies that failed."""
    records = [expansion_record(size, row_ms=1e-4, byte_ms=2e-6) for size in SIZES[: MIN_RECORDS - 1]]
    failed = ProfileRecord(source="cpu:some", expansion=records[0].expansion, failure="no memory")

    assert fitted_expansion([*records, failed]) is None
