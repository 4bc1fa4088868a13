"""Events about jobs, for people: `kubectl describe` shows them. One that is lost changes nothing."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from neuroshard_api.job.training_job import API_VERSION, KIND
from neuroshard_decisions import names
from neuroshard_decisions.actions import Event
from neuroshard_decisions.observed.objects import TrainingJobObject

from neuroshard_operator.cluster.api import CONFLICT, Api, ApiError, Json
from neuroshard_operator.logs import about

EVENT_CHARACTERS = 1024
"""Longest message that the API server takes."""

logger = logging.getLogger(__name__)


class EventWriter:
    """Writes events about jobs to one API server; those of the same cause are one object with a count."""

    def __init__(self, api: Api) -> None:
        """Write by an API."""
        self._api = api

    async def write(self, job: TrainingJobObject, events: Sequence[Event]) -> None:
        """Write events about a job; those that cannot be written are logged."""
        await asyncio.gather(*(self._write(job, event) for event in events))

    async def _write(self, job: TrainingJobObject, event: Event) -> None:
        try:
            await self._create_or_count(_body(job, event))
        except ApiError as error:
            where = about(job.namespace, job.meta.name, job.status)
            logger.warning("event %s was not written: %s", event.reason, error, extra=where)

    async def _create_or_count(self, event: Json) -> None:
        """Write an Event, or count one of the same cause again: a storm of events is one object."""
        name, namespace = event["metadata"]["name"], event["metadata"]["namespace"]
        try:
            await self._api.create(event)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            before = await self._api.get("Event", namespace, name)
            change = {"metadata": {}, "lastTimestamp": event["lastTimestamp"], "count": (before.get("count") or 0) + 1}
            await self._api.patch("Event", namespace, name, change)


def _body(job: TrainingJobObject, event: Event) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = names.key_of(job.meta.uid, event.reason, event.message)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.meta.name}.{digest[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.meta.name,
            "namespace": job.namespace,
            "uid": job.meta.uid,
            "resourceVersion": job.meta.resource_version,
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message[:EVENT_CHARACTERS],
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
