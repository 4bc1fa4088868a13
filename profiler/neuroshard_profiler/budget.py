"""How long to measure: a time budget and a bar that shows how much of it is left. Measures nothing."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from neuroshard_profiler.errors import SettingsError

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Return the seconds in a text such as ``45s``, ``10m`` or ``1h``. Raises SettingsError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise SettingsError(
            f"budget: {text!r} is not a duration; hint: write a number and s, m or h, such as 45s or 10m"
        )
    return float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A part of the run that ends at a time or at a number of records, whichever comes first."""

    seconds: float
    max_records: int | None = None
    """None: time alone ends it."""
    min_records: int = 0
    """Time alone does not end it before there are that many: fewer could not be fitted."""
    clock: Callable[[], float] = time.monotonic
    earlier_seconds: float = 0.0
    """Spent before the start, by runs that were stopped."""
    started: float = field(default=-1.0)
    """On the clock; the default is now."""

    def __post_init__(self) -> None:
        if self.started < 0:
            object.__setattr__(self, "started", self.clock())

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start, and those spent before it."""
        return self.earlier_seconds + self.clock() - self.started

    def is_spent(self, num_records: int) -> bool:
        """Return whether the part is over with that many records in the file."""
        if self.max_records is not None and num_records >= self.max_records:
            return True
        return self.elapsed_seconds >= self.seconds and num_records >= self.min_records

    def share_spent(self, num_records: int) -> float:
        """Return the share of the part that is done, 0 to 1, by the limit that ends it."""
        by_time = self.elapsed_seconds / self.seconds
        by_number = num_records / self.max_records if self.max_records else 0.0
        return min(1.0, max(by_time, by_number))


class BudgetBar:
    """A bar with the records so far and the time left."""

    def __init__(self, progress: Progress, name: str, budget: Budget) -> None:
        self._progress = progress
        self._budget = budget
        self._task: TaskID = progress.add_task(name, total=1.0, records=0)

    def update(self, num_records: int) -> None:
        """Show the progress of the part."""
        self._progress.update(
            self._task, completed=self._budget.share_spent(num_records), records=num_records, refresh=False
        )


def budget_progress(console: Console) -> Progress:
    """Return the progress display of a run; nothing moves where the console is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[records]} records"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
