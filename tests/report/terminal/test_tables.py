"""Specification of tables on terminals of any width."""

import io

import pytest
from neuroshard_report.terminal.tables import TextTable
from rich.console import Console

COLUMNS = ("device", "memory", "GB/s", "per rack", "product")
ROWS = (
    ("a100-80gb", "79.1 GiB", "2,039", "", "NVIDIA-A100-SXM4-80GB"),
    ("gb200-nvl72", "173 GiB", "8,000", "72", "NVIDIA GB200, four of them on each of 18 boards"),
)


def shown(width: int, *, columns: tuple[str, ...] = COLUMNS, text_columns: tuple[int, ...] = (0, 4)) -> list[str]:
    """Return the lines of a table on a terminal of that width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(TextTable(columns=columns, rows=ROWS, text_columns=text_columns))
    text: str = console.file.getvalue()  # type: ignore[attr-defined] # of io
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 160])
def test_numbers_and_names_are_whole_at_every_width(width: int) -> None:
    """A number that is cut off is another number; each part of a table names its rows."""
    lines = shown(width)
    heads = [line for line in lines if line.startswith("device")]

    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        named = [line for line in lines if line.startswith(row[0])]
        assert len(named) == len(heads)
        assert all(cell in " ".join(named) for cell in row[1:4])


def test_a_table_that_fits_is_one_part_and_sentences_wrap_first() -> None:
    """Columns of words get narrower before columns go below."""
    assert sum(line.startswith("device") for line in shown(100)) == 1
    lines = shown(66)
    assert sum(line.startswith("device") for line in lines) == 1
    assert len(lines) > 2 + len(ROWS)


def test_a_mark_stays_with_the_name_next_to_it() -> None:
    """As that of the best algorithm."""
    lines = shown(30, columns=("", *COLUMNS[1:]), text_columns=(0, 1))

    assert all("79.1 GiB" in line for line in lines if line.startswith("a100"))
    assert sum(line.startswith("a100") for line in lines) > 1
    assert all(len(line) <= 30 for line in lines)
