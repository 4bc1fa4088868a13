"""The statistics of a data sample for the terminal."""

from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_report.quantities import format_count
from neuroshard_report.terminal.tables import TextTable
from rich.console import Group, RenderableType

from neuroshard_profiler.data.statistics import DataStatistics
from neuroshard_profiler.sessions.groups import Duplication


def render_statistics(statistics: DataStatistics, duplication: Duplication | None) -> RenderableType:
    """Return one line per feature: rows and what shares them, lookups, hits per touched row, and repeats of lists."""
    rows = tuple(
        (
            feature.name,
            feature.id_rule.value,
            format_count(feature.num_ids),
            format_count(feature.num_rows),
            *(("", "") if feature.shared is None else (_percent(feature.shared.ids), _percent(feature.shared.lookups))),
            f"{feature.pooling_factor:.4g}",
            f"{sum(share * hits for share, hits in zip(feature.reuse_histogram, MEAN_HITS, strict=True)):.3g}",
            "" if feature.duplication_factor is None else f"{feature.duplication_factor:.3g}",
        )
        for feature in statistics.features
    )
    columns = (
        "feature", "id rule", "ids", "rows", "shared ids", "shared lookups", "pooling", "hits per row", "duplication",
    )  # fmt: skip
    said = f"{statistics.num_samples:,} samples, reuse in batches of {statistics.reuse_batch_size:,}"
    if statistics.samples_per_session is not None:
        said += f", {statistics.samples_per_session:.3g} samples per session and batch"
    found = (said, "", TextTable(columns=columns, rows=rows))
    return Group(*found) if duplication is None else Group(*found, "", *_runs(duplication))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _runs(duplication: Duplication) -> tuple[RenderableType, ...]:
    changes = duplication.changes
    order = f"runs of up to {changes.session_run}" if changes.session_run else "whole sessions"
    heading = (
        f"{changes.num_samples:,} samples of {changes.num_sessions:,} sessions, "
        f"{changes.samples_per_session:.3g} per session, in {order}"
    )
    rows = tuple(
        (
            name,
            f"{changes.change_probability(name):.3g}",
            f"{changes.factor((name,)):.3g}",
            duplication.group_of(name) or "",
            f"{duplication.factor_of(name):.3g}" if duplication.group_of(name) else "",
        )
        for name in changes.features
    )
    return heading, "", TextTable(columns=("feature", "change", "factor alone", "group", "factor"), rows=rows)
