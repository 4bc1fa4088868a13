"""Windows of time that a log is clustered in. Window n of width w holds the times in [n * w, (n + 1) * w)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.sessions.engine import Engine, identifier
from neuroshard_profiler.sessions.log import SessionLog

_MICROSECONDS = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_ROUNDING = _MICROSECONDS["s"]
"""Around the bounds that skip row groups: nanoseconds are rounded to microseconds, and which way is the engine's."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Windows of one width."""

    column: str
    width: int
    """Microseconds of timestamps, or units of an integer column."""
    has_timestamps: bool
    has_zone: bool
    """Whether timestamps have a time zone."""
    has_nanoseconds: bool
    """Whether timestamps count nanoseconds."""

    def start_of(self, engine: Engine) -> str:
        """Return the start of the window of a row as SQL: an integer in the unit of the width."""
        name = identifier(self.column)
        wide = f"CAST({name} AS {engine.wide_integer})"
        time = engine.microseconds(name, has_zone=self.has_zone) if self.has_timestamps else wide
        return f"({time} - ((({time}) % {self.width}) + {self.width}) % {self.width})"

    def contains(self, start: int, engine: Engine) -> str:
        """Return SQL that holds for the rows of a window, and by which row groups are skipped."""
        name = identifier(self.column)
        slack = _ROUNDING if self.has_timestamps else 0
        first, end = (self._bound(time, engine) for time in (start - slack, start + self.width + slack))
        bounds = [
            f"{name} {comparison} {bound}" for comparison, bound in ((">=", first), ("<", end)) if bound is not None
        ]
        return f"({' AND '.join([*bounds, f'{self.start_of(engine)} = {start}'])})"

    def _bound(self, time: int, engine: Engine) -> str | None:
        """Return a time as SQL. None: a timestamp before the year 1 or after 9999, as which no bound can be written."""
        if not self.has_timestamps:
            return str(time)
        try:
            moment = _EPOCH + timedelta(microseconds=time)
        except OverflowError:
            return None
        return engine.timestamp(moment, has_zone=self.has_zone, has_nanoseconds=self.has_nanoseconds)


def parse_windows(log: SessionLog, text: str | None) -> Windows:
    """Read the width of windows: a duration such as 1d for timestamps, a number for integers.

    Args:
        log: its time column decides which.
        text: If unset: one day for timestamps.

    Raises:
        SettingsError: it is not a width, or not one of the column's type.
    """
    if log.has_timestamps:
        found = re.fullmatch(r"([1-9]\d{0,6})([smhd])", text or "1d")
        if found is None:
            raise SettingsError(f"--window: {text!r} is not a duration; hint: write 1d, 6h, 30m, or 45s")
        width = int(found[1]) * _MICROSECONDS[found[2]]
    else:
        if text is None:
            raise SettingsError(
                f"--window: is needed, since column {log.time_column!r} holds integers"
                "; hint: give the width in the column's unit, such as 86400 for a day in seconds"
            )
        if re.fullmatch(r"[1-9]\d{0,17}", text) is None:
            raise SettingsError(
                f"--window: {text!r} is not a positive integer, as column {log.time_column!r} holds; hint: write 86400"
            )
        width = int(text)
    kind = log.schema.field(log.time_column).type
    return Windows(
        column=log.time_column,
        width=width,
        has_timestamps=log.has_timestamps,
        has_zone=log.has_timestamps and kind.tz is not None,
        has_nanoseconds=log.has_timestamps and kind.unit == "ns",
    )
