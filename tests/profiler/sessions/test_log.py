"""Specification of the logs that sessions are read from."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.sessions.log import open_log
from support.profiler.session_logs import log_file, session_file


def test_a_folder_is_its_parquet_files_by_name(tmp_path: Path) -> None:
    """Hidden files are those of unfinished runs, and other files are none of the log's."""
    for name in ("b.parquet", "a.parquet", ".c.parquet"):
        session_file(tmp_path / name, [(1, 1, [1])])
    (tmp_path / "notes.txt").write_text("x")

    log = open_log([tmp_path], session="session", time="time")
    assert [path.name for path in log.paths] == ["a.parquet", "b.parquet"]


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    """The option that asked for the column is in the hint."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1])])

    with pytest.raises(
        DataError, match=r"a\.parquet: column 'visit': is missing; hint: give --session one of session, "
    ):
        open_log([path], session="visit", time="time")


def test_files_of_other_types_are_named(tmp_path: Path) -> None:
    """One column of two types has no common file."""
    first = log_file(tmp_path / "a.parquet", session=[1], time=[1])
    second = log_file(tmp_path / "b.parquet", session=["x"], time=[1])

    with pytest.raises(DataError, match=r"b\.parquet: column 'session': holds string, in .*a\.parquet int64; hint: "):
        open_log([first, second], session="session", time="time")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_files_of_other_columns_are_named(tmp_path: Path, names: tuple[str, str]) -> None:
    """A column that only one file has would be lost or null."""
    log_file(tmp_path / "a.parquet", session=[1], time=[1])
    log_file(tmp_path / "b.parquet", session=[1], time=[1], item=[1])

    with pytest.raises(DataError, match=r"column 'item': is missing.*; hint: write both files with the same columns"):
        open_log([tmp_path / f"{name}.parquet" for name in names], session="session", time="time")


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"session": [0.5], "time": [1]}, "column 'session': holds double"),
        ({"session": [1], "time": ["noon"]}, "column 'time': holds string"),
        ({"session": [1], "time": [1], "Time": [1]}, "column 'time': occurs twice"),
        ({"session": [1], "time": [1], "file_row_number": [1]}, "is a name that the engine uses"),
    ],
    ids=["fraction", "text", "case", "reserved"],
)
def test_columns_that_cannot_be_used_are_refused(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    """A session is compared, a time is ordered, and names differ for an engine that ignores their case."""
    path = log_file(tmp_path / "a.parquet", **columns)

    with pytest.raises(DataError, match=problem):
        open_log([path], session="session", time="time")


def test_what_is_not_parquet_is_refused(tmp_path: Path) -> None:
    """Criteo's text has no named columns, so no sessions."""
    path = tmp_path / "day_0.tsv"
    path.write_text("1\t2\n")

    with pytest.raises(DataError, match=r"day_0\.tsv: is not a Parquet file .*; hint: sessions need named columns"):
        open_log([path], session="session", time="time")
    with pytest.raises(DataError, match="is not a file"):
        open_log([tmp_path / "absent.parquet"], session="session", time="time")
    with pytest.raises(DataError, match=r"holds no \*\.parquet file"):
        open_log([tmp_path], session="session", time="time")


def test_patterns_in_names_are_refused(tmp_path: Path) -> None:
    """The engine would read other files by them."""
    path = log_file(tmp_path / "a[1].parquet", session=pa.array([1]), time=[1])

    with pytest.raises(DataError, match="has one of the characters"):
        open_log([path], session="session", time="time")
