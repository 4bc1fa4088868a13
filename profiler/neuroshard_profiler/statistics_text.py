"""The statistics of a data sample for the terminal."""

from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_report.quantities import format_count
from neuroshard_report.terminal.tables import TextTable
from rich.console import Group, RenderableType

from neuroshard_profiler.statistics import DataStatistics


def render_statistics(statistics: DataStatistics) -> RenderableType:
    """Return one line per feature: rows, lookups per sample, hits per touched row, and how often lists repeat."""
    rows = tuple(
        (
            feature.name,
            format_count(feature.num_rows),
            f"{feature.pooling_factor:.4g}",
            f"{sum(share * hits for share, hits in zip(feature.reuse_histogram, MEAN_HITS, strict=True)):.3g}",
            "" if feature.duplication_factor is None else f"{feature.duplication_factor:.3g}",
        )
        for feature in statistics.features
    )
    columns = ("feature", "rows", "pooling", "hits per row", "duplication")
    said = f"{statistics.num_samples:,} samples, reuse in batches of {statistics.reuse_batch_size:,}"
    if statistics.samples_per_session is not None:
        said += f", {statistics.samples_per_session:.3g} samples per session and batch"
    return Group(said, "", TextTable(columns=columns, rows=rows))
