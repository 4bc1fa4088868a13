"""The guard of narrow types: its course, as a function of the checks."""

import math

from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.progress import CHECKS_TO_SUSPEND, GuardRecord, GuardState
from neuroshard_trainer.communication.guard import CHECKS_SUSPENDED, next_record, resumed_record

MAXIMUM = 0.05


def course(changes: list[float]) -> list[GuardRecord]:
    """Return the record after each check; a suspended guard measures nothing."""
    records = [GuardRecord()]
    for step, change in enumerate(changes, start=1):
        is_narrow = records[-1].state is GuardState.NARROW
        measured = change if is_narrow else None
        records.append(next_record(records[-1], step=step, change_percent=measured, maximum_percent=MAXIMUM))
    return records[1:]


def test_three_checks_in_a_row_above_the_maximum_suspend() -> None:
    """A check below it begins the count again."""
    states = [each.state.value for each in course([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])]

    assert states == ["Narrow"] * 5 + ["Suspended"]


def test_narrow_types_are_tried_once_again_and_then_never() -> None:
    """After ten checks; the second suspension is for good."""
    records = course([1.0] * 100)

    changed = [(step, after.state) for step, after in enumerate(records, 1) if after.since_step == step]
    again = CHECKS_TO_SUSPEND + CHECKS_SUSPENDED
    assert changed == [
        (CHECKS_TO_SUSPEND, GuardState.SUSPENDED),
        (again, GuardState.NARROW),
        (again + CHECKS_TO_SUSPEND, GuardState.SUSPENDED),
    ]


def test_a_loss_that_is_not_finite_is_above_every_maximum() -> None:
    """It has no number in the record."""
    last = course([math.inf] * CHECKS_TO_SUSPEND)[-1]

    assert (last.state, last.change_percent) == (GuardState.SUSPENDED, None)


def test_other_types_or_another_maximum_begin_a_new_record() -> None:
    """What was suspended, was for the types and the maximum of that time."""
    types = WireTypes(forward=WireType.MX4, backward=WireType.FP16)
    suspended = course([1.0] * 100)[-1].model_copy(update={"types": types, "maximum_percent": MAXIMUM})
    other = WireTypes(forward=WireType.INT8, backward=WireType.FP16)

    assert resumed_record(suspended, types, maximum_percent=MAXIMUM) == suspended
    assert resumed_record(suspended, types, maximum_percent=5.0).state is GuardState.NARROW
    assert resumed_record(suspended, other, maximum_percent=MAXIMUM).times_suspended == 0
    assert resumed_record(None, types, maximum_percent=MAXIMUM).types == types


@given(st.lists(st.sampled_from([0.0, 0.05, 0.051, 5.0, math.inf]), max_size=60))
def test_exchange_is_suspended_by_three_in_a_row_alone_and_twice_at_most(changes: list[float]) -> None:
    """Whatever the checks find."""
    records = [GuardRecord(), *course(changes)]

    assert records[-1].times_suspended <= 2
    for position in range(1, len(records)):
        before, after = records[position - 1], records[position]
        if before.state is GuardState.NARROW and after.state is GuardState.SUSPENDED:
            assert all(change > MAXIMUM for change in changes[position - CHECKS_TO_SUSPEND : position])
            assert after.times_suspended == before.times_suspended + 1
        if before.state is GuardState.SUSPENDED and after.state is GuardState.NARROW:
            assert before.times_suspended == 1
