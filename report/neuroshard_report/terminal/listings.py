"""Lists of what comes with the package, workloads and device types, and of a set's tables. Formats, reads no files."""

from collections.abc import Collection, Mapping

import numpy as np
from neuroshard_api.documents.presets import DevicePreset
from neuroshard_api.documents.tables import Pooling, TableSet
from neuroshard_api.process.sizes import format_bytes
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import weights_bytes
from rich.console import RenderableType

from neuroshard_report.quantities import format_count
from neuroshard_report.terminal.tables import TextTable


def render_workloads(sets: Mapping[str, TableSet]) -> RenderableType:
    """Return one line per table set: its size, its mean width and lookups, and the batch it is trained with."""
    rows = []
    for name, table_set in sets.items():
        tables = table_set.tables
        weights = sum(map(weights_bytes, tables))
        rows.append(
            (
                name,
                format_count(len(tables)),
                format_bytes(weights),
                f"{sum(table.embedding_dim for table in tables) / len(tables):.0f}",
                f"{sum(table.pooling_factor for table in tables):,.0f}",
                format_count(table_set.global_batch_size) if table_set.global_batch_size else "-",
                (table_set.description or "").partition(". ")[0].rstrip("."),
            )
        )
    columns = ("workload", "tables", "weights", "mean dim", "lookups", "batch", "what it is")
    return TextTable(columns=columns, rows=tuple(rows), text_columns=(0, 6))


def render_tables(table_set: TableSet, *, duplication: Mapping[str, float]) -> RenderableType:
    """Return one line per table: its shape, how it is looked up, and what a sample of lookups says.

    Args:
        table_set: the tables.
        duplication: samples over distinct lists of lookups within a batch, by table, where it is known.
    """
    rows = tuple(
        (
            table.name,
            format_count(table.num_embeddings),
            str(table.embedding_dim),
            table.data_type.value,
            (table.pooling or Pooling.SUM).value + (" weighted" if table.is_weighted else ""),
            str(table.num_features),
            f"{table.pooling_factor:.4g}",
            "" if table.reuse_histogram is None else f"{sum(np.multiply(table.reuse_histogram, MEAN_HITS)):.3g}",
            "" if table.name not in duplication else f"{duplication[table.name]:.3g}",
        )
        for table in table_set.tables
    )
    columns = ("table", "rows", "dim", "type", "pooling", "features", "lookups", "hits per row", "duplication")
    return TextTable(columns=columns, rows=rows, text_columns=(0, 3, 4))


def render_devices(presets: Mapping[str, DevicePreset], *, with_bundle: Collection[str]) -> RenderableType:
    """Return one line per device type: its data sheet, and whether cost models for it come with the package."""
    rows = tuple(
        (
            name,
            format_bytes(preset.device.memory_bytes),
            f"{preset.device.memory_bandwidth_bytes_per_second / 1e9:,.0f}",
            f"{preset.intra_node.bandwidth_bytes_per_second / 1e9:,.0f}",
            f"{preset.inter_node.bandwidth_bytes_per_second / 1e9:,.0f}",
            str(preset.devices_per_node),
            "" if preset.rack is None else str(preset.devices_per_node * preset.rack.num_nodes),
            "yes" if name in with_bundle else "no",
            preset.device.product,
        )
        for name, preset in presets.items()
    )
    columns = ("device", "memory", "GB/s", "in node", "between", "per node", "per rack", "bundled", "product")
    return TextTable(columns=columns, rows=rows, text_columns=(0, 8))
