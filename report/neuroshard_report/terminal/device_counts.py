"""Speed, memory, and price by number and kind of devices, for the terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.device_counts import DeviceCounts
from neuroshard_report.terminal.tables import TextTable, fact_grid


def render_device_counts(found: DeviceCounts) -> RenderableType:
    """Return a table for each kind with a row for each number of devices, and below them what follows."""
    parts: list[RenderableType] = []
    for name in found.device_types:
        rows = tuple(found.row(each) for each in found.counts if each.device_type == name)
        parts += [Text(name, style="bold"), TextTable(columns=found.columns, rows=rows, text_columns=()), Text()]
    return Group(*parts, fact_grid(found.facts()))
