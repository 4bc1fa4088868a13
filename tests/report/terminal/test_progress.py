"""What moves on a terminal while a command works."""

import io

import pytest
from neuroshard_report.terminal.progress import activity
from rich.console import Console


def terminal() -> tuple[Console, io.StringIO]:
    """Return a console that takes itself for a terminal, and what is written to it."""
    written = io.StringIO()
    return Console(file=written, force_terminal=True, width=80, markup=False), written


def test_a_part_is_shown_with_the_time_taken_and_left_and_removed_at_the_end() -> None:
    """The last thing written clears the line, so that the result begins on a clean one."""
    console, written = terminal()

    with activity("comparing", console=console) as shown:
        shown.begin("dim_greedy, 2 of 4 algorithms", done=1, total=4)

    text = written.getvalue()
    assert "dim_greedy, 2 of 4 algorithms" in text
    assert "0:00:00" in text
    assert text.endswith("\x1b[2K")


def test_items_of_an_unknown_total_are_passed_on() -> None:
    """A log whose length is unknown shows the time taken alone."""
    console, _ = terminal()

    with activity("reading", console=console) as shown:
        found = list(shown.of([3, 4], total=None, amount=lambda item: item))
        some = list(shown.of([3, 4], total=5, amount=lambda item: item))

    assert found == some == [3, 4]


@pytest.mark.parametrize(("is_terminal", "is_silent"), [(False, False), (True, True)])
def test_nothing_is_written_for_programs(*, is_terminal: bool, is_silent: bool) -> None:
    """Neither into a log nor next to output that a program reads."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=80)

    with activity("comparing", console=console, is_silent=is_silent) as shown:
        shown.begin("part", done=1, total=2)

    assert written.getvalue() == ""


def test_a_log_has_a_line_a_minute() -> None:
    """With the part, the time taken, and the share of the work where it is known."""
    written, moments = io.StringIO(), iter([0.0, 59.0, 61.0, 90.0, 150.0])
    console = Console(file=written, force_terminal=False, width=80)

    with activity("searching", console=console, clock=lambda: next(moments)) as shown:
        for best in (4, 3, 2, 1):
            shown.show(f"best {best} ms", best / 10)

    assert written.getvalue().splitlines() == [
        "61 s: best 3 ms, 30 % of the work done",
        "150 s: best 1 ms, 10 % of the work done",
    ]
