"""Specification of bad logs: a sentence and the exit code of invalid input, the same with every engine."""

import re
import shutil
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from neuroshard_cli.main import run
from pyarrow import parquet
from support.profiler.session_logs import clustered, log_file, session_file

INVALID_INPUT = 2
NO_SPARK = shutil.which("java") is None or find_spec("pyspark") is None
ENGINES = [
    "duckdb",
    pytest.param(
        "spark",
        marks=[
            pytest.mark.spark,
            pytest.mark.skipif(NO_SPARK, reason="needs Java and the extra spark: make test-spark"),
        ],
    ),
]


def not_parquet(folder: Path) -> None:
    """Write bytes without meaning."""
    (folder / "a.parquet").write_bytes(b"PAR1 and no more")


def damaged(folder: Path) -> None:
    """Write a file whose pages are damaged and whose metadata is whole."""
    path = session_file(folder / "a.parquet", [(1, time, [time]) for time in range(100)])
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)


def empty(folder: Path) -> None:
    """Leave the folder without files of the format."""
    (folder / "notes.txt").write_text("nothing")


def without_session(folder: Path) -> None:
    """Write a log without the column of sessions."""
    log_file(folder / "a.parquet", time=[1], history=[[1]])


def fractions(folder: Path) -> None:
    """Write sessions that are not names."""
    log_file(folder / "a.parquet", session=[0.5], time=[1])


def texts_of_time(folder: Path) -> None:
    """Write times that have no order."""
    log_file(folder / "a.parquet", session=[1], time=["noon"])


def other_type(folder: Path) -> None:
    """Write two files that differ in a column's type."""
    log_file(folder / "a.parquet", session=[1], time=[1])
    log_file(folder / "b.parquet", session=["x"], time=[1])


def other_columns(folder: Path) -> None:
    """Write two files of which the second lacks a column."""
    log_file(folder / "a.parquet", session=[1], time=[1], item=[1])
    log_file(folder / "b.parquet", session=[1], time=[1])


def null_session(folder: Path) -> None:
    """Write two rows of which one has no session."""
    log_file(folder / "a.parquet", session=[1, None], time=[1, 2])


def null_time(folder: Path) -> None:
    """Write two rows of which one has no time."""
    log_file(folder / "a.parquet", session=[1, 1], time=[None, 2])


def changing(folder: Path) -> None:
    """Write a session in which a list changes from file to file."""
    for number in range(2):
        session_file(folder / f"{number} a.parquet", [(1, number, [number])])


def no_rows(folder: Path) -> None:
    """Write a log of no samples."""
    log_file(folder / "a.parquet", session=pa.array([], pa.int64()), time=pa.array([], pa.int64()))


def without_a_name(folder: Path) -> None:
    """Write an index as a column, as data frames do."""
    parquet.write_table(pa.table({"session": [1], "time": [1], "": [0]}), folder / "a.parquet")


def long_decimals(folder: Path) -> None:
    """Write decimals of more digits than the engines keep."""
    prices = pa.array([{"full": Decimal("1.01")}], pa.struct([("full", pa.decimal256(50, 2))]))
    log_file(folder / "a.parquet", session=[1], time=[1], price=prices)


def old_timestamps(folder: Path) -> None:
    """Write timestamps as an older Spark or Hive does."""
    table = pa.table({"session": [1], "time": [1], "seen": pa.array([datetime(2024, 1, 1)])})  # noqa: DTZ001
    parquet.write_table(table, folder / "a.parquet", use_deprecated_int96_timestamps=True)


def lists_once(folder: Path) -> None:
    """Write a log that was clustered before."""
    clustered([session_file(folder.parent / "all.parquet", [(1, time, [7]) for time in range(3)])], folder)


def partly_once(folder: Path) -> None:
    """Write a file in which each row has its list, next to one that was clustered."""
    lists_once(folder)
    once = parquet.read_table(folder / "window-000000.parquet")
    parquet.write_table(once.replace_schema_metadata(), folder / "z.parquet")


CLUSTER = ("cluster-sessions", "--window", "10", "--out", "out")
STATS = ("stats", "--embedding-dim", "16", "--constant", "history")
CASES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], str]] = {
    "not Parquet": (
        not_parquet,
        CLUSTER,
        r"log/a\.parquet: is not a Parquet file \(.*\)\nhint: sessions need named columns; convert the log to Parquet",
    ),
    "a damaged page": (damaged, CLUSTER, r"log/a\.parquet: cannot be read \(.*\)\nhint: write the damaged file again"),
    "an empty folder": (
        empty,
        CLUSTER,
        r"log: holds no \*\.parquet file\nhint: name a folder or files of Parquet",
    ),
    "a missing column": (
        without_session,
        CLUSTER,
        r"log/a\.parquet: column 'session': is missing\nhint: give --session one of time, history",
    ),
    "sessions of fractions": (
        fractions,
        CLUSTER,
        r"log/a\.parquet: column 'session': holds double\nhint: a session is an integer or a text",
    ),
    "times of texts": (
        texts_of_time,
        CLUSTER,
        r"log/a\.parquet: column 'time': holds string\nhint: time is an integer or a timestamp",
    ),
    "files of two types": (
        other_type,
        CLUSTER,
        (
            r"log/b\.parquet: column 'session': holds string, in log/a\.parquet int64"
            r"\nhint: write both files with the same types"
        ),
    ),
    "files of other columns": (
        other_columns,
        CLUSTER,
        (
            r"log/b\.parquet: column 'item': is missing, log/a\.parquet has it"
            r"\nhint: write both files with the same columns"
        ),
    ),
    "a null session": (
        null_session,
        CLUSTER,
        r"log/a\.parquet: column 'session': is null in 1 rows\nhint: leave these rows out, or give them a value",
    ),
    "a null time": (
        null_time,
        CLUSTER,
        r"log/a\.parquet: column 'time': is null in 1 rows\nhint: leave these rows out, or give them a value",
    ),
    "a log without rows": (no_rows, CLUSTER, r"the log has no rows\nhint: give a log with samples"),
    "a column without a name": (
        without_a_name,
        CLUSTER,
        r"log/a\.parquet: column 3 has no name\nhint: name it, or leave it out",
    ),
    "decimals of 50 digits": (
        long_decimals,
        CLUSTER,
        (
            r"log/a\.parquet: column 'price\.full': holds decimals of 50 digits, and the engine keeps 38"
            r"\nhint: write them with at most as many"
        ),
    ),
    "timestamps of 96 bits": (
        old_timestamps,
        CLUSTER,
        (
            r"log/a\.parquet: column 'seen': holds timestamps of 96 bits, whose nanoseconds would be lost"
            r"\nhint: write them as 64-bit timestamps"
        ),
    ),
    "a log that was clustered": (
        lists_once,
        CLUSTER,
        (
            r"log/window-000000\.parquet: has each list once already"
            r"\nhint: use it as it is, or give the log that it is made from"
        ),
    ),
    "constant lists of a log that was clustered": (
        lists_once,
        STATS,
        (
            r"log/window-000000\.parquet: has each list once"
            r"\nhint: give --constant with the log that it was clustered from"
        ),
    ),
    "a log that was clustered in part": (
        partly_once,
        CLUSTER,
        (
            r"log/z\.parquet: column 'history': is missing, log/window-000000\.parquet has it"
            r"\nhint: write both files with the same columns"
        ),
    ),
    "a list that changes": (
        changing,
        STATS,
        (
            r"log/1 a\.parquet row 0: 'history' changes in session 1 "
            r"\(found \[1\], and \[0\] in log/0 a\.parquet row 0\)\n"
            r"hint: correct the log, or remove 'history' from --constant"
        ),
    ),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The option's value; Spark runs already."""
    if request.param == "spark":
        request.getfixturevalue("jvm")
    return str(request.param)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a log in the working directory."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_bad_log_is_a_sentence_with_every_engine(
    log: Path, engine: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Nothing is printed on stdout, nothing is written, and the exit code is that of invalid input."""
    write, (command, *options), sentence = CASES[name]
    write(log)
    code = run([command, "log", *options, "--session", "session", "--time", "time", "--engine", engine])
    out, err = capsys.readouterr()

    assert (code, out) == (INVALID_INPUT, "")
    assert re.fullmatch(rf"error: {sentence}\n", err), err
    assert not list(log.parent.glob("out/window-*"))


@pytest.mark.parametrize("again", ["log/a.parquet", "log", "log/../log/a.parquet"])
def test_a_file_that_is_named_twice_is_refused(log: Path, capsys: pytest.CaptureFixture[str], again: str) -> None:
    """Its rows would be there twice, and their lists repeat."""
    session_file(log / "a.parquet", [(1, 1, [1])])
    command = ["cluster-sessions", "log/a.parquet", again, "--session", "session", "--time", "time", "--window", "10"]
    code = run([*command, "--out", "out"])

    assert code == INVALID_INPUT
    assert "a.parquet: is named twice\nhint: name each file once" in capsys.readouterr().err
