"""The command of a stage's process: its exit code, and after a failure one sentence on stderr."""

import sys
from collections.abc import Callable
from pathlib import Path

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.missing_package import missing_package


def run_command(run: Callable[[], ExitCode], *, extra: str, out: Path | None = None) -> ExitCode:
    """Run a command and return its exit code.

    Args:
        run: the command. An ExpectedError ends it with its exit code; other errors pass, except those of files and of
            missing packages.
        extra: of this distribution, which brings the packages of the command.
        out: file or folder that the command writes, named in errors of files. If unset: the file of the error.
    """
    try:
        return run()
    except ModuleNotFoundError as error:
        return fail(missing_package(error, extra=extra), ExitCode.MISSING_PACKAGE)
    except OSError as error:
        place = out or error.filename or "a file"
        return fail(f"{place}: {error.strerror}; hint: choose another place", ExitCode.INVALID_INPUT)
    except ExpectedError as error:
        return fail(str(error), error.exit_code)


def fail(sentence: str, code: ExitCode) -> ExitCode:
    """Print an error and return the exit code."""
    sys.stderr.write(f"error: {sentence}\n")
    return code
