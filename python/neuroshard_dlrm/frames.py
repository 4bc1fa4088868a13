"""Results as rows, and as a pandas DataFrame where pandas is installed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from neuroshard_api.process.errors import MissingPackageError

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

WIDTH = 100
"""Columns of text, as many as a notebook shows without scrolling."""


class Tabular(ABC):
    """A result that has rows of named values, units in their names."""

    names: ClassVar[tuple[str, ...]] = ()
    """Names of the values of a result that may have no rows. Empty: it always has some."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""

    def to_frame(self) -> "DataFrame":
        """Return the rows as a pandas DataFrame. Raises MissingPackageError where pandas is not installed."""
        return frame_of(self.rows(), names=self.names)


def frame_of(rows: list[dict[str, Any]], *, names: Sequence[str] = ()) -> "DataFrame":
    """Return rows as a pandas DataFrame, which has columns of these names without any. Raises MissingPackageError."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise MissingPackageError(
            "to_frame: needs the package pandas; hint: pip install pandas, or take rows(), a list of dictionaries"
        ) from error
    return DataFrame(rows) if rows else DataFrame(columns=list(names))


def text_of(content: "RenderableType") -> str:
    """Return the text that a command would print, at most as wide as a notebook."""
    import io

    from neuroshard_report.terminal.console import PrintableConsole

    written = io.StringIO()
    PrintableConsole(file=written, width=WIDTH).print(content)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def html_of(text: str) -> str:
    """Return text as an element of a notebook's output."""
    import html

    return f"<pre>{html.escape(text)}</pre>"


def fields_text(name: str, facts: Mapping[str, str | None]) -> str:
    """Return the short form of a result: its name, and the facts that there are."""
    return f"{name}({', '.join(f'{key}={fact}' for key, fact in facts.items() if fact is not None)})"
