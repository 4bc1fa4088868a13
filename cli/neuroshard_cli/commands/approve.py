"""``neuroshard approve``: the user's word for a plan, to a run on this machine or to a job in a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say

from neuroshard_cli.cluster.jobs_client import NamespaceOption, jobs_client, names_job, parsed

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob

    from neuroshard_cli.local.directory import RunDirectory


def approve(
    target: Annotated[
        str, typer.Argument(metavar="RUN_DIR|JOB", help="Folder of a run, or name of a DLRMTrainingJob in a cluster.")
    ],
    namespace: NamespaceOption = None,
) -> None:
    """Approve the plan that a job, or a run on this machine, waits with or suggests.

    With launchPolicy Manual training waits for it. A plan that was suggested for inputs that have changed takes the
    place of the one in force. A run need not be under way: the next command that resumes it takes the plan.
    """
    from neuroshard_cli.local.directory import RunDirectory

    directory = RunDirectory(Path(target))
    if names_job(target, namespace=namespace):
        plan = _approved_in_cluster(target, namespace=namespace)
    else:
        plan = _approved_here(directory)
    say(f"plan {plan} is approved")


def _approved_here(directory: "RunDirectory") -> str:
    from neuroshard_api.job.job_file import read_job_file
    from neuroshard_api.replanning.record import suggested_plan
    from neuroshard_decisions import names

    from neuroshard_cli.local.directory import file_digest
    from neuroshard_cli.shared.output import write_file

    if not directory.job_file.exists():
        raise CommandError(f"{directory.path}: is not the folder of a run; hint: give its --run-dir, or a job's name")
    job, digest = read_job_file(directory.job_file).job, file_digest(directory.plan_file)
    in_force = None if digest is None else names.plan(job.metadata.name, digest)
    record = directory.recorded_status()[0].replanning
    candidate = None if record is None else suggested_plan(record)
    plan = _waiting(job, in_force, candidate, where=str(directory.path))
    write_file(directory.approved_file, f"{plan}\n")
    return plan


def _approved_in_cluster(name: str, *, namespace: str | None) -> str:
    from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
    from neuroshard_api.replanning.record import suggested_plan

    with jobs_client(namespace) as jobs:
        job = parsed(jobs.read(name))
        status = job.status
        reference = None if status is None or status.plan is None else status.plan.config_map_ref
        candidate = None if status is None or status.replanning is None else suggested_plan(status.replanning)
        in_force = None if reference is None else reference.name
        plan = _waiting(job, in_force, candidate, where=f"{name} in namespace {jobs.namespace}")
        jobs.annotate(name, APPROVED_PLAN_ANNOTATION, plan)
    return plan


def _waiting(job: "DLRMTrainingJob", in_force: str | None, candidate: str | None, *, where: str) -> str:
    """Return the name of the plan that waits for approval. Raises CommandError where none does."""
    from neuroshard_api.job.spec import LaunchPolicy

    if candidate is not None:
        return candidate
    if job.spec.launch_policy is not LaunchPolicy.MANUAL:
        raise CommandError(
            f"{where}: no plan waits for approval; hint: spec.launchPolicy Manual has the first plan wait, and "
            "spec.replanning.mode Suggest the further ones"
        )
    if in_force is None:
        raise CommandError(f"{where}: has no plan yet; hint: wait until it is planned")
    return in_force
