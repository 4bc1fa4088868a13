"""The pace at which the status of a job is written: counts and words alone wait for a few seconds.

A write of the status costs the API server six times the processor time of any other write, for it validates the whole
resource and its rules; and a thousand workers that get ready one by one are a thousand changes of a count. What people
and programs wait for is written at once: a stage, a reason, a condition, a restart, a plan, a cost.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from neuroshard_api.job.status import Status
from neuroshard_decisions.context import earliest

from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.writes import Writes

COUNTS_EVERY_S = 5.0
"""Between two writes of a job's status of which the second has new counts and words alone."""


class StatusPace:
    """When the status of each job was written last by this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know of no write; `clock` counts seconds."""
        self._clock = clock
        self._written_at_s: dict[JobKey, float] = {}

    def paced(self, key: JobKey, before: Status, decision: Writes) -> Writes:
        """Return the writes, or a later pass in its place where counts and words alone would be written too soon."""
        if decision.status is None or decision.actions or decision.events:
            return decision
        wait_s = self._written_at_s.get(key, -COUNTS_EVERY_S) + COUNTS_EVERY_S - self._clock()
        if wait_s <= 0 or _essence(before) != _essence(decision.status):
            return decision
        return replace(decision, status=None, requeue_after_s=earliest([decision.requeue_after_s, wait_s]))

    def wrote(self, key: JobKey) -> None:
        """Note that the status of a job was written."""
        self._written_at_s[key] = self._clock()

    def forget(self, key: JobKey) -> None:
        """Drop what is kept for a job that has ended or is gone."""
        self._written_at_s.pop(key, None)


def _essence(status: Status) -> Status:
    """Return a status without its counts and words."""
    conditions = tuple(each.model_copy(update={"message": ""}) for each in status.conditions)
    stages = tuple(each.model_copy(update={"message": None}) for each in status.stages)
    warnings = tuple(each.model_copy(update={"message": ""}) for each in status.warnings)
    words = {
        "message": None,
        "workers": None,
        "servers": None,
        "conditions": conditions,
        "warnings": warnings,
        "stages": stages,
    }
    return status.model_copy(update=words)
