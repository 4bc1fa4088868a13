"""From an exception to an exit code and one sentence: errors that people can fix, and bugs with their traceback."""

import errno
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.hints import in_lines
from neuroshard_api.process.missing_package import NO_EXTRA, missing_package
from neuroshard_api.process.printable import printable

OPTIONAL_PACKAGES = {
    "torch": "pretrain",
    "matplotlib": "pretrain",
    "numpy": NO_EXTRA,
    "safetensors": NO_EXTRA,
    "jinja2": NO_EXTRA,
    "kubernetes": "client",
    "psutil": "run",
    "scipy": NO_EXTRA,
    "pyarrow": "profiler",
}
"""Packages that a command may lack, with the extra that installs each."""

PLACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""What is wrong with a disk or with permissions, and not with us."""


class CommandError(ExpectedError):
    """What the user can fix: wrong usage, an unwritable place. The message says what is wrong and what to try."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.INVALID_INPUT) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def run_command(run: Callable[[], ExitCode], *, extra: str, out: Path | None = None) -> ExitCode:
    """Run the command of a stage's process and return its exit code; errors are on stderr.

    Args:
        run: the command.
        extra: of this distribution, which brings the packages of the command, or `NO_EXTRA`.
        out: file or folder that the command writes, named in errors of files. If unset: the file of the error.
    """
    try:
        return run()
    except KeyboardInterrupt:
        return report_failure(interrupted())
    except Exception as error:  # noqa: BLE001 - the one place where every error ends
        return report_failure(error, extra=extra, out=out)


def interrupted() -> CommandError:
    """Return the error of a command that Ctrl-C ended."""
    return CommandError("interrupted", ExitCode.INTERRUPTED)


def report_failure(
    error: Exception, *, as_json: bool = False, extra: str | None = None, out: Path | None = None, apart: bool = False
) -> ExitCode:
    """Write the error to stderr, one sentence or one JSON object, and return the exit code it stands for.

    A bug of ours keeps its traceback, since the sentence alone would help no one to fix it.

    Args:
        error: what ended the command.
        as_json: whether the command was asked for JSON.
        extra: which brings the packages of the command. If unset: the one of the missing package.
        out: what the command writes. If unset: it checks its paths itself, and a path that does not exist is a bug.
        apart: whether each problem is a sentence of its own, for a person; a pod's last line has all of them.
    """
    expected = _expected_failure(error, extra, out)
    if expected is None:
        exit_code = ExitCode.INTERNAL_ERROR
        message = (
            f"this is a bug of neuroshard ({type(error).__name__}: {error}); "
            "please report it with the command, its input and the traceback"
        )
    else:
        exit_code, message = expected
    trace = "".join(traceback.format_exception(error)) if expected is None else None
    if as_json:
        answer: dict[str, str | int] = {"error": message, "exit_code": int(exit_code)}
        if trace:
            answer["traceback"] = trace
        sys.stderr.write(json.dumps(answer) + "\n")
    else:
        each = error.sentences() if apart and isinstance(error, ExpectedError) else [message]
        errors = "".join(f"error: {in_lines(sentence)}\n" for sentence in each)
        sys.stderr.write(f"{printable(trace or '')}{errors}")
    return exit_code


def _expected_failure(error: Exception, extra: str | None, out: Path | None) -> tuple[ExitCode, str] | None:
    """Return the exit code and the sentence of an error that people can fix. None: it is a bug of ours."""
    if isinstance(error, ExpectedError):
        return error.exit_code, str(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        brings = (
            None if package.startswith("neuroshard_") else OPTIONAL_PACKAGES.get(package) if extra is None else extra
        )
        return None if brings is None else (ExitCode.MISSING_PACKAGE, missing_package(error, extra=brings))
    if isinstance(error, OSError) and (error.errno in PLACE_ERRORS or (out and error.filename)):
        place = out or error.filename or "a file"
        return ExitCode.INVALID_INPUT, f"{place}: {error.strerror}; hint: choose another place"
    return None
