"""Statuses of earlier looks, and of other releases."""

from datetime import UTC, datetime

from neuroshard_decisions.conditions import (
    ConditionType,
    ConditionUpdate,
    Reason,
    WarningUpdate,
    merged,
    merged_warnings,
    warnings_among,
)
from neuroshard_decisions.status import read_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def says(*, holds: bool, message: str = "m") -> ConditionUpdate:
    """Return a pass's update of Running."""
    return ConditionUpdate(type=ConditionType.RUNNING, holds=holds, reason=Reason.WORKERS_READY, message=message)


def test_what_another_release_wrote_is_left_out() -> None:
    """A counter that can be read is not lost for a field that cannot."""
    status = read_status({"restarts": 2, "stage": "Dancing", "unknown": 1, "startTime": "2026-01-01T00:00:00Z"})

    assert (status.restarts, status.stage, status.start_time) == (2, None, NOW)


def test_a_status_comes_back_as_it_was_written() -> None:
    """Otherwise every look would find a change."""
    status = read_status({"restarts": 1, "hardware": {"gpuMemoryMiB": 5}, "startTime": "2026-01-01T00:00:00Z"})

    assert read_status(status.model_dump(mode="json", by_alias=True, exclude_none=True)) == status


def test_repeating_an_outcome_changes_nothing() -> None:
    """A second look with the same result must not touch the API server."""
    first = merged([], [says(holds=True)], now=NOW, generation=1)

    assert merged(first, [says(holds=True)], now=LATER, generation=1) == first


def test_the_transition_time_moves_when_the_status_flips() -> None:
    """Another message is not a transition."""
    first = merged([], [says(holds=False)], now=NOW, generation=1)
    [same] = merged(first, [says(holds=False, message="other")], now=LATER, generation=1)
    [flipped] = merged(first, [says(holds=True)], now=LATER, generation=1)

    assert (same.last_transition_time, same.message) == (NOW, "other")
    assert flipped.last_transition_time == LATER


def test_conditions_of_others_stay() -> None:
    """A look says nothing about what it did not look at."""
    first = merged([], [says(holds=True)], now=NOW, generation=1)
    other = ConditionUpdate(type=ConditionType.PLANNED, holds=True, reason=Reason.PLAN_WRITTEN, message="m")

    assert [each.type for each in merged(first, [other], now=LATER, generation=1)] == ["Planned", "Running"]


def test_a_warning_keeps_its_time_until_it_is_gone() -> None:
    """Another message is the same warning; what a pass decided nothing about stays."""
    group = (Reason.NODES_TOO_SMALL, Reason.LIMITED_BY_NODES)
    first = merged_warnings((), warnings_among(group, {Reason.LIMITED_BY_NODES: "m"}), now=NOW)
    other = WarningUpdate(reason=Reason.OTHER_DEVICE, message="n")
    second = merged_warnings(first, [other, WarningUpdate(reason=Reason.LIMITED_BY_NODES, message="k")], now=LATER)
    third = merged_warnings(second, warnings_among(group, {Reason.NODES_TOO_SMALL: "m"}), now=LATER)

    assert [(each.reason, each.message, each.time) for each in second] == [
        ("LimitedByNodes", "k", NOW),
        ("OtherDevice", "n", LATER),
    ]
    assert [each.reason for each in third] == ["NodesTooSmall", "OtherDevice"]
