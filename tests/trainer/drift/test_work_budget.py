"""The share of a training that the drift watch may take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.drift.work_budget import WorkBudget


class Clock:
    """A clock that is moved on."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.ms


@given(
    st.lists(st.tuples(st.floats(0.1, 5000.0), st.floats(0.1, 50.0)), max_size=60),
    st.floats(0.0005, 0.01),
    st.floats(0, 100),
)
def test_work_stays_within_the_share(reports: list[tuple[float, float]], share: float, ahead_ms: float) -> None:
    """Beyond what is ahead by one piece of work at most, whatever steps and work take."""
    clock = Clock()
    budget = WorkBudget(share=share, ahead_ms=ahead_ms, clock=clock)
    earned_ms = 0.0
    for steps_ms, work_ms in reports:
        budget.earn(steps_ms)
        earned_ms += share * steps_ms
        if not budget.is_spent:
            with budget.spending():
                clock.ms += work_ms

    largest_ms = max((work_ms for _, work_ms in reports), default=0.0)
    assert clock.ms <= ahead_ms + earned_ms + largest_ms + 1e-6


def test_work_is_paid_for_by_later_steps() -> None:
    """4 ms at 0.2 % are those of steps of 2 s."""
    clock = Clock()
    budget = WorkBudget(share=0.002, ahead_ms=0.0, clock=clock)
    with budget.spending():
        clock.ms += 4.0

    budget.earn(1_900.0)
    assert budget.is_spent
    budget.earn(101.0)
    assert not budget.is_spent


def test_a_long_rest_earns_no_more_than_is_kept() -> None:
    """A clock that jumped by an hour pays for no hour of reports."""
    clock = Clock()
    budget = WorkBudget(share=0.002, ahead_ms=10.0, clock=clock)
    budget.earn(3.6e6)
    with budget.spending():
        clock.ms += 10.1

    assert budget.is_spent


def test_work_that_fails_is_spent() -> None:
    """A full disk costs time as well."""
    clock = Clock()
    budget = WorkBudget(ahead_ms=0.0, clock=clock)

    def fail() -> None:
        clock.ms += 1.0
        raise OSError

    with pytest.raises(OSError, match=r"^$"), budget.spending():
        fail()

    assert budget.is_spent
