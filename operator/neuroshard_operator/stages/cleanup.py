"""After the end: clean-up by `spec.runPolicy` and nothing else. A job that has ended never starts anything again."""

from dataclasses import dataclass
from datetime import timedelta

from neuroshard_api.job.policies import CleanPodPolicy
from neuroshard_api.job.training_job import KIND

from neuroshard_operator.actions import Action, Delete
from neuroshard_operator.context import Context, seconds_until


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
        return CleanUp(actions=_jobs(context), requeue_after_s=seconds_until(due, context.now))
    return CleanUp(actions=_jobs(context))


def _jobs(context: Context) -> tuple[Action, ...]:
    policy = context.spec.run_policy.clean_pod_policy
    if policy is CleanPodPolicy.NONE:
        return ()
    # An ended Job has no running pods: its controller stopped them.
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid)
        for job in context.observed.jobs
        if job.meta.owner_uid == context.uid
        and job.meta.deleted is None
        and (policy is CleanPodPolicy.ALL or job.outcome is None)
    )
