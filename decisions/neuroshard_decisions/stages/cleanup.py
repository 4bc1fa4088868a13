"""After the end: clean-up by `spec.runPolicy` and nothing else. A job that has ended never starts anything again."""

from dataclasses import dataclass
from datetime import timedelta

from neuroshard_api.job.policies import CleanPodPolicy
from neuroshard_api.job.training_job import KIND

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Delete
from neuroshard_decisions.context import ENDS_WITHIN, Context, earliest, seconds_until
from neuroshard_decisions.observed.objects import ChildJob


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanUp:
    """What goes now, and when to look again."""

    actions: tuple[Action, ...] = ()
    requeue_after_s: float | None = None


def clean_up(context: Context) -> CleanUp:
    """Return the parts of a finished job to delete: Jobs by cleanPodPolicy, and the job itself after its TTL."""
    ended, ttl = context.status.completion_time, context.spec.run_policy.ttl_seconds_after_finished
    if ttl is not None and ended is not None:
        due = ended + timedelta(seconds=ttl)
        if context.now >= due:
            meta = context.observed.job.meta
            return CleanUp(actions=(Delete(kind=KIND, name=meta.name, uid=meta.uid),))
        requeue_s = earliest([seconds_until(due, context.now), _servers_due_s(context)])
        return CleanUp(actions=_jobs(context), requeue_after_s=requeue_s)
    return CleanUp(actions=_jobs(context), requeue_after_s=_servers_due_s(context))


def _jobs(context: Context) -> tuple[Action, ...]:
    policy = context.spec.run_policy.clean_pod_policy
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid)
        for job in context.observed.jobs
        if job.meta.owner_uid == context.uid and job.meta.deleted is None and _goes(context, job, policy)
    )


def _goes(context: Context, job: ChildJob, policy: CleanPodPolicy) -> bool:
    """Return whether a policy deletes a Job. One that others keep alive goes in any case: it holds devices."""
    if job.role == names.QUOTA:
        return True
    if job.role == names.SERVER and policy is not CleanPodPolicy.ALL:
        return job.outcome is None and not _serves(context)
    if policy is CleanPodPolicy.NONE:
        return job.outcome is None and any(pod.is_outlived for pod in context.pods_of(job))
    # An ended Job has no running pods: its controller stopped them.
    return policy is CleanPodPolicy.ALL or job.outcome is None


def _serves(context: Context) -> bool:
    """Return whether embedding servers may run on: workers do, or succeeded a moment ago."""
    workers = context.current_workers
    if workers is not None and workers.outcome is None:
        return context.spec.run_policy.clean_pod_policy is CleanPodPolicy.NONE
    ended = context.status.completion_time
    succeeded = workers is not None and workers.outcome is not None and workers.outcome.succeeded
    return succeeded and ended is not None and context.now < ended + ENDS_WITHIN


def _servers_due_s(context: Context) -> float | None:
    """Return the seconds until embedding servers that run on are deleted. None: there are none."""
    unfinished = any(job.outcome is None and job.meta.deleted is None for job in context.owned_jobs(names.SERVER))
    ended = context.status.completion_time
    if not unfinished or ended is None or not _serves(context) or context.now >= ended + ENDS_WITHIN:
        return None
    return seconds_until(ended + ENDS_WITHIN, context.now)


def outlived(context: Context) -> tuple[Delete, ...]:
    """Return the Jobs of profilers and planners to delete, whose work is done and whose pods others keep alive."""
    jobs = [
        job
        for job in context.observed.jobs
        if job.meta.owner_uid == context.uid and job.role not in names.OF_AN_ATTEMPT
    ]
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid)
        for job in jobs
        if job.outcome is None and job.meta.deleted is None and is_done_and_outlived(context, job)
    )


def is_done_and_outlived(context: Context, job: ChildJob) -> bool:
    """Return whether all containers of a stage succeeded, and others keep the Job from its end."""
    pods = context.pods_of(job)
    return len(pods) == job.parallelism and all(pod.ended_well for pod in pods) and any(pod.is_outlived for pod in pods)
