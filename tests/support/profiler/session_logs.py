"""Logs with sessions, written as Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from neuroshard_api.documents.session_clustering import SessionClustering
from neuroshard_profiler.sessions.clustering import ClusteringSettings, cluster_sessions
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.log import open_log
from neuroshard_profiler.sessions.windows import parse_windows
from neuroshard_trainer.data.distinct_lists import distinct_columns, with_repeats
from pyarrow import parquet

DUCKDB = EngineSettings(memory_mib=128)


class StoppedError(Exception):
    """A run is stopped after a window."""


def log_file(path: Path, *, row_group_size: int = 4, **columns: Any) -> Path:
    """Write the columns in row groups of few rows."""
    parquet.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def session_file(path: Path, samples: Sequence[tuple[int, int, Sequence[int]]], **more: Any) -> Path:
    """Write samples of (session, time, list ``history``) in the given order, with further columns."""
    return log_file(
        path,
        session=pa.array([each[0] for each in samples], pa.int64()),
        time=pa.array([each[1] for each in samples], pa.int64()),
        history=pa.array([list(each[2]) for each in samples], pa.list_(pa.int32())),
        **more,
    )


def rows_of(*paths: Path) -> list[str]:
    """Return the rows of files as texts, sorted: equal for equal multisets."""
    return sorted(repr(row) for path in paths for row in table_of(path).to_pylist())


def table_of(path: Path) -> pa.Table:
    """Return the rows of a file, with all of their lists."""
    with parquet.ParquetFile(path) as file:
        groups = [file.read_row_group(group) for group in range(file.num_row_groups)]
        return pa.concat_tables(with_repeats(each, distinct_columns(file.schema_arrow)) for each in groups)


def clustered(
    paths: Sequence[Path],
    out: Path,
    *,
    window: str | None = "10",
    row_group_rows: int = 5,
    engine: EngineSettings = DUCKDB,
    stop_after: int | None = None,
    all_lists: bool = False,
) -> SessionClustering:
    """Cluster files with the columns ``session`` and ``time``; stop after a number of windows."""
    log = open_log(paths, session="session", time="time")
    seen: list[str] = []

    def progress(sentence: str) -> None:
        seen.append(sentence)
        if len(seen) == stop_after:
            raise StoppedError

    settings = ClusteringSettings(out=out, row_group_rows=row_group_rows, engine=engine, all_lists=all_lists)
    return cluster_sessions(log, parse_windows(log, window), settings, progress=progress)


def files_of(out: Path) -> dict[str, bytes]:
    """Return the clustered files."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("window-*.parquet"))}
