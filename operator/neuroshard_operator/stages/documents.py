"""Which of a job's ConfigMaps must be read for a pass: their contents are not watched. Pure functions."""

from neuroshard_operator import names
from neuroshard_operator.context import Context
from neuroshard_operator.stages.reports import report_is_due

_ROLES = {names.PLAN, names.PLANNER, names.PROFILER}


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
