"""Speed and memory by batch size for the terminal. Formats, plans nothing itself."""

from collections.abc import Sequence

from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.explain.batch_sizes import BatchSize, SizedPlan
from neuroshard_report.quantities import format_count, format_ms
from neuroshard_report.terminal.tables import TextTable


def render_batch_sizes(found: Sequence[BatchSize], *, source: str) -> RenderableType:
    """Return a row for each batch size, and below them the reasons of those without a plan.

    Args:
        found: in the order of the rows.
        source: of the cost models.
    """
    rows = tuple(_row(each.samples_per_device, each.plan) for each in found)
    columns = (
        "batch per device",
        "samples/s",
        "embedding ms",
        "dense ms",
        "host ms",
        "fullest device",
        "of its memory",
    )
    counts = any(each.plan is not None and each.plan.dense_ms is not None for each in found)
    what = "whole step" if counts else "embedding part and the host, without a dense part"
    return Group(
        TextTable(columns=columns, rows=rows, text_columns=()),
        Text(f"samples/s are those of the {what}, predicted ({source}); a separate plan for each batch size"),
        *(Text(f"{each.samples_per_device:,}: {each.problem}") for each in found if each.problem is not None),
    )


def _row(samples_per_device: int, plan: SizedPlan | None) -> tuple[str, ...]:
    first = f"{samples_per_device:,}"
    if plan is None:
        return (first, "does not fit", "", "", "", "", "")
    return (
        first,
        format_count(plan.samples_per_second),
        format_ms(plan.embedding_ms),
        "not counted" if plan.dense_ms is None else format_ms(plan.dense_ms),
        "-" if plan.host_ms is None else format_ms(plan.host_ms),
        format_bytes(plan.memory_bytes),
        f"{100 * (plan.memory_bytes / plan.capacity_bytes):.1f} %",
    )
