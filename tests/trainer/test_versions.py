"""Specification of the start of a trainer whose libraries do not belong together."""

import sys
from importlib import metadata
from pathlib import Path

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.__main__ import main
from neuroshard_trainer.compare import plans
from neuroshard_trainer.errors import require_torchrec

PINNED = {"torch": "2.14.1", "fbgemm-gpu": "1.9.0", "torchrec": "1.9.2"}


@pytest.mark.parametrize(
    "start",
    [
        lambda: main(["job.yaml", "--plan", "plan.json", "--run-dir", "run"]),
        lambda: plans.main(["job.yaml", "--plans", "a.json", "b.json", "--out", "out.json"]),
    ],
    ids=["training", "comparing"],
)
def test_an_old_torchrec_is_named_before_anything_is_read(
    start: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With TorchRec 1.6 the trainer ended in an AttributeError; there is no job file here, which nobody gets to see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "version", {**PINNED, "torchrec": "1.6.1"}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["trainer"])

    code = start()  # type: ignore[operator] # a function

    assert code == ExitCode.MISSING_PACKAGE
    assert "error: rank 0: torchrec 1.6.1 is installed, the trainer needs 1.9 or newer" in capsys.readouterr().err


def test_mixed_releases_are_a_warning_of_one_process_per_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may work: people build their own."""
    mixed = {**PINNED, "torch": "2.11.0"}
    require_torchrec(mixed.get)
    monkeypatch.setenv("LOCAL_RANK", "1")
    require_torchrec(mixed.get)
    require_torchrec(PINNED.get)

    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: torch 2.11.0, fbgemm-gpu 1.9.0 and torchrec 1.9.2 are not of one release")
