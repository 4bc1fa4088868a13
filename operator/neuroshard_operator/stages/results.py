"""Results that pods publish: how late one may come, and what follows when someone deleted it. Pure functions."""

from datetime import UTC, datetime, timedelta

from neuroshard_operator.actions import Action, Delete, Event
from neuroshard_operator.children.access import REPAIRED
from neuroshard_operator.observed.objects import ChildConfigMap, ChildJob

RESULT_LATE = timedelta(seconds=30)
"""How long a result may reach us after the Job that published it ended: two watches bring them."""
_FIRST = datetime.min.replace(tzinfo=UTC)


def was_deleted(job: ChildJob, result: ChildConfigMap | None) -> bool:
    """Return whether someone deleted the ConfigMap that a Job's pods publish to, which is made before the Job."""
    return result is None or (result.meta.created or _FIRST) > (job.meta.created or _FIRST)


def removed(job: ChildJob, message: str) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """Return what makes a Job go that has ended, so that the next pass starts it again."""
    return (
        (Delete(kind="Job", name=job.meta.name, uid=job.meta.uid),),
        (Event(kind="Warning", reason=REPAIRED, message=message),),
    )
