"""A command run in this process, with its exit code and both streams."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from neuroshard_cli.main import run


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
