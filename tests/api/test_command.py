"""The exit code and the error of a stage's command."""

from pathlib import Path

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.command import run_command
from neuroshard_api.process.exit_codes import ExitCode

INSTALL = "pip install '.[planner]' in a checkout of the repository"


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
    """An error that has an exit code ends the command with it; so do missing packages and files."""

    def fails() -> ExitCode:
        raise error

    assert run_command(fails, extra="planner") == code
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_the_output_of_a_command_is_named_in_errors_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is written under another name first has an error with that name, which people do not know."""

    def fails() -> ExitCode:
        raise FileNotFoundError(2, "No such file or directory", ".plan.json.part")

    run_command(fails, extra="planner", out=Path("plan.json"))

    assert capsys.readouterr().err.startswith("error: plan.json: No such file or directory")


def test_an_error_without_an_exit_code_passes() -> None:
    """It is a bug, and its traceback is needed."""

    def fails() -> ExitCode:
        raise KeyError("a")

    with pytest.raises(KeyError):
        run_command(fails, extra="planner")
