"""The embedding collections of a model for the terminal."""

from collections.abc import Sequence

from neuroshard_api.process.sizes import format_bytes

from neuroshard_report.explain.collections import PlacedCollection
from neuroshard_report.quantities import format_count
from neuroshard_report.summary import index_ranges
from neuroshard_report.terminal.tables import TextTable


def collections_table(collections: Sequence[PlacedCollection]) -> TextTable:
    """Return one line for each collection: what it holds, how it is cut, and where it is."""
    rows = tuple(
        (
            each.path or "-",
            format_count(len(each.tables)),
            format_count(each.num_columns),
            f"{each.lookups:g}",
            format_bytes(each.weights_bytes),
            each.types_text,
            index_ranges(each.devices),
        )
        for each in collections
    )
    columns = ("module", "tables", "columns", "lookups", "weights", "sharding types", "devices")
    return TextTable(columns=columns, rows=rows, text_columns=(0, 5, 6))
