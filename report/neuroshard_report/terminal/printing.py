"""The one way in which tables and text reach stdout. Renders nothing itself."""

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

UNBOUND_WIDTH = 10_000  # no line of ours is wider; a pipe has no edge to wrap at


def _write(text: str) -> None:
    sys.stdout.write(text)


def print_content(content: "RenderableType", *, write: Callable[[str], None] = _write) -> None:
    """Show tables and text: laid out for the terminal, or one line per row without colors when piped.

    Args:
        content: what rich can render.
        write: takes the text where stdout is not a terminal.
    """
    from neuroshard_report.terminal.console import PrintableConsole  # noqa: PLC0415 - slow to import, and many commands print nothing

    console = PrintableConsole()
    if console.is_terminal:
        console.print(content)
        return
    piped = io.StringIO()
    PrintableConsole(file=piped, width=UNBOUND_WIDTH).print(content)
    write("".join(f"{line.rstrip()}\n" for line in piped.getvalue().splitlines()))
