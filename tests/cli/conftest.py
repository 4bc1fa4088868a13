"""A command run in this process, with its exit code and both streams."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from neuroshard_cli.main import run
from support.cli.local_runs import Runs
from support.cli.stages import PLACE, CalledStages


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def neuroshard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs ``neuroshard`` with these arguments, as in a pipe."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(code=code, out=out, err=err)

    return call


@pytest.fixture
def process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neuroshard: Command) -> Runs:
    """Runs in a folder of their own, with a process for each stage."""
    monkeypatch.chdir(tmp_path)
    return Runs(tmp_path, neuroshard)


@pytest.fixture
def runs(process_runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs in a folder of their own, which call planner and profiler in this process."""
    monkeypatch.setattr(PLACE, CalledStages())
    return process_runs
