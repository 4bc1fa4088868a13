"""``python -m neuroshard_profiler profile|collect-compute|collect-comm|fit|stats``: what a profiling pod runs.

Ends with the exit codes of the ``neuroshard`` command; a failure says one sentence on stderr.
"""

import sys
from collections.abc import Sequence

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError, interrupted, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _run(given), extra="profiler")


def _run(arguments: list[str]) -> ExitCode:
    import typer
    from typer.exceptions import TyperException

    from neuroshard_profiler.commands import COMMANDS

    app = typer.Typer(name="neuroshard_profiler", rich_markup_mode=None, add_completion=False)
    for each in COMMANDS:
        app.command()(each)
    try:
        code = app(arguments or ["--help"], prog_name="python -m neuroshard_profiler", standalone_mode=False)
    except typer.Abort:
        raise interrupted() from None
    except TyperException as error:
        raise CommandError(f"{error.format_message()} Try `--help`.") from error
    return ExitCode(code) if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
