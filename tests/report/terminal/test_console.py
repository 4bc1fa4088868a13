"""What others wrote, as logs and names, never reaches a terminal as an order to it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.printable import printable
from neuroshard_report.terminal.job import render_job
from neuroshard_report.terminal.printing import print_content
from support import builders

ROOT = Path(__file__).parents[3]
ESCAPES = "\x1b[2J\x1b[1;1HSucceeded \x9b2J \x1b]0;title\x07 \rover \u202eesrever"


def hostile_job() -> DLRMTrainingJob:
    """Return a job whose log and messages hold escapes."""
    data = builders.job_data("job")
    stage = {"name": "Running", "state": "Failed", "message": ESCAPES}
    failure = {"stage": "Running", "podName": "p", "message": ESCAPES, "time": "2026-01-01T00:00:00Z"}
    data["status"] = {"stage": "Failed", "reason": "x", "message": ESCAPES, "conditions": [], "stages": [stage]}
    data["status"]["lastFailure"] = failure
    return DLRMTrainingJob.from_data(data)


def test_a_name_with_colons_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich reads `:smile:` as an emoji."""
    print_content("user:key:rank")

    assert capsys.readouterr().out == "user:key:rank\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_escapes_of_a_status_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,  # noqa: FBT001 - drawn
) -> None:
    """On a terminal, where the colors of the console itself stay, and where a pager or a file comes in between."""
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    print_content(render_job(hostile_job()))
    text = capsys.readouterr().out

    assert r"\x1b[2J" in text.replace("\n", "")
    assert "last failure: unknown of pod p\n" in text
    assert "\x1b[2J" not in text
    assert not set("\x9b\x07\r\u202e") & set(text)
    assert ("\x1b[1m" in text) == is_terminal


@given(st.text())
def test_printable_text_orders_nothing(text: str) -> None:
    """And says the same as before where it held no control character."""
    shown = printable(text)

    assert all(each in "\n\t" or (each >= " " and not "\x7f" <= each <= "\x9f") for each in shown)
    assert shown == text or any(each < " " or each in "\x7f\u061c" or each > "~" for each in text)


def consoles() -> Iterator[str]:
    """Yield each place in the product that makes a console of rich by itself."""
    for folder in ("api", "cli", "costs", "dense", "planner", "profiler", "report", "trainer", "dropin", "python"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console":
                    yield f"{file.name}:{node.lineno}"


def test_every_command_prints_by_the_same_console() -> None:
    """Another one would pass on what it is given."""
    assert list(consoles()) == []
    assert "rich" in sys.modules
