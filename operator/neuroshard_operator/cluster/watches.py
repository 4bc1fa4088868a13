"""Kopf's event handlers and settings: events bring objects and wake the queue. Decides nothing."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
from neuroshard_api.job.spec import GROUP
from neuroshard_api.job.training_job import KIND, PLURAL, VERSION
from neuroshard_decisions import names

from neuroshard_operator.cluster.watched import JobKey, WatchedObjects

Resource = tuple[str, str, str]

RESOURCES: Mapping[str, Resource] = {
    KIND: (GROUP, VERSION, PLURAL),
    "Job": ("batch", "v1", "jobs"),
    names.JOB_SET: ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "Pod": ("", "v1", "pods"),
    "ConfigMap": ("", "v1", "configmaps"),
    "Service": ("", "v1", "services"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
    "Role": ("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io", "v1", "rolebindings"),
}
KINDS_BY_PLURAL = {plural: kind for kind, (_, _, plural) in RESOURCES.items()}
CHUNK = 20
"""Objects of one page of a list: bounds the memory of a start, for each is kept until the page ends."""
DELETED = "DELETED"
IDLE_S = 0.05
"""Until Kopf ends the task of an object that has no more events: each keeps its object in memory."""

Wake = Callable[[JobKey], None]


class NoMemories(ResourceMemories):
    """In place of a record for each object, in which Kopf keeps retries and daemons: events have neither.

    Kopf takes it as an argument and does not export its class, so that pyproject.toml names Kopf's minor version.
    """

    async def recall(self, raw_body: kopf.RawBody, **how: Any) -> ResourceMemory:  # noqa: ANN401 - Kopf's
        """Return a new record, which ends with the event."""
        return await super().recall(raw_body, **{**how, "ephemeral": True})


class NoDiffs(kopf.DiffBaseStorage):
    """In place of copies of each object, from which Kopf tells changes: events need none."""

    def build(self, **_: Any) -> kopf.BodyEssence:  # noqa: ANN401 - Kopf's
        """Return nothing of an object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:  # noqa: ANN401 - Kopf's
        """Return nothing of an object."""
        return None

    def store(self, **_: Any) -> None:  # noqa: ANN401 - Kopf's
        """Write nothing to an object."""


def register(
    registry: kopf.OperatorRegistry,
    watched: WatchedObjects,
    *,
    wake: Wake,
    wake_for_profile: Callable[[str], None],
) -> None:
    """Tell Kopf what to watch.

    Only `event` handlers: they need no finalizer, keep no annotation and never write.
    """
    for kind in watched.kinds:
        # Without a filter of labels, which would pass over an object's last event if that has others.
        @kopf.on.event(*RESOURCES[kind], id=f"{kind}_event", registry=registry)
        async def event(body: kopf.Body, type: str | None, of_kind: str = kind, **_: Any) -> None:  # noqa: A002, ANN401 - Kopf's
            uid = str(body["metadata"]["uid"])
            keys = watched.drop(of_kind, uid) if type == DELETED else watched.bring(of_kind, body)
            for namespace, job in keys:
                if job:
                    wake((namespace, job))
                else:
                    wake_for_profile(namespace)


def watch_settings(settings: kopf.OperatorSettings, *, is_clusterwide: bool) -> None:
    """Set how Kopf watches: only what is ours, with limits on every wait."""
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.persistence.diffbase_storage = NoDiffs()
    settings.queueing.idle_timeout = IDLE_S
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = CHUNK
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 30
    # Without a ClusterRole nobody may look for namespaces and definitions.
    settings.scanning.disabled = not is_clusterwide
    for kind, (group, _, plural) in RESOURCES.items():
        if kind == KIND:
            continue
        settings.watching.label_selectors[f"{plural}.{group}" if group else plural] = names.SELECTOR
