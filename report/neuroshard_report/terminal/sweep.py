"""A sweep for the terminal: ways to divide the devices, and variants with their metrics."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.sweep import (
    RESULT_COLUMNS,
    WAY_COLUMNS,
    SweepView,
    VariantResult,
    best_first,
    result_columns,
    result_row,
)
from neuroshard_report.terminal.tables import TextTable, fact_grid


def render_ways(view: SweepView) -> RenderableType:
    """Return a row for each way to divide the devices, and below them what the times are of."""
    title = f"{view.name}: {len(view.results)} variants on {view.num_devices} {view.device_type}"
    rows = tuple(map(view.way_row, view.ways))
    table = TextTable(columns=WAY_COLUMNS, rows=rows, text_columns=(0, len(WAY_COLUMNS) - 1))
    return Group(Text(title, style="bold"), table, Text(), fact_grid(view.facts()))


def render_results(results: Sequence[VariantResult]) -> RenderableType:
    """Return a row for each variant, best first, and below them why variants failed."""
    columns = result_columns(results)
    names = len(columns) - len(RESULT_COLUMNS)
    table = TextTable(
        columns=columns,
        rows=tuple(map(result_row, best_first(results))),
        text_columns=(*range(names), len(columns) - 1),
    )
    failed = [(result.name, result.problem) for result in results if result.problem]
    return Group(table, *([Text(), fact_grid(failed)] if failed else []))
