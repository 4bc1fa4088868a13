import os
from pathlib import Path

import pytest
from neuroshard_api.process.failures import CommandError
from neuroshard_cli.shared.output import write_file


@pytest.mark.parametrize(("place", "reason"), [("missing/plan.json", "does not exist"), (".", "is a directory")])
def test_an_impossible_place_is_a_sentence(tmp_path: Path, place: str, reason: str) -> None:
    """The path is named, and what is wrong with it."""
    with pytest.raises(CommandError, match=reason):
        write_file(tmp_path / place, "text")


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is named, and what stopped the writing."""

    def no_space(descriptor: int) -> None:
        raise OSError(28, f"No space left on device ({descriptor})")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CommandError, match=r"plan\.json: cannot be written: No space left"):
        write_file(tmp_path / "plan.json", "new")
