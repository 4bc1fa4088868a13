import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neuroshard_cluster import held
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.held import Row, disk_bytes, readable


def test_a_test_is_named_by_file_and_behavior() -> None:
    """A parameter stays recognizable, so that two rows of one test differ."""
    named = readable("tests/e2e/test_lifecycle.py::test_a_job_rests_in_any_stage[Running]")

    assert named == "lifecycle: a job rests in any stage [Running]"


def test_a_row_says_what_was_checked_and_why_it_was_skipped() -> None:
    """One line of Markdown, also for a reason of several lines."""
    row = Row(
        test="faults: a node joins", sentence="It takes pods.", outcome="skipped", seconds=0.04, reason="no\nnode"
    )

    assert row.cells == "| faults: a node joins | It takes pods. | skipped: no node | 0.0 |"
    assert row.line.split() == ["skipped", "0.0", "s", "It", "takes", "pods.", "(no", "node)"]


BLOCK = b"0" * 4096


def test_files_that_are_deleted_meanwhile_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine and a database delete files below the home folder all the time."""
    (tmp_path / "stays").write_bytes(BLOCK)
    (tmp_path / "goes").write_bytes(BLOCK)
    walk = os.walk

    def slow_walk(folder: Path) -> Any:
        for place, below, files in walk(folder):
            (tmp_path / "goes").unlink()
            yield place, below, files

    monkeypatch.setattr(os, "walk", slow_walk)

    assert disk_bytes(tmp_path) == (tmp_path / "stays").stat().st_blocks * 512


def test_what_is_mounted_below_a_folder_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine mounts each container's layers, whose files would count twice."""
    (tmp_path / "file").write_bytes(BLOCK)
    mounted = tmp_path / "merged"
    mounted.mkdir()
    (mounted / "file").write_bytes(BLOCK)
    lstat = Path.lstat

    def lstat_of_mounts(path: Path) -> Any:
        found = lstat(path)
        if path == mounted:
            return SimpleNamespace(st_dev=found.st_dev + 1)
        return found

    monkeypatch.setattr(Path, "lstat", lstat_of_mounts)

    assert disk_bytes(tmp_path) == (tmp_path / "file").stat().st_blocks * 512


def test_hard_links_count_once(tmp_path: Path) -> None:
    """Nodes of a local cluster get their images as links."""
    (tmp_path / "file").write_bytes(BLOCK)
    (tmp_path / "link").hardlink_to(tmp_path / "file")

    assert disk_bytes(tmp_path) == (tmp_path / "file").stat().st_blocks * 512


def test_the_rows_are_reported_of_a_cluster_that_does_not_answer_any_more(tmp_path: Path) -> None:
    """Minutes of tests are not lost with the API server that they ran on."""

    def refuse(kind: str) -> list[Any]:
        raise CommandError(f"cannot list {kind}: connection refused\nsecond line")

    cluster: Any = SimpleNamespace(kubectl=SimpleNamespace(list=refuse))
    row = Row(test="faults: a node joins", sentence="It takes pods.", outcome="passed", seconds=1.0)

    text = held.report(cluster, Home(root=tmp_path), [row], title="t", command="c", seconds=2.0)

    assert "Cluster: its nodes cannot be asked, cannot list nodes: connection refused." in text
    assert row.cells in text
