from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from neuroshard_cluster import waiting
from neuroshard_cluster.errors import CommandError, TimedOutError
from neuroshard_cluster.waiting import eventually


def test_errors_count_as_not_yet() -> None:
    """A look that fails is repeated until it succeeds."""
    answers: Iterator[CommandError | int] = iter([CommandError("refused"), 0, 7])

    def look() -> int:
        answer = next(answers)
        if isinstance(answer, CommandError):
            raise answer
        return answer

    assert eventually("seven", look, within_s=10) == 7


def test_the_last_observation_is_in_the_message() -> None:
    """A state that is never reached says what was seen instead."""
    with pytest.raises(TimedOutError, match="the pod runs: not within 0 s; last seen: 'Pending'"):
        eventually("the pod runs", lambda: "Pending", within_s=0, accept=lambda phase: phase == "Running")


def test_looks_become_rarer_the_longer_they_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look starts a program, and what is waited for needs the processor."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(waiting, "time", clock)

    eventually("a minute is over", lambda: sum(pauses) > 60)

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (waiting.LOOK_EVERY_S, waiting.LOOK_AT_LEAST_EVERY_S)
