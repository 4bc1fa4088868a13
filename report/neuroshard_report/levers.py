"""What would shorten a plan's step, as sentences."""

from neuroshard_api.documents.levers import Lever

from neuroshard_report.quantities import format_ms, format_percent


def lever_line(lever: Lever, now_ms: float) -> str:
    """Return the promise of a lever, with the option and the job's field that turn it on.

    ``now_ms`` is the predicted cost of the plan's step.
    """
    times = f"{format_ms(lever.total_ms)} ms in place of {format_ms(now_ms)}"
    return f"{lever.text}: about {times} (-{format_percent(lever.saved_share)}); {lever.option}, or {lever.field}"
