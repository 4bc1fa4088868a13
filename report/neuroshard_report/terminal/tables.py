"""Tables and lists of facts for the terminal. Plain words when piped, no box art."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
"""Columns of a terminal between two columns of a table."""
LEAST_SENTENCE = 20
"""Columns of a terminal that a column of sentences has at least."""


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
    """Rows of text under a header.

    Where there is no room for all columns, further ones follow below, each part with the names of its rows.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...] = (0,)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self._parts(options.max_width)):
            if number:
                yield Text()
            texts = [place for place, index in enumerate(part) if index in self.text_columns]
            table = plain_table(
                *(self.columns[index] for index in part), is_terminal=options.is_terminal, text_columns=texts
            )
            for index, column in zip(part, table.columns, strict=True):
                column.min_width = self._least_width(index, options.max_width)
            for row in self.rows:
                table.add_row(*(Text(row[index]) for index in part))
            yield table

    @property
    def _num_names(self) -> int:
        """Columns that name a row: the first, and one next to it where that only marks rows."""
        return 1 if self.columns[0] else 2

    def _least_width(self, index: int, max_width: int) -> int:
        """Return the width below which a column cannot be read: numbers stay whole, sentences wrap."""
        width = max(cell_len(text) for text in (self.columns[index], *(row[index] for row in self.rows)))
        if index < self._num_names:
            return min(width, max_width // 2)
        return min(width, LEAST_SENTENCE) if index in self.text_columns else width

    def _parts(self, max_width: int) -> list[tuple[int, ...]]:
        """Return the columns of each part, as few parts as fit next to the names."""
        names = tuple(range(self._num_names))
        parts, left = [names], 0
        for index in range(len(self.columns)):
            needed = self._least_width(index, max_width) + (GAP if index else 0)
            if index in names:
                left = (max_width if not index else left) - needed
                room = left
                continue
            if needed > left and parts[-1] != names:
                parts.append(names)
                left = room
            parts[-1] = (*parts[-1], index)
            left -= needed
        return parts
