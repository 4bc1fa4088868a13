"""Specification of clustering and counting on Spark: what DuckDB does, on a JVM that runs here."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.sessions.changes import count_changes
from neuroshard_profiler.sessions.engine import EngineKind, EngineSettings
from neuroshard_profiler.sessions.log import open_log
from neuroshard_profiler.sessions.open_engine import engine
from support.profiler.session_logs import DUCKDB, StoppedError, clustered, files_of, log_file, rows_of, session_file

pyspark = pytest.importorskip("pyspark", reason="Spark is an extra of its own: make test-spark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is not installed here"),
    pytest.mark.usefixtures("jvm"),
]

SPARK = EngineSettings(kind=EngineKind.SPARK)


def mixed_log(folder: Path) -> list[Path]:
    """Write two files of 600 samples with ties of time, and columns of many types and of names that need quotes."""
    rng = np.random.default_rng(7)
    paths = []
    for part in range(2):
        number = 600
        lists = [None if each % 7 == 0 else [int(each), None, 5][: each % 4] for each in rng.integers(0, 40, number)]
        columns = {
            "session": pa.array([f"s'{each}\\" for each in rng.integers(0, 60, number)]),
            "time": pa.array(rng.integers(-90, 200, number) * 1_000_000, pa.timestamp("us", tz="Europe/Berlin")),
            "history": pa.array(lists, pa.list_(pa.int32())),
            "nested": pa.array(
                [[[int(each)], []] for each in rng.integers(0, 9, number)], pa.list_(pa.list_(pa.int64()))
            ),
            'a "b`.c': pa.array(rng.integers(0, 2**32, number), pa.uint32()),
            "large": pa.array(rng.integers(2**63, 2**64, number, dtype=np.uint64), pa.uint64()),
            "start": pa.array([None if each < 0.1 else each for each in rng.random(number)], pa.float32()),
            "text": pa.array(
                [None if each == 0 else "ü" * each for each in rng.integers(0, 4, number)], pa.large_string()
            ),
            "when": pa.array(rng.integers(0, 10**9, number), pa.timestamp("ms")),
            "place": pa.array(
                [{"x": int(each), "y": None if each == 3 else "z"} for each in rng.integers(0, 9, number)]
            ),
        }
        paths.append(log_file(folder / f"part {part}.parquet", row_group_size=128, **columns))
    return paths


def test_clustered_files_have_the_bytes_of_duckdbs(tmp_path: Path) -> None:
    """The same SQL sorts, and the same writer writes: every type, ties, windows of a zone, and sessions they cut."""
    paths = mixed_log(tmp_path)
    reports = [
        clustered(paths, tmp_path / each.kind, window="150s", row_group_rows=100, engine=each)
        for each in (DUCKDB, SPARK)
    ]

    assert files_of(tmp_path / "spark") == files_of(tmp_path / "duckdb")
    assert len(reports[1].windows) == 3
    assert reports[1] == reports[0]
    assert rows_of(*paths) == rows_of(*(tmp_path / "spark").glob("*.parquet"))


def test_a_run_that_stops_is_continued_with_the_same_bytes(tmp_path: Path) -> None:
    """Windows of integers: those that are written stay as they are, and what was unfinished is removed."""
    path = session_file(tmp_path / "a.parquet", [(time % 3, time - 15, [time // 4]) for time in range(60)])
    clustered([path], tmp_path / "whole", window="20", row_group_rows=100, engine=DUCKDB)
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        clustered([path], out, window="20", row_group_rows=100, engine=SPARK, stop_after=1)
    (out / "window-000003.parquet").unlink(missing_ok=True)
    (out / "window-000003.parquet.unfinished.9").write_bytes(b"PAR1 half")
    kept = (out / "window-000000.parquet").stat().st_ino
    clustered([path], out, window="20", row_group_rows=100, engine=SPARK)

    assert files_of(out) == files_of(tmp_path / "whole")
    assert (out / "window-000000.parquet").stat().st_ino == kept
    assert sorted(each.name for each in out.iterdir()) == ["clustering.json", *files_of(out)]


@pytest.mark.parametrize("session_run", [0, 3])
def test_changes_are_counted_as_duckdb_counts_them(tmp_path: Path, session_run: int) -> None:
    """Null lists, ties of time, lists and single ids; every pattern with its samples."""
    log = open_log(mixed_log(tmp_path), session="session", time="time")
    features = ("history", 'a "b`.c', "nested")
    expected, found = (count_changes(log, features, session_run=session_run, settings=each) for each in (DUCKDB, SPARK))

    assert found.num_sessions == expected.num_sessions
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.changed.tolist() == expected.changed.tolist()
    assert found.starts_run.tolist() == expected.starts_run.tolist()


def test_what_spark_would_skip_or_not_read_is_refused(tmp_path: Path) -> None:
    """Files of hidden names, timestamps of nanoseconds, damaged pages, and rows without session."""
    hidden = session_file(tmp_path / "_a.parquet", [(1, 1, [1])])
    with pytest.raises(DataError, match=r"begins with '_', and Spark skips such files; hint: rename it"):
        clustered([hidden], tmp_path / "out", window="10", row_group_rows=100, engine=SPARK)

    nanoseconds = log_file(tmp_path / "b.parquet", session=[1], time=pa.array([1], pa.timestamp("ns")))
    with pytest.raises(DataError, match=r"timestamps of nanoseconds, which Spark does not read; hint: write micro"):
        clustered([nanoseconds], tmp_path / "out-b", window="1d", row_group_rows=100, engine=SPARK)

    damaged = session_file(tmp_path / "c.parquet", [(1, time, [time]) for time in range(100)])
    data = bytearray(damaged.read_bytes())
    data[4:400] = b"\xff" * 396
    damaged.write_bytes(data)
    with pytest.raises(DataError, match=r"c\.parquet: cannot be read .*; hint: write the damaged file again"):
        clustered([damaged], tmp_path / "out-c", window="10", row_group_rows=100, engine=SPARK)

    without = log_file(tmp_path / "d.parquet", session=[1, None], time=[1, 2])
    with pytest.raises(DataError, match=r"column 'session': is null in 1 rows; hint: "):
        clustered([without], tmp_path / "out-d", window="10", row_group_rows=100, engine=SPARK)


def test_rows_are_told_apart_by_nulls_too(tmp_path: Path) -> None:
    """Spark's hash passes over nulls; those of a row count by their column."""
    paths = [
        log_file(tmp_path / f"{name}.parquet", a=pa.array(a, pa.int64()), b=pa.array(b, pa.int64()))
        for name, a, b in (("x", [None], [1]), ("y", [1], [None]))
    ]
    with engine(SPARK, spill_to=None, log="a log") as opened:
        hashes = {
            opened.fetch(f"SELECT {opened.row_hash(['a', 'b'])} FROM {opened.rows_of([path])}")[0]  # noqa: S608 - ours
            for path in paths
        }

    assert len(hashes) == 2
