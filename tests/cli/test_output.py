import os
from pathlib import Path

import pytest
from neuroshard_api.process.failures import CommandError
from neuroshard_cli.shared.output import ReaderGoneError, ResultFile, deliver, write_file


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


def test_each_part_of_a_result_is_delivered_whatever_becomes_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader of stdout that leaves early, as `head` does, or a full disk takes no other part along."""
    shown = []

    def leave() -> None:
        raise ReaderGoneError

    unwritable = ResultFile("report", tmp_path / "missing" / "report.html", lambda: "page")
    plan = ResultFile("plan", tmp_path / "plan.json", lambda: "plan")
    with pytest.raises(ReaderGoneError):
        deliver(leave, unwritable, plan, ResultFile("plot", None, lambda: "plot"), says=True)
    with pytest.raises(CommandError, match=r"report\.html: the folder .* does not exist"):
        deliver(lambda: shown.append("summary"), unwritable, plan, says=False)

    assert shown == ["summary"]
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]
    assert capsys.readouterr().err == f"plan written to {tmp_path / 'plan.json'}\n"
