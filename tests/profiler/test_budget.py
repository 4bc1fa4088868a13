"""Specification of budgets."""

import pytest
from neuroshard_profiler.budget import Budget, parse_budget
from neuroshard_profiler.errors import SettingsError


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the seconds that were set."""
        return self.now


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)])
def test_a_budget_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes and hours."""
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0s", "-5m", "10 minutes", "1d"])
def test_anything_else_is_refused(text: str) -> None:
    """The message says how a budget is written."""
    with pytest.raises(SettingsError, match=r"budget: .* write a number and s, m or h"):
        parse_budget(text)


def test_a_budget_ends_by_time_or_by_records() -> None:
    """Whichever comes first; the bar shows which is nearer."""
    clock = Clock()
    budget = Budget(seconds=10, max_records=4, clock=clock)
    assert not budget.is_spent(3)
    assert budget.is_spent(4)
    assert budget.share_spent(1) == 0.25

    clock.now += 9
    assert budget.share_spent(1) == pytest.approx(0.9)
    clock.now += 1
    assert budget.is_spent(0)
    assert not Budget(seconds=0, min_records=2, clock=clock).is_spent(1)
    assert Budget(seconds=0, min_records=2, clock=clock).is_spent(2)
    assert budget.share_spent(0) == 1.0


def test_what_earlier_runs_spent_is_spent() -> None:
    """Of the time, and on the bar."""
    clock = Clock()
    budget = Budget(seconds=10, earlier_seconds=6, clock=clock)
    assert budget.share_spent(0) == pytest.approx(0.6)
    assert not budget.is_spent(0)

    clock.now += 4
    assert budget.elapsed_seconds == 10
    assert budget.is_spent(0)
