"""``neuroshard submit``: a job file into a cluster."""

from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.cluster.jobs_client import NamespaceOption, jobs_client
from neuroshard_cli.shared.output import print_document


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DLRMTrainingJob in YAML or JSON.")],
    namespace: NamespaceOption = None,
) -> None:
    """Check a job file here, and create the job in the cluster.

    ConfigMaps of the file are created with it.
    """
    from neuroshard_api.job.job_file import read_job_file
    from neuroshard_api.job.model import ONLY_LOCAL_FILE

    found = read_job_file(file)
    job, source = found.job, found.job.spec.model.embedding_tables_from
    if source is not None and source.file is not None:
        raise CommandError(f"{file}: spec.model.embeddingTablesFrom: {ONLY_LOCAL_FILE}")
    if found.has_tables:
        found.tables()  # whose problems are reported before the cluster is asked
    named = job.metadata.namespace
    if named and namespace and named != namespace:
        raise CommandError(f"{file}: metadata.namespace: is {named!r}, and --namespace {namespace!r}; hint: remove one")
    with jobs_client(namespace or named) as jobs:
        # The file's own words, not ours: what it leaves out gets the cluster's defaults.
        jobs.create(found.document, is_trial=True)
        for name, config_map in found.config_maps.items():
            jobs.create_config_map(config_map)
            print_document(f"ConfigMap {name} created in namespace {jobs.namespace}\n")
        jobs.create(found.document)
        print_document(f"{job.metadata.name} created in namespace {jobs.namespace}\n")
