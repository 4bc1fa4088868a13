"""Specification of ``neuroshard stats``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.table_files import read_table_set
from support.profiler.session_logs import session_file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return four samples of two sessions with one feature."""
    path = tmp_path / "clicks.npz"
    arrays: dict[str, Any] = {"item.values": [1, 2, 1, 2, 5, 5], "item.lengths": [2, 2, 1, 1], "visit": [0, 0, 1, 1]}
    np.savez(path, **arrays)
    return path


def test_a_sample_becomes_a_table_set(neuroshard: Any, data: Path) -> None:
    """The file that is written can be planned; the screen shows reuse and duplication."""
    out = data.with_name("tables.json")
    result = neuroshard("stats", data, "--embedding-dim", 16, "--session", "visit", "--out", out)
    (table,) = read_table_set(out).tables

    assert result.code == 0
    assert (table.name, table.num_embeddings, table.embedding_dim, table.pooling_factor) == ("item", 6, 16, 1.5)
    assert "4 samples, reuse in batches of 4, 2 samples per session" in result.out
    assert result.out.splitlines()[-1].split() == ["item", "Exact", "3", "6", "1.5", "2", "2"]


def test_statistics_of_a_log_need_no_torch(data: Path) -> None:
    """The extra `data` is a hundredth of the extra `profiler`; a machine that holds logs often has no GPU."""
    parquet, csv = data.with_suffix(".parquet"), data.with_suffix(".csv")
    pq.write_table(pa.table({"item": ["a", "b"]}), parquet)
    csv.write_text("item\na\nb\n", encoding="utf-8")
    code = (
        "import sys\n"
        "for name in ('torch', 'torchrec', 'matplotlib', 'fbgemm_gpu'): sys.modules[name] = None\n"
        "from neuroshard_cli.main import run\n"
        "for path in sys.argv[1:]: assert run(['stats', path, '--embedding-dim', '16', '--out', f'{path}.json']) == 0\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, parquet, csv, data], capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stderr
    for path in (parquet, csv, data):
        assert read_table_set(path.with_name(f"{path.name}.json")).tables[0].name == "item"


def test_the_table_set_is_printed_for_machines(neuroshard: Any, data: Path) -> None:
    """Stdout carries the document alone."""
    result = neuroshard("stats", data, "--embedding-dim", 16, "--feature", "item", "--json")

    assert json.loads(result.out)["tables"][0]["name"] == "item"


def test_a_malformed_file_is_a_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """The line is named, and the exit code is that of invalid input."""
    path = tmp_path / "day.tsv"
    path.write_text("1\t2\n", encoding="utf-8")
    result = neuroshard("stats", path, "--embedding-dim", 16)

    assert (result.code, result.out) == (2, "")
    assert "line 1: has 2 columns, expected 40" in result.err


def test_repeats_within_sessions_are_in_the_table_set(neuroshard: Any, tmp_path: Path) -> None:
    """Two sessions that interleave, of 4 samples with one history and of 4 with two: 3 lists of 8 samples."""
    path = session_file(
        tmp_path / "clicks.parquet", [(time % 2, time, [1, 2] if time % 2 or time < 4 else [3]) for time in range(8)]
    )
    out = tmp_path / "tables.json"
    options = ("--embedding-dim", 16, "--session", "session", "--time", "time", "--session-run", 0)
    result = neuroshard("stats", path, *options, "--out", out)
    tables = read_table_set(out)

    assert result.code == 0, result.err
    assert tables.session_run == 0
    assert [(each.name, each.duplication_group, each.duplication_factor) for each in tables.tables] == [
        ("history", "history", 8 / 3)
    ]
    assert "8 samples of 2 sessions, 4 per session, in whole sessions" in result.out
    assert result.out.splitlines()[-1].split() == ["history", "0.167", "2.67", "history", "2.67"]


def test_times_without_sessions_are_refused(neuroshard: Any, data: Path) -> None:
    """Time orders the samples of a session."""
    result = neuroshard("stats", data, "--embedding-dim", 16, "--time", "when")

    assert result.code == 2
    assert "--time: orders the samples of a session\nhint: give --session too" in result.err
    result = neuroshard("stats", data, "--embedding-dim", 16, "--session", "visit", "--time", "when")
    assert (result.code, "times are read from Parquet alone" in result.err) == (2, True)


def test_a_folder_is_one_sample(neuroshard: Any, tmp_path: Path) -> None:
    """Parts of one log, whose sessions span files, and whose history never changes in them."""
    log = tmp_path / "log"
    log.mkdir()
    for number in range(2):
        session_file(log / f"{number}.parquet", [(each, 2 * number + each, [each]) for each in range(2)])
    options = ("--embedding-dim", 16, "--session", "session", "--time", "time", "--constant", "history")
    result = neuroshard("stats", log, *options, "--session-run", 0, "--json")
    tables = json.loads(result.out)

    assert result.code == 0, result.err
    assert (tables["name"], tables["tables"][0]["duplication_factor"]) == ("log", 2.0)


def test_a_list_that_changes_although_declared_constant_is_invalid_input(neuroshard: Any, tmp_path: Path) -> None:
    """The option needs an order of samples; the change is named by row, session, and lists."""
    path = session_file(tmp_path / "log.parquet", [(1, 1, [1]), (1, 2, [2])])
    options = ("--embedding-dim", 16, "--session", "session", "--constant", "history")
    result = neuroshard("stats", path, *options)
    assert (result.code, "hint: give --session and --time too" in result.err) == (2, True)

    result = neuroshard("stats", path, *options, "--time", "time")
    assert (result.code, result.out) == (2, "")
    assert "row 1: 'history' changes in session 1 (found [2], and [1] in row 0)\nhint: correct the log" in result.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_columns_without_a_table_have_their_reason(neuroshard: Any, tmp_path: Path, options: tuple[str, ...]) -> None:
    """On stderr, next to the question whether a column of two values is the label; stdout is as without."""
    samples = [(time % 2, time, [1, 2]) for time in range(8)]
    path = session_file(tmp_path / "log.parquet", samples, clicked=[0, 1] * 4, city=["a"] * 8)
    options = ("--embedding-dim", "16", "--session", "session", *options)
    result = neuroshard("stats", path, *options)

    assert result.code == 0
    assert result.err.splitlines()[-2:] == [
        "passed over: session: the session",
        "clicked: 2 values; is it the label? --label clicked",
    ]
    result = neuroshard("stats", path, *options, "--label", "clicked", "--ignore", "time")
    assert result.err.splitlines()[-1] == ("passed over: time: ignored; clicked: the label; session: the session")
    assert "clicked" not in result.out
