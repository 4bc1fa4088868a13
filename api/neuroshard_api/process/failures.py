"""From an exception to an exit code and one sentence: errors that people can fix, and bugs with their traceback."""

import errno
import json
import sys
import traceback

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.hints import in_lines
from neuroshard_api.process.missing_package import missing_package

OPTIONAL_PACKAGES = {
    "torch": "pretrain",
    "matplotlib": "pretrain",
    "numpy": "planner",
    "safetensors": "planner",
    "jinja2": "planner",
    "kubernetes": "client",
    "psutil": "run",
    "scipy": "planner",
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


def report_failure(error: Exception, *, as_json: bool) -> ExitCode:
    """Write the error to stderr, one sentence or one JSON object, and return the exit code it stands for.

    A bug of ours keeps its traceback, since the sentence alone would help no one to fix it.
    """
    expected = expected_failure(error)
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
        sys.stderr.write(f"{trace or ''}error: {in_lines(message)}\n")
    return exit_code


def expected_failure(error: Exception) -> tuple[ExitCode, str] | None:
    """Return the exit code and the sentence of an error that people can fix. None: it is a bug of ours."""
    if isinstance(error, ExpectedError):
        return error.exit_code, str(error)
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error)
    if isinstance(error, OSError) and error.errno in PLACE_ERRORS:
        return ExitCode.INVALID_INPUT, f"{error.filename or 'a file'}: {error.strerror}; hint: choose another place"
    return None


def _missing_package(error: ModuleNotFoundError) -> tuple[ExitCode, str] | None:
    package = (error.name or "").partition(".")[0]
    if package not in OPTIONAL_PACKAGES:
        return None
    return ExitCode.MISSING_PACKAGE, missing_package(error, extra=OPTIONAL_PACKAGES[package])
