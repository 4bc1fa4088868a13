"""The exit code and the error of a stage's command."""

from pathlib import Path

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import run_command
from neuroshard_api.process.missing_package import NO_EXTRA

INSTALL = "pip install . in a checkout of the repository"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (DocumentError("x.json", ["is empty"]), ExitCode.INVALID_INPUT, "x.json: is empty"),
        (
            ModuleNotFoundError("no numpy", name="numpy.core"),
            ExitCode.MISSING_PACKAGE,
            f"this command needs the package numpy, which is not installed; hint: {INSTALL}",
        ),
        (
            PermissionError(13, "Permission denied", "x.json"),
            ExitCode.INVALID_INPUT,
            "x.json: Permission denied; hint: choose another place",
        ),
    ],
    ids=["a document", "a package", "a file"],
)
def test_a_failure_is_an_exit_code_and_a_sentence(
    capsys: pytest.CaptureFixture[str], error: Exception, code: ExitCode, sentence: str
) -> None:
    """An error that has an exit code ends the command with it; so do missing packages and files. Hints have a line."""

    def fails() -> ExitCode:
        raise error

    assert run_command(fails, extra=NO_EXTRA) == code
    assert capsys.readouterr().err == f"error: {sentence}\n".replace("; hint", "\nhint")


def test_the_output_of_a_command_is_named_in_errors_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is written under another name first has an error with that name, which people do not know."""

    def fails() -> ExitCode:
        raise FileNotFoundError(2, "No such file or directory", ".plan.json.part")

    run_command(fails, extra=NO_EXTRA, out=Path("plan.json"))

    assert capsys.readouterr().err.startswith("error: plan.json: No such file or directory")


def test_ctrl_c_ends_the_command_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither a bug nor wrong input."""

    def interrupted() -> ExitCode:
        raise KeyboardInterrupt

    assert run_command(interrupted, extra=NO_EXTRA) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    "bug",
    [
        KeyError("a"),
        ModuleNotFoundError("no module", name="neuroshard_planner.gone"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
    ids=["a lookup", "a module of ours", "a connection"],
)
def test_an_error_without_an_exit_code_is_a_bug(capsys: pytest.CaptureFixture[str], bug: Exception) -> None:
    """Its traceback is needed; the last line of the log, which a job's condition shows, asks to report it."""

    def fails() -> ExitCode:
        raise bug

    assert run_command(fails, extra=NO_EXTRA, out=Path("plan.json")) == ExitCode.INTERNAL_ERROR
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith(f"error: this is a bug of neuroshard ({type(bug).__name__}")
