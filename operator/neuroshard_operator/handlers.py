"""What Kopf is told to watch: indices that keep objects cut down, and events that wake the queue. Decides nothing."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from neuroshard_operator import names, trimming
from neuroshard_operator.caches import Indices, JobKey
from neuroshard_operator.observed import ChildConfigMap, ChildJob, ChildObject, ChildPod, TrainingJobObject

JOBS = ("training.neuroshard.dev", "v1alpha1", "dlrmtrainingjobs")
OTHER_KINDS: Mapping[tuple[str, str, str], str] = {
    ("", "v1", "services"): "Service",
    ("", "v1", "serviceaccounts"): "ServiceAccount",
    ("rbac.authorization.k8s.io", "v1", "roles"): "Role",
    ("rbac.authorization.k8s.io", "v1", "rolebindings"): "RoleBinding",
}
CHILD_KINDS = (("batch", "v1", "jobs"), ("", "v1", "pods"), ("", "v1", "configmaps"), *OTHER_KINDS)
CHUNK = 500
"""Objects of one page of a list: bounds the memory of a start on a large cluster."""

Wake = Callable[[JobKey], None]


def register(registry: kopf.OperatorRegistry, *, wake: Wake, wake_for_profile: Callable[[str], None]) -> None:
    """Tell Kopf what to watch.

    Only `index` and `event` handlers: they need no finalizer, keep no annotation and never write.
    """
    ours = {names.MANAGED_BY_LABEL: names.MANAGED_BY}

    @kopf.index(*JOBS, id="training_jobs", registry=registry)
    async def training_jobs(body: kopf.Body, **_: Any) -> dict[JobKey, TrainingJobObject]:  # noqa: ANN401 - Kopf's
        return {_key(body): trimming.training_job(body)}

    @kopf.index("batch", "v1", "jobs", id="jobs", labels=ours, registry=registry)
    async def jobs(body: kopf.Body, **_: Any) -> dict[JobKey, ChildJob]:  # noqa: ANN401 - Kopf's
        return {_owner(body): trimming.job(body)}

    @kopf.index("batch", "v1", "jobs", id="profilers", labels=ours, registry=registry)
    async def profilers(body: kopf.Body, **_: Any) -> dict[tuple[str, str], str]:  # noqa: ANN401 - Kopf's
        job = trimming.job(body)
        profile_key = job.meta.labels.get(names.PROFILE_KEY_LABEL)
        if job.role != names.PROFILER or not profile_key or job.outcome is not None or job.meta.deleted is not None:
            return {}
        namespace, owner = _owner(body)
        return {(namespace, profile_key): owner}

    @kopf.index("", "v1", "pods", id="pods", labels=ours, registry=registry)
    async def pods(body: kopf.Body, **_: Any) -> dict[JobKey, ChildPod]:  # noqa: ANN401 - Kopf's
        return {_owner(body): trimming.pod(body)}

    @kopf.index("", "v1", "configmaps", id="config_maps", labels=ours, registry=registry)
    async def config_maps(body: kopf.Body, **_: Any) -> dict[JobKey, ChildConfigMap]:  # noqa: ANN401 - Kopf's
        return {_owner(body): trimming.config_map(body)}

    @kopf.on.event(*JOBS, registry=registry)
    async def job_event(body: kopf.Body, **_: Any) -> None:  # noqa: ANN401 - Kopf's
        wake(_key(body))

    for resource in CHILD_KINDS:

        @kopf.on.event(*resource, id=f"wake_by_{resource[2]}", labels=ours, registry=registry)
        async def child_event(body: kopf.Body, **_: Any) -> None:  # noqa: ANN401 - Kopf's
            namespace, owner = _owner(body)
            if owner:
                wake((namespace, owner))
            else:
                wake_for_profile(namespace)

    for resource, kind in OTHER_KINDS.items():
        _index_other(registry, resource, kind, ours)


def _index_other(
    registry: kopf.OperatorRegistry, resource: tuple[str, str, str], kind: str, ours: Mapping[str, str]
) -> None:
    @kopf.index(*resource, id=resource[2], labels=dict(ours), registry=registry)
    async def others(body: kopf.Body, **_: Any) -> dict[JobKey, ChildObject]:  # noqa: ANN401 - Kopf's
        return {_owner(body): trimming.other(kind, body)}


def indices_of(by_id: Mapping[str, Any]) -> Indices:
    """Return Kopf's indices by the names that the caches know."""
    return Indices(
        training_jobs=by_id["training_jobs"],
        jobs=by_id["jobs"],
        pods=by_id["pods"],
        config_maps=by_id["config_maps"],
        objects=tuple(by_id[resource[2]] for resource in OTHER_KINDS),
        profilers=by_id["profilers"],
    )


def watch_settings(settings: kopf.OperatorSettings, *, is_clusterwide: bool) -> None:
    """Set how Kopf watches: only what is ours, with limits on every wait."""
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = CHUNK
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 30
    # Without a ClusterRole nobody may look for namespaces and definitions.
    settings.scanning.disabled = not is_clusterwide
    for group, _, plural in CHILD_KINDS:
        settings.watching.label_selectors[f"{plural}.{group}" if group else plural] = names.SELECTOR


def _key(body: Mapping[str, Any]) -> JobKey:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _owner(body: Mapping[str, Any]) -> JobKey:
    labels = body["metadata"].get("labels") or {}
    return body["metadata"]["namespace"], labels.get(names.JOB_LABEL, "")
