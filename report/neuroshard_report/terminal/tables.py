"""Tables and lists of facts for the terminal. Plain words when piped, no box art."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text


def plain_table(*columns: str, is_terminal: bool, text_columns: Sequence[int] = (0,)) -> Table:
    """Return an empty table: numbers right, a rule under the header on a terminal, nothing but spaces elsewhere."""
    table = Table(
        box=SIMPLE_HEAD if is_terminal else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if is_terminal else 2, 0, 0),
        header_style="bold",
    )
    for index, column in enumerate(columns):
        is_text = index in text_columns
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return table


def fact_grid(facts: Sequence[tuple[str, str]], *, strong: str = "") -> RenderableType:
    """Return a name and a sentence on each line; the one named ``strong`` in bold."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, fact in facts:
        grid.add_row(Text(name, style="dim"), Text(fact, style="bold" if name == strong else ""))
    return grid


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """Rows of text under a header."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...] = (0,)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = plain_table(*self.columns, is_terminal=options.is_terminal, text_columns=self.text_columns)
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        yield table
