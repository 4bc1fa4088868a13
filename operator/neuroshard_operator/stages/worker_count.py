"""The worker pods of the present attempt, counted for `status.workers`. Decides nothing."""

from neuroshard_api.job_status import Workers

from neuroshard_operator import names
from neuroshard_operator.view import View


def worker_count(view: View) -> Workers:
    """Return how many pods of the present attempt there are, by what they do; while suspended none is wanted."""
    job = view.job_named(names.worker_job(view.name, view.attempt))
    pods = view.pods_of(job) if job else []
    return Workers(
        desired=0 if view.spec.suspend else view.spec.trainer.num_nodes,
        active=sum(pod.phase == "Running" and not pod.ended_well for pod in pods),
        ready=sum(pod.ready for pod in pods),
        succeeded=sum(pod.ended_well for pod in pods),
        failed=sum(pod.phase == "Failed" for pod in pods),
        selector=f"{names.JOB_LABEL}={view.name},{names.ROLE_LABEL}={names.WORKER}",
    )
