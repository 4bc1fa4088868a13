import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neuroshard_cluster.errors import UnknownError
from neuroshard_cluster.folders import SOURCES
from neuroshard_cluster.held import Row
from neuroshard_cluster.plugin import ROW, Table, cluster_of

CLUSTER_MAKEFILE = SOURCES / "cluster.mk"


def test_each_worker_has_its_own_cluster() -> None:
    """The process that hands out the tests has no worker, and looks at the first cluster."""
    assert [cluster_of(["a", "b"], workers=2, worker=worker) for worker in (0, 1)] == ["a", "b"]
    assert cluster_of(["a"], workers=0, worker=0) == "a"


def test_workers_never_share_a_cluster() -> None:
    """A test may break its cluster, so each worker needs one."""
    with pytest.raises(UnknownError, match=r"2 workers would share 1 clusters \(found --cluster a\)\nhint: "):
        cluster_of(["a"], workers=2, worker=0)


def test_the_table_has_the_rows_of_all_workers() -> None:
    """A report carries the row of its test; the reports of set-up and tear-down carry none."""
    table, rows = Table(rows=[]), [Row(test="a: b", sentence="It holds.", outcome="passed", seconds=1.0)]
    fields = {"test": "a: b", "sentence": "It holds.", "outcome": "passed", "seconds": 1.0, "reason": ""}
    reports: list[Any] = [SimpleNamespace(), SimpleNamespace(outcome="passed", **{ROW: fields})]

    for report in reports:
        table.pytest_runtest_logreport(report)

    assert table.rows == rows


FLAKY = """
import pytest

TRIES = []

@pytest.mark.parametrize("fails", [1, 2])
def test_it(fails: int) -> None:
    TRIES.append(fails)
    assert TRIES.count(fails) > fails, f"try {TRIES.count(fails)} of {fails}"
"""


@pytest.mark.slow
def test_a_failed_test_runs_once_more_and_its_first_failure_is_in_the_output(tmp_path: Path) -> None:
    """In a worker of pytest-xdist as without one; a test that fails twice fails."""
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    again = re.search(r"^AGAIN = (.*)$", CLUSTER_MAKEFILE.read_text(), re.MULTILINE)
    assert again is not None
    argv = [sys.executable, "-m", "pytest", "-p", "neuroshard_cluster.plugin", "-p", "no:cacheprovider", "--table"]
    argv += [*shlex.split(again[1]), f"--rootdir={tmp_path}", "--numprocesses=1", "test_flaky.py"]
    ran = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=False
    )

    output = ran.stdout
    assert ran.returncode == 1, output
    assert "1 failed, 1 passed, 2 rerun" in output
    assert "test_flaky.py::test_it[1] failed, and ran again" in output
    assert "E       AssertionError: try 1 of 1" in output
    assert "FAILED test_flaky.py::test_it[2] - AssertionError: try 2 of 2" in output
    assert "RERUN test_flaky.py::test_it[1]" in output
    assert [line.split("  ")[0] for line in output.splitlines() if line.endswith("  test_it[1]")] == [
        "failed, again",
        "holds",
    ]
