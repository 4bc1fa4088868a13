"""The ``neuroshard`` command: registers the commands and turns every error into a sentence and an exit code."""

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from neuroshard_api.exit_codes import ExitCode
from neuroshard_profiler.commands import profile
from neuroshard_profiler.sessions.commands import cluster_sessions
from typer.exceptions import TyperException

from neuroshard_cli.calibrate import calibrate
from neuroshard_cli.calibrate_steps import calibrate_steps
from neuroshard_cli.compare import compare
from neuroshard_cli.compare_training import compare_training
from neuroshard_cli.devices import devices
from neuroshard_cli.explain import explain
from neuroshard_cli.export import export
from neuroshard_cli.failures import CommandError, report_failure
from neuroshard_cli.logs import logs
from neuroshard_cli.output import ReaderGoneError
from neuroshard_cli.plan import plan
from neuroshard_cli.pretrain import pretrain
from neuroshard_cli.publish import publish
from neuroshard_cli.report import report
from neuroshard_cli.run import run as run_job
from neuroshard_cli.score import score
from neuroshard_cli.stats import stats
from neuroshard_cli.status import status
from neuroshard_cli.submit import submit
from neuroshard_cli.validate import validate
from neuroshard_cli.workloads import workloads

COMMANDS = (
    run_job,
    plan,
    compare,
    score,
    compare_training,
    explain,
    report,
    validate,
    export,
    stats,
    cluster_sessions,
    profile,
    pretrain,
    calibrate,
    calibrate_steps,
    workloads,
    devices,
    submit,
    status,
    logs,
    publish,
)
"""In the order in which help lists them."""

# Help as plain text: it appears in a tenth of a second, and greps.
app = typer.Typer(name="neuroshard", rich_markup_mode=None)
for each in COMMANDS:
    app.command("run" if each is run_job else None)(each)


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
    """Plan, compare and explain the sharding of embedding tables."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
    as_json = "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)
    try:
        code = app(list(arguments) or ["--help"], prog_name="neuroshard", standalone_mode=False)
    except ReaderGoneError:
        return ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except TyperException as error:
        return report_failure(CommandError(f"{error.format_message()} Try `--help`."), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the one place where every error ends
        return report_failure(error, as_json=as_json)
    if code == ExitCode.INTERRUPTED:
        return report_failure(CommandError("interrupted", ExitCode.INTERRUPTED), as_json=as_json)
    return code if isinstance(code, int) else ExitCode.OK


def main() -> None:
    """Entry point of the console script."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))
