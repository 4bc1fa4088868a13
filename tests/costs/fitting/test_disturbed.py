"""Specification of which records a fit takes."""

from typing import Any

import pytest
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_costs.fitting.disturbed import undisturbed
from support.profiler.record_builders import communication_record, compute_record

CAPPED, WAITED = "slowed by power_cap", "waiting for the host"


def chosen(records: list[ProfileRecord]) -> tuple[list[ProfileRecord], list[str]]:
    """Return the records that are fitted, and the sentences about them."""
    told: list[str] = []
    return list(undisturbed(records, say=told.append)), told


def compute(count: int, **fields: Any) -> list[ProfileRecord]:
    """Return records of distinct times."""
    return [compute_record(forward_ms=1.0 + number).model_copy(update=fields) for number in range(count)]


def test_disturbed_records_are_left_out_and_counted_by_cause() -> None:
    """A fit to times of two devices describes neither."""
    kept = [*compute(14), communication_record()]
    records = [*compute(20, disturbance=CAPPED), *kept, *compute(2, disturbance=WAITED)]

    found, told = chosen(records)

    assert found == kept
    assert told == [f"22 of 36 compute records are left out: 20 {CAPPED}, 2 {WAITED}"]


def test_undisturbed_records_are_all_taken_and_nothing_is_told() -> None:
    """The usual case."""
    records = [*compute(3), communication_record()]

    assert chosen(records) == (records, [])


@pytest.mark.parametrize(("count", "is_enough"), [(3, False), (12, True)])
def test_a_device_that_is_always_slowed_is_described_as_such(count: int, is_enough: bool) -> None:  # noqa: FBT001
    """Where too few others remain for a fit, a warning says what the models are of."""
    records = [*compute(40, disturbance=CAPPED), *compute(count)]

    found, told = chosen(records)

    assert len(found) == (count if is_enough else 40 + count)
    assert ("the cost models are of the disturbed device" in told[0]) is not is_enough


@pytest.mark.parametrize(("disturbed", "fitted"), [(4, 5), (5, 9)])
def test_samples_that_every_profile_has_need_half_of_them_undisturbed(disturbed: int, fitted: int) -> None:
    """There are nine table sets whose launch is timed: five undisturbed ones describe it."""
    sample = compute_record().compute
    record = compute_record().model_copy(update={"compute": None, "launch": sample, "forward_ms": None})
    slowed = record.model_copy(update={"disturbance": CAPPED})

    assert len(undisturbed([*[slowed] * disturbed, *[record] * (9 - disturbed)])) == fitted
