"""Specification of clustering by session: the same rows, in runs that may stop anywhere."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.session_clustering import SessionClustering
from neuroshard_api.process.errors import DataError, StorageError
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.sessions.clustering import ClusteringSettings, cluster_sessions
from neuroshard_profiler.sessions.duckdb_engine import DuckDb, duckdb_engine
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.log import open_log
from neuroshard_profiler.sessions.windows import parse_windows
from neuroshard_profiler.sessions.writer import write_clustered
from pyarrow import parquet
from support.depth import generated
from support.profiler.session_logs import StoppedError, clustered, files_of, log_file, rows_of, session_file, table_of


def test_samples_are_ordered_by_session_within_windows(tmp_path: Path) -> None:
    """The session that starts first comes first; a session over an edge is cut; negative times have windows too."""
    path = session_file(
        tmp_path / "a.parquet", [(2, 3, [1]), (1, 4, [2]), (2, 9, [3]), (1, 5, [4]), (2, 12, [5]), (1, -1, [6])]
    )
    report = clustered([path], tmp_path / "out")
    tables = [parquet.read_table(tmp_path / "out" / each.file).to_pylist() for each in report.windows]

    assert [[(row["session"], row["time"]) for row in table] for table in tables] == [
        [(1, -1)],
        [(2, 3), (2, 9), (1, 4), (1, 5)],
        [(2, 12)],
    ]
    assert [(each.start, each.num_samples, each.num_sessions) for each in report.windows] == [
        (-10, 1, 1),
        (0, 4, 2),
        (10, 1, 1),
    ]


def test_bytes_are_counted_by_column_whatever_names_and_nesting(tmp_path: Path) -> None:
    """A name may be another's and a dot, and a value may have values in it."""
    inner = pa.array([{"b": 1, "c": [1, 2]}, {"b": 2, "c": None}])
    pairs = pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64()))
    words = pa.array(["x", "y"]).dictionary_encode()
    columns = {"a.b": [1, 2], "a": inner, "pairs": pairs, "words": words}
    path = log_file(tmp_path / "a.parquet", session=[1, 2], time=[1, 2], **columns)
    report = clustered([path], tmp_path / "out")
    metadata = parquet.read_metadata(path)
    group = metadata.row_group(0)
    total = sum(group.column(index).total_compressed_size for index in range(metadata.num_columns))

    assert [each.name for each in report.columns] == ["session", "time", *columns]
    assert all(each.bytes_before and each.bytes_after for each in report.columns)
    assert sum(each.bytes_before for each in report.columns) == total


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_timestamps_have_windows_of_durations(tmp_path: Path, unit: str, zone: str | None) -> None:
    """A day begins at midnight UTC whatever the zone; type and zone of the column are kept."""
    first = datetime(2024, 3, 30, 23, tzinfo=UTC)
    times = [first + timedelta(hours=hours) for hours in (0, 2, 1)]
    kind = pa.timestamp(unit, tz=zone)
    values = pa.array([each if zone else each.replace(tzinfo=None) for each in times], kind)
    path = log_file(tmp_path / "a.parquet", session=["x", "y", "x"], time=values)
    report = clustered([path], tmp_path / "out", window=None)

    assert [each.num_samples for each in report.windows] == [1, 2]
    assert parquet.read_schema(tmp_path / "out" / report.windows[0].file).field("time").type == kind
    assert rows_of(path) == rows_of(*(tmp_path / "out" / each.file for each in report.windows))


@generated(3, 8)
@given(
    samples=st.lists(
        st.tuples(st.integers(0, 4), st.integers(-15, 25), st.lists(st.integers(0, 3), max_size=3)),
        min_size=1,
        max_size=40,
    ),
    stops=st.lists(st.integers(1, 3), max_size=2),
)
def test_rows_are_the_same_multiset_and_bytes_whenever_runs_stop(
    samples: list[tuple[int, int, list[int]]], stops: list[int]
) -> None:
    """Runs that stop after any windows and are continued end with the bytes of one run; every row is there once."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        half = len(samples) // 2
        paths = [
            session_file(folder / f"{index}.parquet", part)
            for index, part in enumerate((samples[:half], samples[half:]))
            if part
        ]
        clustered(paths, folder / "whole")
        for stop in stops:
            try:
                clustered(paths, folder / "stopped", stop_after=stop)
            except StoppedError:
                assert not SessionClustering.read(folder / "stopped" / "clustering.json").columns
        clustered(paths, folder / "stopped")

        assert files_of(folder / "whole") == files_of(folder / "stopped")
        assert rows_of(*paths) == rows_of(*(folder / "whole").glob("window-*.parquet"))
        groups = parquet.read_metadata(next((folder / "whole").glob("window-*.parquet")))
        assert all(groups.row_group(index).num_rows <= 5 for index in range(groups.num_row_groups))


def test_a_run_killed_while_it_writes_is_continued(tmp_path: Path) -> None:
    """What a killed process leaves is an unfinished file and spilled data, neither of which counts."""
    path = session_file(tmp_path / "a.parquet", [(time % 3, time, [time]) for time in range(30)])
    clustered([path], tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        clustered([path], out, stop_after=1)
    (out / "window-000001.parquet.unfinished").write_bytes(b"PAR1 half")
    (out / "window-000002.parquet.unfinished.7").write_bytes(b"PAR1")
    (out / ".spill-dead").mkdir()
    (out / ".spill-dead" / "data").write_bytes(b"x")
    kept = (out / "window-000000.parquet").stat().st_ino
    clustered([path], out)

    assert files_of(out) == files_of(tmp_path / "whole")
    assert (out / "window-000000.parquet").stat().st_ino == kept
    assert sorted(path.name for path in out.iterdir()) == ["clustering.json", *files_of(out)]


def test_lists_are_plain_and_sizes_are_reported(tmp_path: Path) -> None:
    """Dictionary codes hide repeated lists from zstd; a session's lists together take less."""
    samples = [(time % 50, time, [time % 50 * 40 + place for place in range(40)]) for time in range(2000)]
    path = session_file(tmp_path / "a.parquet", samples)
    report = clustered([path], tmp_path / "out", window="10000", row_group_rows=1000, all_lists=True)
    metadata = parquet.read_metadata(tmp_path / "out" / "window-000000.parquet")
    columns = {
        metadata.row_group(0).column(index).path_in_schema: metadata.row_group(0).column(index) for index in range(3)
    }
    sizes = {each.name: each for each in report.columns}

    assert "RLE_DICTIONARY" not in next(column for name, column in columns.items() if "history" in name).encodings
    assert "RLE_DICTIONARY" in columns["session"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert list(sizes) == ["session", "time", "history"]
    assert sizes["history"].bytes_after < 0.5 * sizes["history"].bytes_before


def test_integers_are_packed_where_that_takes_little_room(tmp_path: Path) -> None:
    """Lists that are parts of one another are left for zstd to find, few values for a dictionary, and texts stay."""
    ids = np.random.default_rng(0).integers(2**17, size=(1000, 20))
    stream = np.random.default_rng(1).integers(2**40, size=1040)
    samples = [(time // 10 % 2, 1000 + time, ids[time].tolist()) for time in range(1000)]
    more = {
        "seen": pa.array([stream[time : time + 40].tolist() for time in range(1000)]),
        "words": pa.array([[str(time)] for time in range(1000)]),
        "price": pa.array(np.random.default_rng(2).normal(size=1000).astype(np.float32)),
        "few": pa.array([float(time % 3) for time in range(1000)]),
    }
    path = session_file(tmp_path / "a.parquet", samples, **more)
    clustered([path], tmp_path / "out", window="1000", row_group_rows=500)
    (file,) = (tmp_path / "out").glob("*.parquet")
    group = parquet.read_metadata(file).row_group(1)
    columns = [group.column(index) for index in range(group.num_columns)]
    encodings = {column.path_in_schema.partition(".")[0]: set(column.encodings) - {"RLE"} for column in columns}

    assert encodings["session"] == encodings["time"] == encodings["history"] == {"DELTA_BINARY_PACKED"}
    assert encodings["seen"] == encodings["words"] == encodings["price"] == {"PLAIN"}
    assert encodings["few"] == {"PLAIN", "RLE_DICTIONARY"}
    assert rows_of(file) == rows_of(path)


def test_a_finished_run_is_not_repeated_and_another_log_is_refused(tmp_path: Path) -> None:
    """A folder belongs to one log and its options."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1])])
    report = clustered([path], tmp_path / "out")

    assert clustered([path], tmp_path / "out", stop_after=1) == report
    with pytest.raises(SettingsError, match="holds the clustering of another log, or one with other options"):
        clustered([path], tmp_path / "out", window="20")
    (tmp_path / "taken").mkdir()
    session_file(tmp_path / "taken" / "b.parquet", [(1, 1, [1])])
    with pytest.raises(SettingsError, match="holds Parquet files of something else"):
        clustered([path], tmp_path / "taken")


def test_a_file_of_a_finished_run_that_was_removed_is_written_again(tmp_path: Path) -> None:
    """The report alone is not a proof of the files."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1]), (1, 12, [2])])
    report = clustered([path], tmp_path / "out")
    whole = files_of(tmp_path / "out")
    (tmp_path / "out" / "window-000000.parquet").unlink()

    assert clustered([path], tmp_path / "out") == report
    assert files_of(tmp_path / "out") == whole


def test_windows_may_reach_beyond_the_year_9999(tmp_path: Path) -> None:
    """A time that marks what has no end is a time too."""
    times = pa.array([253402214400000000, 2**62, 0], pa.timestamp("us"))  # the first one is 9999-12-31
    path = log_file(tmp_path / "a.parquet", session=[1, 1, 2], time=times)
    report = clustered([path], tmp_path / "out", window="9999d")

    assert [each.num_samples for each in report.windows] == [1, 1, 1]
    assert rows_of_times(tmp_path / "out") == sorted(times.cast(pa.int64()).to_pylist())


def rows_of_times(out: Path) -> list[int]:
    """Return the times of all rows, which Python's datetime cannot hold."""
    tables = [parquet.read_table(path) for path in out.glob("window-*.parquet")]
    return sorted(time for table in tables for time in table["time"].cast(pa.int64()).to_pylist())


def test_windows_that_begin_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    """The report could not name them."""
    path = log_file(tmp_path / "a.parquet", session=[1, 2], time=pa.array([0, 2**64 - 1], pa.uint64()))

    with pytest.raises(DataError, match=r"column 'time': a window begins at 18446744073709551610.*; hint: "):
        clustered([path], tmp_path / "out")


def test_rows_without_time_are_refused(tmp_path: Path) -> None:
    """They are in no window."""
    path = log_file(tmp_path / "a.parquet", session=[1, 1], time=[1, None])

    with pytest.raises(DataError, match=r"column 'time': is null in 1 rows; hint: "):
        clustered([path], tmp_path / "out")


@pytest.mark.parametrize(("window", "problem"), [(None, "is needed"), ("1d", "not a positive integer"), ("0", "not a")])
def test_windows_of_integers_are_numbers(tmp_path: Path, window: str | None, problem: str) -> None:
    """The unit of an integer column is the user's."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1])])

    with pytest.raises(SettingsError, match=f"--window: .*{problem}"):
        clustered([path], tmp_path / "out", window=window)


def spill(opened: DuckDb) -> None:
    """Sort more than memory and a limited folder hold, and fetch rows as the writer does."""
    opened.connection.execute("SET max_temp_directory_size = '1MB'")
    rows = opened.connection.sql("SELECT * FROM range(20000000) AS t(a) ORDER BY hash(a)")
    rows.to_arrow_reader(2048).read_next_batch()


def test_a_full_disk_is_a_sentence_with_the_folder(tmp_path: Path) -> None:
    """Spilled data that finds no room, and a file that cannot be written."""
    with (
        pytest.raises(StorageError, match=r"has no space for spilled data; hint: free space on that disk"),
        duckdb_engine(memory_mib=64, spill_to=tmp_path, log="a log") as opened,
    ):
        spill(opened)
    batch = pa.record_batch({"a": list(range(100_000))})
    with (
        pytest.raises(StorageError, match="No space left on device"),
        duckdb_engine(memory_mib=64, spill_to=tmp_path, log="a log"),
    ):
        write_clustered(Path("/dev/full"), [batch], batch.schema, row_group_rows=10)


def test_a_memory_limit_that_is_too_low_names_a_higher_one(tmp_path: Path) -> None:
    """A list of two hundred million ids cannot be spilled in parts."""
    with (
        pytest.raises(
            SettingsError, match=r"--memory-mib: 64 MiB are too little for a log; hint: give --memory-mib 128"
        ),
        duckdb_engine(memory_mib=64, spill_to=tmp_path, log="a log") as opened,
    ):
        opened.fetch("SELECT list(a) FROM range(200000000) AS t(a)")


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """The second would remove what the first has spilled."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1]), (1, 20, [1])])
    log = open_log([path], session="session", time="time")
    asked = ClusteringSettings(out=tmp_path / "out", row_group_rows=5, engine=EngineSettings(memory_mib=128))

    def meanwhile(_: str) -> None:
        with pytest.raises(SettingsError, match="another run writes to it"):
            clustered([path], tmp_path / "out")

    assert len(cluster_sessions(log, parse_windows(log, "10"), asked, progress=meanwhile).windows) == 2


def test_a_list_is_stored_once_for_rows_next_to_each_other_that_share_it(tmp_path: Path) -> None:
    """Under a name that no other reader takes for all lists; each row group begins with one, and a null is empty.

    A row group keeps all lists where that saves fewer than two ids per row.
    """
    ids, words = [1, 2, 3, 4], ["a", "b", "c", "d"]
    texts = pa.array([words] * 3 + [None] * 3 + [["b", None], ["b"]])
    lists = [ids, ids, ids, [], [], ids, ids, ids]
    samples = [(1, time, ids) for time, ids in enumerate(lists)]
    path = session_file(tmp_path / "a.parquet", samples, queries=texts)
    clustered([path], tmp_path / "out", row_group_rows=3)
    (file,) = (tmp_path / "out").glob("*.parquet")
    stored = parquet.read_table(file)

    assert stored.schema.names == ["session", "time", "history.distinct", "queries.distinct"]
    assert stored["history.distinct"].to_pylist() == [ids, None, None, [], [], ids, ids, None]
    assert stored["queries.distinct"].to_pylist() == [words, None, None, [], [], [], ["b", None], ["b"]]
    frame = stored.to_pandas()
    assert [list(each) for each in frame["history.distinct"].ffill()] == lists
    assert [each or [] for each in texts.to_pylist()] == table_of(file)["queries"].to_pylist()


def test_all_lists_are_kept_for_other_readers(tmp_path: Path) -> None:
    """With ``--all-lists``; a folder of the other form is not continued."""
    path = session_file(tmp_path / "a.parquet", [(1, time, [7]) for time in range(4)])
    clustered([path], tmp_path / "out", all_lists=True)

    assert parquet.read_table(next((tmp_path / "out").glob("*.parquet")))["history"].to_pylist() == [[7]] * 4
    with pytest.raises(SettingsError, match="with other options"):
        clustered([path], tmp_path / "out")
