"""The ``neuroshard`` command: runs one command and turns every error into a sentence and an exit code."""

import gc
import itertools
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError, interrupted, report_failure
from typer.exceptions import TyperException

from neuroshard_cli.command_list import ENTRIES, CommandGroup
from neuroshard_cli.shared.earlier_options import no_such_option
from neuroshard_cli.shared.output import ReaderGoneError

ALLOCATED_BEFORE_COLLECTION = 200_000
"""Objects: more than a small plan makes. With Python's own 700 a tenth of the time of all imports is collection:
modules and models are many objects that stay."""

# Help as plain text: it appears in a tenth of a second, and greps.
app = typer.Typer(name="neuroshard", rich_markup_mode=None, cls=CommandGroup)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"neuroshard {version('neuroshard-operator')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan the sharding of embedding tables, and train recommendation models under the plan."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are on stderr."""
    as_json = "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)
    try:
        code = app(list(arguments) or ["--help"], prog_name="neuroshard", standalone_mode=False)
    except ReaderGoneError:
        return ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except TyperException as error:
        return report_failure(CommandError(_typing_error(error)), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the one place where every error ends
        entry = ENTRIES.get(arguments[0]) if arguments else None
        return report_failure(error, as_json=as_json, extra=(entry and entry.extra) or None, apart=True)
    if code == ExitCode.INTERRUPTED:
        return report_failure(interrupted(), as_json=as_json)
    return code if isinstance(code, int) else ExitCode.OK


def _typing_error(error: TyperException) -> str:
    """Return the sentence for words that no command takes."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)  # typer's classes are private
    if context is None:
        return error.format_message()
    if option is not None and hasattr(error, "possibilities"):
        known = [name for each in context.command.get_params(context) for name in each.opts if name[:2] == "--"]
        return no_such_option(context.command_path, option, known)
    message, parameter = error.format_message(), getattr(error, "param", None)
    if parameter is not None:
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
        message = f"{name}: {error.message.removeprefix('Value error, ') or 'is missing'}"
    return f"{message.rstrip('.')}; hint: `{context.command_path} --help` has what it takes"


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(ALLOCATED_BEFORE_COLLECTION)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    code = run(sys.argv[1:])
    gc.freeze()  # the interpreter's last collection walks through every object: a tenth of a short command
    sys.exit(code)
