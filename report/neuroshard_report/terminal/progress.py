"""What moves on a terminal while a command works: its part, the time taken, and the time left where it is known."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
REFRESHES_PER_SECOND = 4
"""Few: the work runs on the same core as the display."""


class Activity:
    """One line that shows work in progress.

    Args:
        update: shows a description (None: as before), and the share that is done (None: unknown).
    """

    def __init__(self, update: Callable[[str | None, float | None], None]) -> None:
        self._update = update

    def begin(self, part: str, *, done: int = 0, total: int | None = None) -> None:
        """Show the part at work, after `done` of `total` parts. None: the number is unknown."""
        self._update(part, None if not total else done / total)

    def of(self, items: Iterable[Item], *, total: int | None, amount: Callable[[Item], int]) -> Iterator[Item]:
        """Yield items and show how much of the total they amount to.

        Args:
            items: what is worked on.
            total: the sum of their amounts. None: unknown.
            amount: of one item.
        """
        done = 0
        for item in items:
            yield item
            done += amount(item)
            if total:
                self._update(None, min(1.0, done / total))


@contextmanager
def activity(description: str, *, console: "Console | None" = None, is_silent: bool = False) -> Iterator[Activity]:
    """Show a line on stderr until the work is done, and then remove it; show nothing where stderr is not a terminal.

    The line has the time taken and, once a share of the work is done, the estimated time left.

    Args:
        description: what is at work at the start.
        console: where the line is shown. None: stderr.
        is_silent: shows nothing, for output that programs read.
    """
    from rich.progress import (  # noqa: PLC0415 - slow to import
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from neuroshard_report.terminal.console import PrintableConsole  # noqa: PLC0415 - the same

    shown = console or PrintableConsole(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=shown,
        disable=is_silent or not shown.is_terminal,
        transient=True,
        refresh_per_second=REFRESHES_PER_SECOND,
    ) as progress:
        task = progress.add_task(description, total=None)

        def update(part: str | None, share: float | None) -> None:
            progress.update(task, description=part, total=None if share is None else 1.0, completed=share)

        yield Activity(update)
