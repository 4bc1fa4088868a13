"""The report of a clustering for the terminal."""

from neuroshard_api.documents.session_clustering import SessionClustering
from neuroshard_report.terminal.tables import TextTable
from rich.console import Group, RenderableType

_MB = 10**6


def render_clustering(report: SessionClustering) -> RenderableType:
    """Return samples, sessions, and the compressed size of each column before and after."""
    num_samples = sum(each.num_samples for each in report.windows)
    num_sessions = sum(each.num_sessions for each in report.windows)
    before = sum(each.bytes_before for each in report.columns)
    after = sum(each.bytes_after for each in report.columns)
    rows = tuple(
        (name, f"{old / _MB:.3f}", f"{new / _MB:.3f}", f"{new / old:.2f}" if old else "")
        for name, old, new in (
            *((each.name, each.bytes_before, each.bytes_after) for each in report.columns),
            ("all", before, after),
        )
    )
    heading = (
        f"{num_samples:,} samples in {len(report.windows):,} files, "
        f"{num_samples / num_sessions:.3g} samples per session and window"
    )
    return Group(heading, "", TextTable(columns=("column", "MB before", "MB after", "share"), rows=rows))
