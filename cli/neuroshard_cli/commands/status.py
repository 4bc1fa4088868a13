"""``neuroshard status``: where a job in a cluster is, and what it costs."""

import contextlib
import json as json_format
import time
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_cli.cluster.jobs_client import ContextOption, JobsClient, NamespaceOption, jobs_client, parsed
from neuroshard_cli.shared.output import print_document, print_text, progress_console

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob

LOOK_EVERY_S = 2.0


def status(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a DLRMTrainingJob.")],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Follow the job until it has ended: in place on a terminal, else line by line."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the job's status as JSON; errors are JSON too.")] = False,
) -> None:
    """Show a job's stages, costs, and last failure."""
    from neuroshard_report.terminal.job import render_job

    with jobs_client(context, namespace) as jobs:
        if watch:
            raise typer.Exit(watch_job(jobs, job))
        raw = jobs.read(job)
        if json:
            print_document(json_format.dumps(raw.get("status", {}), indent=1) + "\n")
            return
        print_text(render_job(found := parsed(raw)))
        _print_drift(jobs, found)


def _print_drift(jobs: JobsClient, job: "DLRMTrainingJob") -> None:
    """Print the slow-down that lasts, in one line, as the workers reported it under the job's plan."""
    line = _drift_line(jobs, job)
    if line is not None:
        print_document(f"{line}\n")


def _drift_line(jobs: JobsClient, job: "DLRMTrainingJob") -> str | None:
    plan = job.status.plan if job.status else None
    drift = jobs.drift(job.metadata.name)
    if plan is None or drift is None or drift.headline is None or plan.hash != f"sha256:{drift.plan_sha256}":
        return None
    return f"drift: {drift.headline}"


def watch_job(jobs: JobsClient, name: str) -> ExitCode:
    """Show a job until it has ended, then the whole; tell whether it succeeded.

    On a terminal all of it is shown in place; elsewhere a line is printed whenever its stage or reason changes.
    """
    from neuroshard_api.job.status import Stage
    from neuroshard_report.terminal.job import render_headline, render_job
    from rich.console import Group
    from rich.live import Live

    told = ""
    console = progress_console()
    live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
    with live if console.is_terminal else contextlib.nullcontext():
        while True:
            job = parsed(jobs.read(name))
            headline = render_headline(job)
            stage = job.status.stage if job.status else None
            has_ended = stage in (Stage.SUCCEEDED, Stage.FAILED)
            if console.is_terminal:
                drift = _drift_line(jobs, job)
                live.update(Group(render_job(job), *([drift] if drift else [])), refresh=True)
            elif headline != told:
                print_document(f"{time.strftime('%H:%M:%S')} {headline}\n")
                told = headline
            if has_ended:
                break
            time.sleep(LOOK_EVERY_S)
    print_text(render_job(job))
    return ExitCode.OK if stage is Stage.SUCCEEDED else ExitCode.JOB_FAILED
