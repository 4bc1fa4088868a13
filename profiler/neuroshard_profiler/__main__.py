"""``python -m neuroshard_profiler profile|collect-compute|collect-comm|fit|stats``: what a profiling pod runs.

Ends with the exit codes of the ``neuroshard`` command; a failure says one sentence on stderr.
"""

import sys
from collections.abc import Sequence

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.missing_package import missing_package


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        return _failed(missing_package(error, extra="profiler"), ExitCode.MISSING_PACKAGE)


def _run(arguments: list[str]) -> int:
    import typer
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_costs.errors import CostModelError
    from typer.exceptions import TyperException

    from neuroshard_profiler.commands import COMMANDS
    from neuroshard_profiler.errors import ProfilerError

    app = typer.Typer(name="neuroshard_profiler", rich_markup_mode=None, add_completion=False)
    for each in COMMANDS:
        app.command()(each)
    try:
        code = app(arguments or ["--help"], prog_name="python -m neuroshard_profiler", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", ExitCode.INTERRUPTED)
    except (CostModelError, ProfilerError) as error:
        return _failed(str(error), error.exit_code)
    except DocumentError as error:
        return _failed(str(error), ExitCode.INVALID_INPUT)
    except TyperException as error:
        return _failed(f"{error.format_message()} Try `--help`.", ExitCode.INVALID_INPUT)
    except OSError as error:
        return _failed(
            f"{error.filename or 'a file'}: {error.strerror}; hint: choose another place", ExitCode.INVALID_INPUT
        )
    return code if isinstance(code, int) else ExitCode.OK


def _failed(sentence: str, code: ExitCode) -> ExitCode:
    sys.stderr.write(f"error: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
