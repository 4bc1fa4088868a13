"""What moves on a terminal while a command works: its part, the time taken, and the time left where it is known.

Into a file or a pipe it is a line a minute, so that a log shows that the work goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
REFRESHES_PER_SECOND = 4
"""Few: the work runs on the same core as the display."""
LINE_EVERY_S = 60.0
"""Of a log."""


class Activity:
    """One line that shows work in progress.

    Args:
        update: shows a description (None: as before), and the share that is done (None: unknown).
    """

    def __init__(self, update: Callable[[str | None, float | None], None]) -> None:
        self._update = update

    def begin(self, part: str, *, done: int = 0, total: int | None = None) -> None:
        """Show the part at work, after `done` of `total` parts. None: the number is unknown."""
        self.show(part, None if not total else done / total)

    def show(self, part: str, share: float | None) -> None:
        """Show the part at work, and the share of the work that is done. None: it is unknown."""
        self._update(part, share)

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
def activity(
    description: str,
    *,
    console: "Console | None" = None,
    is_silent: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Activity]:
    """Show a line on stderr until the work is done, and then remove it; print one a minute where it is not a terminal.

    The line has the time taken and, once a share of the work is done, that share and the estimated time left.

    Args:
        description: what is at work at the start.
        console: where the line is shown. None: stderr.
        is_silent: shows nothing, for output that programs read.
        clock: seconds, for the lines of a log.
    """
    from neuroshard_report.terminal.console import PrintableConsole  # noqa: PLC0415 - slow to import

    shown = console or PrintableConsole(stderr=True)
    if is_silent:
        yield Activity(lambda _part, _share: None)
    elif shown.is_terminal:
        with _display(description, shown) as update:
            yield Activity(update)
    else:
        yield Activity(_Log(description, shown, clock).update)


@contextmanager
def _display(description: str, console: "Console") -> Iterator[Callable[[str | None, float | None], None]]:
    """Show the line on a terminal; return what brings it up to date."""
    from rich.progress import (  # noqa: PLC0415 - the same
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TaskProgressColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=REFRESHES_PER_SECOND) as progress:
        task = progress.add_task(description, total=None)
        yield lambda part, share: progress.update(
            task, description=part, total=None if share is None else 1.0, completed=share
        )


class _Log:
    """Lines in place of a display."""

    def __init__(self, part: str, console: "Console", clock: Callable[[], float]) -> None:
        self._part, self._console, self._clock = part, console, clock
        self._begun_s = self._said_s = clock()

    def update(self, part: str | None, share: float | None) -> None:
        """Print the state once a minute has passed since the last line."""
        self._part, now_s = part or self._part, self._clock()
        if now_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now_s
        done = "" if share is None else f", {100 * share:.0f} % of the work done"
        self._console.print(f"{now_s - self._begun_s:.0f} s: {self._part}{done}", markup=False, highlight=False)
