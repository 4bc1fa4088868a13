"""Consoles that show what others wrote and obey nothing of it: every command prints by one of them."""

from collections.abc import Iterable
from typing import IO

from neuroshard_api.process.printable import printable
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class PrintableConsole(Console):
    """A console without markup, whose own control codes alone reach the terminal."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> None:
        """Write to stdout, stderr, or a file without colors."""
        has_color = file is None
        super().__init__(
            stderr=stderr,
            file=file,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            force_jupyter=False,  # which would show in the notebook what is written to a file
            color_system="auto" if has_color else None,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of what is shown."""
        for each in super().render(renderable, options):
            yield each if each.control else Segment(printable(each.text), each.style)
