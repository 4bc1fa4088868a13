"""What must be read for a pass since no watch brings it: contents of ConfigMaps, and events. Pure functions."""

from datetime import timedelta

from neuroshard_decisions import names
from neuroshard_decisions.context import SLOW_START_S, Context
from neuroshard_decisions.observed.objects import Meta
from neuroshard_decisions.stages.reports import report_is_due

_ROLES = {names.PLAN, names.PLANNER, names.PROFILER, names.CALIBRATOR, names.INPUTS, names.STEPS}


ASKED_AT_ONCE = 3


def events_needed(context: Context) -> tuple[str, ...]:
    """Return the uids of Jobs whose pods are not made, and of pods that do not start and give no reason."""
    late: list[str] = []
    for job in context.observed.jobs:
        if (
            job.meta.owner_uid != context.uid
            or job.outcome is not None
            or job.suspended
            or not _is_late(context, job.meta)
        ):
            continue
        pods = context.pods_of(job)
        if len(pods) < job.parallelism:
            late.append(job.meta.uid)
        late += [
            pod.meta.uid for pod in pods if pod.phase == "Pending" and not pod.waiting and _is_late(context, pod.meta)
        ]
    return tuple(uid for uid in late[:ASKED_AT_ONCE] if uid not in context.observed.warnings)


def _is_late(context: Context, meta: Meta) -> bool:
    return (
        meta.created is not None
        and meta.deleted is None
        and context.now >= meta.created + timedelta(seconds=SLOW_START_S)
    )


def documents_needed(context: Context) -> tuple[str, ...]:
    """Return the ConfigMaps of the job whose contents decide something and were not read in this version."""
    if context.spec.suspend and context.current_workers is None:
        return ()
    due = report_is_due(context)
    return tuple(
        each.meta.name
        for each in context.observed.config_maps
        if each.meta.owner_uid == context.uid
        and not each.is_read
        and (each.role in _ROLES or (each.role == names.WORKER and due))
    )
