"""Causes of a slow-down over several reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_trainer.drift.held_causes import OTHER_REPORTS, HeldCauses

SINCE = 400
CAUSES = [cause for cause in SlowdownCause if cause is not SlowdownCause.INPUTS_DRIFTED]


def change(cause: SlowdownCause, *, recent_ms: float = 2.0, tables: tuple[str, ...] = ()) -> DriftChange:
    """Return a change with a time of its report."""
    evidence = Evidence(part=StepPart.STEP, reference_ms=1.0, recent_ms=recent_ms)
    return DriftChange(cause=cause, tables=tables, since_step=SINCE, evidence=(evidence,))


DEVICE, DENSE = change(SlowdownCause.DEVICE_SLOW), change(SlowdownCause.DENSE_SLOW)
INPUTS = change(SlowdownCause.INPUTS_DRIFTED, tables=("item",))


@pytest.mark.parametrize("other", [(DENSE,), (DEVICE, DENSE), ()], ids=["another", "one more", "none"])
def test_a_named_cause_stays_at_the_next_report(other: tuple[DriftChange, ...]) -> None:
    """Other findings are named once three reports in a row agree on them."""
    held = HeldCauses()

    named = [held.take(found, tables=(), added_ms=1.0) for found in [(DEVICE,), *[other] * OTHER_REPORTS]]

    assert named == [*[(DEVICE,)] * OTHER_REPORTS, other]


def test_inputs_that_changed_since_are_named_at_once() -> None:
    """A report that knows of them knows more than the ones before."""
    held = HeldCauses()
    held.take((DEVICE,), tables=(), added_ms=1.0)

    assert held.take((INPUTS,), tables=("item",), added_ms=1.0) == (INPUTS,)
    assert held.take((DEVICE,), tables=("item",), added_ms=1.0) == (INPUTS,)


@pytest.mark.parametrize(
    ("added_ms", "expected"), [(2.0, (DENSE,)), (1.9, (DEVICE,)), (0.6, (DEVICE,)), (0.5, (DENSE,))]
)
def test_a_second_slow_down_and_what_is_left_of_the_first_are_named_at_once(
    added_ms: float, expected: tuple[DriftChange, ...]
) -> None:
    """Steps then take at least twice as much longer as when the first one was named, or at most half as much."""
    held = HeldCauses()
    held.take((DEVICE,), tables=(), added_ms=1.0)

    assert held.take((DENSE,), tables=(), added_ms=added_ms) == expected


def test_a_cause_that_is_found_again_has_the_numbers_of_the_last_report() -> None:
    """The evidence follows the medians."""
    held, later = HeldCauses([DEVICE]), change(SlowdownCause.DEVICE_SLOW, recent_ms=3.0)

    assert held.take((later,), tables=(), added_ms=1.0) == (later,)


def test_causes_are_of_one_slow_down() -> None:
    """Those of an earlier one are forgotten."""
    held = HeldCauses([DEVICE])

    assert held.of(SINCE) == (DEVICE,)
    assert held.of(SINCE + 500) == ()


@given(st.lists(st.sampled_from(CAUSES), min_size=2, max_size=30))
def test_what_is_named_was_found_by_three_reports_or_first(found: list[SlowdownCause]) -> None:
    """Whatever the reports find."""
    held = HeldCauses()

    named = [held.take((change(cause),), tables=(), added_ms=1.0)[0].cause for cause in found]

    for report in range(1, len(found)):
        if named[report] != named[report - 1]:
            assert found[report - OTHER_REPORTS + 1 : report + 1] == [named[report]] * OTHER_REPORTS
