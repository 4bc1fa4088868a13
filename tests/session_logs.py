"""Logs with sessions, written as Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet


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
    return sorted(repr(row) for path in paths for row in parquet.read_table(path).to_pylist())
