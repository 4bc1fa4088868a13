"""``neuroshard submit``: a job file into a cluster."""

from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.cluster.jobs_client import ContextOption, NamespaceOption, jobs_client
from neuroshard_cli.commands.status import watch_job
from neuroshard_cli.shared.output import print_document


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DLRMTrainingJob in YAML or JSON.")],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Tell each change until the job has ended.")] = False,
) -> None:
    """Check a job file here, and create the job in the cluster."""
    from neuroshard_api.documents.document import read_data
    from neuroshard_api.job.training_job import DLRMTrainingJob

    raw = read_data(file)
    job = DLRMTrainingJob.from_data(raw, where=str(file))
    assert isinstance(raw, dict), "from_data has checked it"
    named = job.metadata.namespace
    if named and namespace and named != namespace:
        raise CommandError(f"{file}: metadata.namespace: is {named!r}, and --namespace {namespace!r}; hint: remove one")
    with jobs_client(context, namespace or named) as jobs:
        # The file's own words, not ours: what it leaves out gets the cluster's defaults.
        jobs.create(raw)
        print_document(f"{job.metadata.name} created in namespace {jobs.namespace}\n")
        if watch:
            raise typer.Exit(watch_job(jobs, job.metadata.name))
