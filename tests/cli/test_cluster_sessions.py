"""Specification of ``neuroshard cluster-sessions``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.profiler.session_logs import rows_of, session_file


def test_a_log_is_clustered_and_reported(neuroshard: Any, tmp_path: Path) -> None:
    """Stdout has samples, sessions, and sizes; the report is in the folder."""
    path = session_file(tmp_path / "clicks.parquet", [(time % 3, time, [time % 3]) for time in range(12)])
    options = ("--session", "session", "--time", "time", "--window", "100", "--out", tmp_path / "out")
    shown = neuroshard("cluster-sessions", path, *options)

    assert shown.code == 0, shown.err
    assert "12 samples in 1 files, 4 samples per session and window" in shown.out
    assert "window 1 of 1: 12 samples of 3 sessions" in shown.err
    assert json.loads((tmp_path / "out" / "clustering.json").read_text())["schema_version"] == "session-clustering/v1"
    assert rows_of(path) == rows_of(tmp_path / "out" / "window-000000.parquet")


def test_a_missing_column_is_a_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """The exit code is that of invalid input, and nothing is written."""
    path = session_file(tmp_path / "clicks.parquet", [(1, 1, [1])])
    result = neuroshard("cluster-sessions", path, "--session", "visit", "--time", "time", "--out", tmp_path / "out")

    assert (result.code, result.out) == (2, "")
    assert "column 'visit': is missing\nhint: give --session one of session, time, history" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_ends_with_the_same_bytes(neuroshard: Any, tmp_path: Path) -> None:
    """SIGKILL as soon as a file appears: the report of the begin, an unfinished window, and a finished one."""
    samples = [(time % 97, time, [time % 97 * 20 + place for place in range(20)]) for time in range(20_000)]
    log = session_file(tmp_path / "log.parquet", samples)
    options = [str(log), "--session", "session", "--time", "time", "--window", "5000"]
    assert neuroshard("cluster-sessions", *options, "--out", str(tmp_path / "whole")).code == 0
    out = tmp_path / "killed"
    program = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "cluster-sessions", *options]

    for file in (
        "clustering.json",
        "window-000000.parquet.unfinished",
        "window-000000.parquet",
        "window-000002.parquet.unfinished",
    ):
        process = subprocess.Popen([*program, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (out / file).exists():
            os.sched_yield()
        process.kill()
        process.wait()
    assert neuroshard("cluster-sessions", *options, "--out", str(out)).code == 0

    windows = sorted(path.name for path in (tmp_path / "whole").glob("window-*.parquet"))
    assert len(windows) == 4
    assert [(out / name).read_bytes() for name in windows] == [
        (tmp_path / "whole" / name).read_bytes() for name in windows
    ]
    assert sorted(path.name for path in out.iterdir()) == ["clustering.json", *windows]
