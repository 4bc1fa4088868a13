"""From a log in order of time to the same rows by session: window by window, in bounded memory, resumable.

Rows of a window are ordered by the start of their session in the window, session, time, file, and row: one order, so
that a run that was killed ends with the same bytes. A window's file appears whole, after the engine has read it again
and found the same multiset of rows. An edge of a window cuts a session.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.session_clustering import (
    MAX_INTEGER,
    ClusteredColumn,
    ClusteredWindow,
    ClusteringRequest,
    LogFile,
    SessionClustering,
)
from neuroshard_api.process.errors import DataError

from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.files import make_folder, write_file
from neuroshard_profiler.sessions.engine import FILE, ROW, Engine, EngineSettings, identifier
from neuroshard_profiler.sessions.log import START, SessionLog
from neuroshard_profiler.sessions.open_engine import engine
from neuroshard_profiler.sessions.windows import Windows
from neuroshard_profiler.sessions.writer import keep_lists_once

if TYPE_CHECKING:
    import pyarrow as pa

REPORT = "clustering.json"
UNFINISHED = ".unfinished"
"""End of the names of files that are being written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusteringSettings:
    """How a log is clustered."""

    out: Path
    row_group_rows: int
    """Maximum rows of a row group."""
    engine: EngineSettings
    """What sorts."""
    all_lists: bool = False
    """Whether every row has its lists; otherwise samples next to each other that share a list have it once."""


def cluster_sessions(
    log: SessionLog, windows: Windows, settings: ClusteringSettings, *, progress: Callable[[str], None]
) -> SessionClustering:
    """Write one file per window and a report; windows that an earlier run has written are kept.

    Args:
        log: the files.
        windows: which rows are clustered together.
        settings: how, and where to.
        progress: is called with a sentence after each window.

    Raises:
        DataError: rows without session or time, no rows, a damaged file, or files that change while they are read.
        SettingsError: the folder holds something else, another run writes to it, or the memory limit is too low.
        StorageError: the disk is full.
    """
    if log.distinct:
        raise DataError(
            f"{log.title}: has each list once already; hint: use it as it is, or give the log that it is made from"
        )
    make_folder(settings.out)
    with _alone(settings.out):
        request = _request(log, windows, settings)
        found = _earlier(settings.out, request)
        if found is not None and found.columns and all((settings.out / each.file).exists() for each in found.windows):
            return found
        write_file(settings.out / REPORT, SessionClustering(request=request).to_json())
        for leftover in settings.out.glob(".spill-*"):
            shutil.rmtree(leftover)
        for leftover in settings.out.glob(f"*{UNFINISHED}*"):
            leftover.unlink()
        with engine(settings.engine, spill_to=settings.out, log=log.title) as opened:
            written = _write_windows(opened, log, windows, settings, progress)
        files = [settings.out / each.file for each in written]
        if _request(log, windows, settings) != request:
            raise DataError("the log has changed while it was read; hint: remove the folder's files and start again")
        report = SessionClustering(request=request, windows=written, columns=_columns(log, files))
        write_file(settings.out / REPORT, report.to_json())
    return report


def _write_windows(
    opened: Engine,
    log: SessionLog,
    windows: Windows,
    settings: ClusteringSettings,
    progress: Callable[[str], None],
) -> tuple[ClusteredWindow, ...]:
    rows = log.rows(opened)
    counted = opened.fetch(
        f"SELECT {windows.start_of(opened)}, count(*), count(DISTINCT {identifier(log.session)}) "  # noqa: S608 - quoted
        f"FROM {rows} GROUP BY 1 ORDER BY 1"
    )
    if not counted:
        raise DataError("the log has no rows; hint: give a log with samples")
    for start, *_ in counted:
        if abs(int(start)) > MAX_INTEGER:
            raise DataError(
                f"column {log.time_column!r}: a window begins at {start}, which 64 bits do not hold"
                "; hint: count times from a later zero, or in a larger unit"
            )
    found = tuple(
        ClusteredWindow(
            file=f"window-{index:06d}.parquet", start=int(start), num_samples=num_samples, num_sessions=num_sessions
        )
        for index, (start, num_samples, num_sessions) in enumerate(counted)
    )

    def write(window: ClusteredWindow) -> None:
        if not (settings.out / window.file).exists():
            inside = f"(SELECT * FROM {rows} WHERE {windows.contains(window.start, opened)})"  # noqa: S608 - quoted
            _write_window(opened, log, inside, window, settings)

    started = time.monotonic()
    for index, window in enumerate(_in_turn(write, found, num_threads=opened.num_writers), start=1):
        left_s = (time.monotonic() - started) / index * (len(found) - index)
        size = f"{window.num_samples:,} samples of {window.num_sessions:,} sessions"
        progress(f"window {index} of {len(found)}: {size}" + (f"; about {left_s:.0f} s left" if left_s >= 1 else ""))
    return found


def _in_turn(
    write: Callable[[ClusteredWindow], None], windows: Sequence[ClusteredWindow], *, num_threads: int
) -> Iterator[ClusteredWindow]:
    """Yield the windows as they are written, several at a time; where one fails, those that wait are left."""
    if num_threads == 1:
        for window in windows:
            write(window)
            yield window
        return
    with ThreadPoolExecutor(num_threads) as pool:
        writing = [pool.submit(write, window) for window in windows]
        try:
            for window, done in zip(windows, writing, strict=True):
                done.result()
                yield window
        finally:
            pool.shutdown(cancel_futures=True)


def _write_window(
    opened: Engine, log: SessionLog, inside: str, window: ClusteredWindow, settings: ClusteringSettings
) -> None:
    session, time = identifier(log.session), identifier(log.time_column)
    query = f"""
        SELECT samples.*, sessions.{START} FROM {inside} AS samples
        JOIN (SELECT {session} AS session, min({time}) AS {START} FROM {inside} AS samples GROUP BY 1) AS sessions
            ON samples.{session} = sessions.session
    """  # noqa: S608 - names are quoted
    path = settings.out / window.file
    scratch = path.with_name(f"{path.name}{UNFINISHED}")
    opened.write(
        scratch,
        query,
        order=(START, log.session, log.time_column, FILE, ROW),
        schema=log.schema,
        row_group_rows=settings.row_group_rows,
    )
    before = _multiset(opened, log, inside)
    after = _multiset(opened, log, opened.rows_of([scratch]))
    if before != after or before[0] != window.num_samples:
        scratch.unlink()
        raise DataError(
            f"{path}: {after[0]:,} rows were written, {before[0]:,} of {window.num_samples:,} are in the log, or their "
            "values differ; hint: the log has changed while it was read; remove the folder's files and start again"
        )
    once = path.with_name(f"{path.name}{UNFINISHED}.once")
    if not settings.all_lists and keep_lists_once(scratch, once):
        once.replace(path)
        scratch.unlink()
    else:
        scratch.replace(path)


def _multiset(opened: Engine, log: SessionLog, rows: str) -> tuple[int, int]:
    """Return the number of rows and the sum of their 64-bit hashes, which no order changes."""
    hashed = opened.row_hash([identifier(name) for name in log.schema.names])
    ((count, total),) = opened.fetch(
        f"SELECT count(*), sum(CAST({hashed} AS {opened.wide_integer})) FROM {rows} AS samples"  # noqa: S608 - quoted
    )
    return count, int(total or 0)


def _columns(log: SessionLog, files: Sequence[Path]) -> tuple[ClusteredColumn, ...]:
    before, after = _column_bytes(log.paths), _column_bytes(files)
    return tuple(
        ClusteredColumn(name=name, bytes_before=before[name], bytes_after=after[name]) for name in log.schema.names
    )


def _column_bytes(paths: Sequence[Path]) -> dict[str, int]:
    """Return compressed bytes by column."""
    from neuroshard_trainer.data.distinct_lists import schema_of  # noqa: PLC0415 - needs pyarrow
    from pyarrow import parquet  # noqa: PLC0415 - only where Parquet is read

    sizes: dict[str, int] = {}
    for path in paths:
        metadata = parquet.read_metadata(path)
        # Names may have dots, as paths of nested values have: the leaves of a column follow each other.
        fields = schema_of(metadata)
        leaves = [field.name for field in fields for _ in range(_num_leaves(field.type))]
        for group in range(metadata.num_row_groups):
            for index, name in enumerate(leaves):
                chunk = metadata.row_group(group).column(index)
                sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    return sizes


def _num_leaves(kind: "pa.DataType") -> int:
    """Return the Parquet columns that a type takes: one, or those of what is in it."""
    stored = getattr(kind, "storage_type", kind)
    inside = [stored.field(index).type for index in range(stored.num_fields)]
    return sum(map(_num_leaves, inside)) if inside else 1


def _request(log: SessionLog, windows: Windows, settings: ClusteringSettings) -> ClusteringRequest:
    stats = [(path, path.stat()) for path in log.paths]
    return ClusteringRequest(
        files=tuple(
            LogFile(path=str(path.resolve()), size_bytes=found.st_size, modified_ns=found.st_mtime_ns)
            for path, found in stats
        ),
        session_column=log.session,
        time_column=log.time_column,
        window_width=windows.width,
        row_group_rows=settings.row_group_rows,
        all_lists=settings.all_lists,
    )


def _earlier(out: Path, request: ClusteringRequest) -> SessionClustering | None:
    path = out / REPORT
    if not path.exists():
        if any(each.suffix == ".parquet" for each in out.iterdir()):
            raise SettingsError(f"{out}: holds Parquet files of something else; hint: choose an empty folder")
        return None
    earlier = SessionClustering.read(path)
    if earlier.request != request:
        raise SettingsError(
            f"{out}: holds the clustering of another log, or one with other options; hint: choose another folder"
        )
    return earlier


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold a lock on the folder, which ends with the process. Raises SettingsError where another run holds it."""
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise SettingsError(f"{out}: another run writes to it; hint: wait for it, or choose another folder") from error
    finally:
        os.close(descriptor)
