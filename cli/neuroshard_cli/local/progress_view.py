"""What people see of a run while it goes on: a line per stage, its time, and the newest line of its log."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

State = Literal["waiting", "active", "done", "reused", "failed", "stopped"]
MARKS: Mapping[State, str] = {
    "waiting": " ",
    "active": ">",
    "done": "+",
    "reused": "=",
    "failed": "x",
    "stopped": "x",
}
SHOWN_CHARACTERS = 100
LINE_SECONDS = 60.0
"""Between lines of a stage at work where nothing moves in place, such as in a log of CI."""
STEP = re.compile(r"\bstep (\d+) of (\d+)\b")
"""The trainer's line in a log, from which the time left is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLine:
    """One stage as it is shown."""

    name: str
    state: State = "waiting"
    started_s: float = 0.0
    seconds: float = 0.0
    note: str = ""
    first_step: tuple[int, float] | None = None
    """The first training step that the log showed, and the seconds at which it did. None: no step yet."""
    printed_s: float = 0.0
    """Seconds of the stage at its newest line in a pipe."""
    left_s: float | None = None
    """Estimated seconds until the last step. None: unknown."""


class RunView:
    """Shows the stages: in place on a terminal, else a line where a stage begins or ends, and one a minute between.

    Args:
        stages: names in order.
        console: where it is shown.
    """

    def __init__(self, stages: tuple[str, ...], console: "Console") -> None:
        from rich.live import Live

        self._console = console
        self._lines = {name: StageLine(name=name) for name in stages}
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last state, and leave it there; a stage that was under way has failed, or was stopped."""
        if kind is not None:
            state: State = "failed" if issubclass(kind, Exception) else "stopped"
            for line in list(self._lines.values()):
                if line.state == "active":
                    self.end(line.name, state)
        if self._console.is_terminal:
            self._live.stop()

    def leave_out(self, stage: str) -> None:
        """Show no line for a stage that this run does not have."""
        self._lines.pop(stage, None)

    def begin(self, stage: str, note: str = "") -> None:
        """Show that a stage has begun."""
        self._set(
            stage, state="active", started_s=time.monotonic(), note=note, printed_s=0.0, first_step=None, left_s=None
        )
        self._say(f"{stage}: {note or 'begun'}")

    def note(self, stage: str, note: str) -> None:
        """Show a stage's newest words."""
        line = self._lines[stage]
        seconds = time.monotonic() - line.started_s
        self._set(stage, note=note, seconds=seconds)
        if found := STEP.search(note):
            step, last = int(found[1]), int(found[2])
            first, first_s = line.first_step or (step, seconds)
            left_s = (seconds - first_s) / (step - first) * (last - step) if step > first else None
            self._set(stage, first_step=(first, first_s), left_s=left_s)
        if seconds - line.printed_s >= LINE_SECONDS:
            left_s = self._lines[stage].left_s
            left = "" if left_s is None else f"; {left_s:.0f} s left"
            self._set(stage, printed_s=seconds)
            self._say(f"{stage}: {seconds:.0f} s: {note[:SHOWN_CHARACTERS]}{left}")

    def end(self, stage: str, state: State, note: str | None = None) -> None:
        """Show the end of a stage."""
        line = self._lines[stage]
        seconds = time.monotonic() - line.started_s if line.state == "active" else 0.0
        took = f" after {seconds:.0f} s" if line.state == "active" else ""
        self._set(stage, state=state, seconds=seconds, note=line.note if note is None else note, left_s=None)
        self._say(f"{stage}: {state}{took}{f': {note}' if note else ''}")

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Leave the terminal to others meanwhile."""
        if not self._console.is_terminal:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def say(self, sentence: str) -> None:
        """Show a sentence that stays: above the stages on a terminal."""
        self._console.print(sentence, soft_wrap=True)

    def _set(self, stage: str, **changes: object) -> None:
        self._lines[stage] = replace(self._lines[stage], **changes)  # type: ignore[arg-type] # fields of StageLine

    def _say(self, sentence: str) -> None:
        if not self._console.is_terminal:
            self._console.print(sentence, soft_wrap=True)

    def _table(self) -> "RenderableType":
        from rich.table import Table

        table = Table.grid(padding=(0, 1))
        for line in self._lines.values():
            seconds = time.monotonic() - line.started_s if line.state == "active" else line.seconds
            shown = "" if line.state == "waiting" else f"{seconds:5.0f} s"
            left = "" if line.left_s is None else f"{line.left_s:.0f} s left"
            table.add_row(MARKS[line.state], line.name, shown, left, line.note[:SHOWN_CHARACTERS])
        return table
