"""How often the status of a job is written."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from neuroshard_api.job.policies import ConditionStatus
from neuroshard_api.job.status import Condition, Stage, Status, Workers
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_operator.pace import COUNTS_EVERY_S, StatusPace
from neuroshard_operator.writes import Writes

KEY = ("training", "job")
START = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = Status(
    stage=Stage.LAUNCHING,
    reason="WorkersStarting",
    message="0 of 2 workers are ready",
    workers=Workers(desired=2, ready=0),
    conditions=(
        Condition(
            type="Running",
            status=ConditionStatus.FALSE,
            reason="WorkersStarting",
            message="0 of 2 workers are ready",
            last_transition_time=START,
        ),
    ),
)


def later(**fields: object) -> Status:
    """Return the status with other fields."""
    return BEFORE.model_copy(update=fields)


COUNTED = later(
    message="1 of 2 workers are ready",
    workers=Workers(desired=2, ready=1),
    conditions=(BEFORE.conditions[0].model_copy(update={"message": "1 of 2 workers are ready"}),),
)


def paced(decision: Writes, *, after_s: float) -> Writes:
    """Return the paced decision this long after the last write of the status."""
    now_s = [100.0]
    pace = StatusPace(clock=lambda: now_s[0])
    pace.wrote(KEY)
    now_s[0] += after_s
    return pace.paced(KEY, BEFORE, decision)


def test_counts_that_follow_a_write_wait_for_a_few_seconds() -> None:
    """The pass that writes them comes then, and no later than one that was wanted anyway."""
    waits = paced(Writes(status=COUNTED, requeue_after_s=30.0), after_s=1.0)
    soon = paced(Writes(status=COUNTED, requeue_after_s=0.5), after_s=1.0)

    assert (waits.status, waits.requeue_after_s) == (None, COUNTS_EVERY_S - 1.0)
    assert (soon.status, soon.requeue_after_s) == (None, 0.5)


def test_counts_are_written_when_their_time_has_come() -> None:
    """They are never older than that."""
    decision = Writes(status=COUNTED)

    assert paced(decision, after_s=COUNTS_EVERY_S) == decision


def test_a_process_that_has_written_nothing_yet_does_not_wait() -> None:
    """When the process before it wrote, it does not know."""
    decision = Writes(status=COUNTED)

    assert StatusPace().paced(KEY, BEFORE, decision) == decision


@pytest.mark.parametrize(
    "change",
    [
        lambda: later(stage=Stage.RUNNING),
        lambda: later(reason="PodsPending"),
        lambda: later(restarts=1),
        lambda: later(conditions=(BEFORE.conditions[0].model_copy(update={"status": ConditionStatus.TRUE}),)),
        lambda: later(conditions=(BEFORE.conditions[0].model_copy(update={"reason": "PodsPending"}),)),
        lambda: later(observed_generation=2),
        lambda: later(completion_time=START),
    ],
    ids=["stage", "reason", "restarts", "condition", "reason of a condition", "generation", "end"],
)
def test_what_people_wait_for_is_written_at_once(change: Callable[[], Status]) -> None:
    """Programs watch stages and conditions."""
    decision = Writes(status=change())

    assert paced(decision, after_s=0.1) == decision


def test_counts_go_with_an_event() -> None:
    """The pass after it would tell of it once more."""
    decision = Writes(status=COUNTED, events=(Event(reason=EventReason.CHILD_REPAIRED, message="m"),))

    assert paced(decision, after_s=0.1) == decision
