"""What is known of a request without a search, for the terminal. Formats, computes nothing itself."""

from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType

from neuroshard_report.explain.estimate import RequestEstimate
from neuroshard_report.quantities import format_count, format_ms
from neuroshard_report.terminal.tables import TextTable, fact_grid


def render_estimate(found: RequestEstimate) -> RenderableType:
    """Return memory and lower bound, and a line for each table, or for tables that must share a device."""
    facts = [
        ("bound", f"no plan's embedding part takes less than {format_ms(found.lower_bound_ms)} ms ({found.source})"),
        ("memory", f"{format_bytes(found.least_bytes)} of {format_bytes(found.capacity_bytes)} for shards"),
    ]
    rows = tuple(
        (
            ", ".join(unit.names),
            format_count(unit.num_rows),
            str(unit.num_columns),
            format_bytes(unit.weights_bytes),
            format_bytes(unit.optimizer_state_bytes),
            format_ms(unit.alone_ms),
        )
        for unit in found.units
    )
    columns = ("table", "rows", "columns", "weights", "optimizer", "compute ms alone")
    return Group(fact_grid(facts), "", TextTable(columns=columns, rows=rows))
