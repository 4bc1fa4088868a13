"""Specification of the one printer of all commands."""

import pytest
from neuroshard_report.terminal.printing import print_content
from rich.table import Table


def test_piped_rows_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe has no edge to wrap at, and no row ends in blanks."""
    table = Table("name", "values", box=None)
    table.add_row("wide", "x" * 300)

    print_content(table)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["wide", "x" * 300]
    assert lines[0] == lines[0].rstrip()


def test_a_caller_may_take_the_piped_text() -> None:
    """The command turns a full disk into a sentence of its own."""
    written: list[str] = []

    print_content("text", write=written.append)

    assert written == ["text\n"]
