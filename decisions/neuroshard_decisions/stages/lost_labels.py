"""Labels of Jobs that somebody removed or changed: without them no watch brings the Job. Pure functions."""

from neuroshard_decisions.actions import Action, Change, Event, EventReason
from neuroshard_decisions.context import Context


def relabelled(context: Context) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """Return the actions that restore the original labels of the job's Jobs, and events; none where all are there.

    Jobs that no watch shows any more are among them, as `Context.unseen_worker_jobs` asks for those.
    """
    lost = [
        job
        for job in context.observed.jobs
        if job.lost_labels and job.meta.owner_uid == context.uid and job.meta.deleted is None
    ]
    actions = (Change(kind="Job", name=job.meta.name, uid=job.meta.uid, labels=job.lost_labels) for job in lost)
    words = "labels of Job {} were edited and are restored: {}"
    events = (
        Event(
            reason=EventReason.CHILD_REPAIRED, message=words.format(job.meta.name, ", ".join(sorted(job.lost_labels)))
        )
        for job in lost
    )
    return tuple(actions), tuple(events)
