"""``neuroshard status``: where a job in a cluster is, and what it costs."""

import json as json_format
import time
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_cli.cluster.jobs_client import ContextOption, JobsClient, NamespaceOption, jobs_client, parsed
from neuroshard_cli.shared.output import print_document, print_text

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob

LOOK_EVERY_S = 2.0


def status(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a DLRMTrainingJob.")],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Tell each change until the job has ended.")] = False,
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
    plan = job.status.plan if job.status else None
    drift = jobs.drift(job.metadata.name)
    if (
        plan is not None
        and drift is not None
        and drift.headline is not None
        and plan.hash == f"sha256:{drift.plan_sha256}"
    ):
        print_document(f"drift: {drift.headline}\n")


def watch_job(jobs: JobsClient, name: str) -> ExitCode:
    """Print a line whenever a job's stage or reason changes, and the whole at its end; tell whether it succeeded."""
    from neuroshard_api.job.status import Stage
    from neuroshard_report.terminal.job import render_headline, render_job

    told = ""
    while True:
        job = parsed(jobs.read(name))
        headline = render_headline(job)
        if headline != told:
            print_document(f"{time.strftime('%H:%M:%S')} {headline}\n")
            told = headline
        stage = job.status.stage if job.status else None
        if stage in (Stage.SUCCEEDED, Stage.FAILED):
            print_text(render_job(job))
            return ExitCode.OK if stage is Stage.SUCCEEDED else ExitCode.JOB_FAILED
        time.sleep(LOOK_EVERY_S)
