"""A run on a time axis: its stages as bars, the starts of its training as moments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from neuroshard_api.documents.progress import TrainingProgress

from neuroshard_report.quantities import format_count

SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpan:
    """One stage's work, or one attempt at it."""

    name: str
    begin: datetime
    end: datetime | None
    """None: it is under way."""
    outcome: str = ""
    """How it ended, in a word; empty where it is under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBar:
    """A stage as it is drawn; shares are of the whole time."""

    span: StageSpan
    begins_at: float
    share: float
    took: str


def stage_bars(spans: Sequence[StageSpan], progress: TrainingProgress | None) -> list[StageBar]:
    """Return the bars in order of time; a stage under way lasts until the last time that is known."""
    if not spans:
        return []
    ordered = sorted(spans, key=lambda span: span.begin)
    begin = ordered[0].begin
    times = [span.end or span.begin for span in ordered]
    if progress is not None:
        times += [point.time for point in (*progress.losses, *progress.evaluations)]
        times += [start.time for start in progress.starts]
    end = max(times)
    whole_s = (end - begin).total_seconds() or 1.0
    return [
        StageBar(
            span=span,
            begins_at=(span.begin - begin).total_seconds() / whole_s,
            share=((span.end or end) - span.begin).total_seconds() / whole_s,
            took=duration_text(((span.end or end) - span.begin).total_seconds()),
        )
        for span in ordered
    ]


def start_lines(progress: TrainingProgress | None) -> list[str]:
    """Return a line for each start of the training after the first: a restart, or another plan."""
    return [] if progress is None else list(_start_lines(progress))


def _start_lines(progress: TrainingProgress) -> Iterator[str]:
    for before, start in zip(progress.starts, progress.starts[1:], strict=False):
        where = f"from step {format_count(start.step)}" if start.step else "from the beginning"
        plan = f", under plan {start.plan_sha256[:10]}" if start.plan_sha256 != before.plan_sha256 else ""
        yield f"{start.time:%Y-%m-%d %H:%M:%S} UTC: restarted {where}{plan}"


def duration_text(seconds: float) -> str:
    """Return a duration as people say it: ``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < SECONDS_PER_MINUTE:
        return f"{whole} s"
    if whole < SECONDS_PER_HOUR:
        return f"{whole // SECONDS_PER_MINUTE} min {whole % SECONDS_PER_MINUTE} s"
    return f"{whole // SECONDS_PER_HOUR} h {whole % SECONDS_PER_HOUR // SECONDS_PER_MINUTE} min"
