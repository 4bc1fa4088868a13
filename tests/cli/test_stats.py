"""Specification of ``neuroshard stats``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.table_files import read_table_set


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
    assert result.out.splitlines()[-1].split() == ["item", "6", "1.5", "2", "2"]


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
