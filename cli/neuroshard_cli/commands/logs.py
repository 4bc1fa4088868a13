"""``neuroshard logs``: what the pods of a job's stage printed."""

import codecs
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say

from neuroshard_cli.cluster.jobs_client import NamespaceOption, jobs_client, parsed
from neuroshard_cli.shared.output import print_document

if TYPE_CHECKING:
    from neuroshard_api.job.status import StageStatus
    from neuroshard_api.job.training_job import DLRMTrainingJob

StageChoice = Literal["profiling", "planning", "running"]


def logs(
    *,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a DLRMTrainingJob.")],
    stage: Annotated[
        StageChoice | None, typer.Option(help="The stage; the last that was started if not given.")
    ] = None,
    worker: Annotated[int | None, typer.Option(min=0, help="One worker by its index; all if not given.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it is written; of several workers the first.")
    ] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Print the logs of the pods of a job's stage."""
    with jobs_client(namespace) as jobs:
        started = {each.name.value.lower(): each.job_name for each in _stages(parsed(jobs.read(job))) if each.job_name}
        if not started or (stage and stage not in started):
            known = f"; there are logs of {', '.join(started)}" if started else ""
            where = f"in stage {stage}" if stage else "yet"
            raise CommandError(f"{job}: no pod has run {where}{known}; hint: see `neuroshard status {job}`")
        wanted = stage or list(started)[-1]
        batch_job = started[wanted]
        assert batch_job, "those without were left out"
        pods = [pod for pod in jobs.pods(batch_job) if worker in (None, pod.index)]
        if not pods:
            raise CommandError(
                f"{batch_job}: the pod has been deleted"
                "; hint: set runPolicy.cleanPodPolicy of the next job to keep its pods"
            )
        for pod in pods[:1] if follow else pods:
            if len(pods) > 1:
                say(f"--- {pod.pod}")
            reader = codecs.getincrementaldecoder("utf-8")(errors="replace")
            for chunk in jobs.log(pod, follow=follow):
                print_document(reader.decode(chunk))


def _stages(job: "DLRMTrainingJob") -> "tuple[StageStatus, ...]":
    return job.status.stages if job.status else ()
