"""How many processors a process may use."""

import os
from pathlib import Path

import pytest
from neuroshard_api.process.processors import usable_processors


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "of a later kernel\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
    ids=["no file", "no limit", "two and a half", "half", "more than there are", "unknown", "version 1", "1, no limit"],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    """A pod may run on all processors of its node, and is stopped once it has used its limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert usable_processors(tmp_path) == expected
