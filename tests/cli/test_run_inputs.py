"""What a stage of a run depends on."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_cli.local.inputs import data_files, digest, machine, samples_text, versions
from support import builders


def test_digests_tell_sequences_apart() -> None:
    """Moving a character from one part to the next is a change."""
    assert len({digest(["ab", "c"]), digest(["a", "bc"]), digest(["abc"])}) == 3


def test_data_files_are_named_with_size_and_time(tmp_path: Path) -> None:
    """A folder by the files in it, a pattern by what matches; whatever changes a file changes its line."""
    (tmp_path / "data").mkdir()
    for name in ("day_0", "day_1", "other"):
        (tmp_path / "data" / name).write_text(name, encoding="utf-8")

    lines = data_files(tmp_path, "data")
    (tmp_path / "data" / "day_1").write_text("longer than before", encoding="utf-8")

    assert [Path(line.split()[0]).name for line in lines] == ["day_0", "day_1", "other"]
    assert data_files(tmp_path, "data/day_*") == data_files(tmp_path, str(tmp_path / "data"))[:2]
    assert data_files(tmp_path, "data")[1] != lines[1]
    assert data_files(tmp_path, "nowhere*") == []


def test_machine_and_versions_are_the_same_in_the_next_moment() -> None:
    """Nothing in them changes by itself, or every stage would be repeated."""
    assert machine() == machine()
    assert versions() == versions()
    assert any(line.startswith("neuroshard-operator ") for line in versions())


@pytest.mark.parametrize(
    ("spec", "is_other"),
    [
        ({"data": {"deduplication": "Off"}}, False),
        ({"experimental": {"data": {"sessionRun": 8, "readerProcesses": 0}}}, False),
        ({"experimental": {"data": {"sessionRun": 4}}}, True),
        ({"data": {"shuffle": False}}, True),
    ],
)
def test_samples_are_others_where_a_setting_changes_them(spec: dict[str, Any], *, is_other: bool) -> None:
    """Not where repeats are left out; a field that a later release brought counts only where it is set."""
    usual = samples_text(builders.job().spec)

    assert "session" not in usual
    assert "constant" not in usual
    assert "missing" not in usual
    assert (samples_text(builders.job(**spec).spec) != usual) is is_other
