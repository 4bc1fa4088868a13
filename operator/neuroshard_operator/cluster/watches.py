"""What Kopf is told to watch: indices that keep objects cut down, and events that wake the queue. Decides nothing."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from neuroshard_api.training_job import GROUP, PLURAL, VERSION

from neuroshard_operator import names
from neuroshard_operator.cluster.caches import Indices, JobKey, Profiler
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.objects import ChildJob, OtherProfiler

Resource = tuple[str, str, str]
Trim = Callable[[Mapping[str, Any]], Mapping[Any, Any]]

JOBS: Resource = (GROUP, VERSION, PLURAL)
OURS = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
OTHER_KINDS: Mapping[Resource, str] = {
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
    for resource, kept in _indices().items():
        _keep(registry, resource, **kept)

    @kopf.on.event(*JOBS, registry=registry)
    async def job_event(body: kopf.Body, **_: Any) -> None:  # noqa: ANN401 - Kopf's
        wake(_key(body))

    async def child_event(body: kopf.Body, **_: Any) -> None:  # noqa: ANN401 - Kopf's
        namespace, owner = _owner(body)
        if owner:
            wake((namespace, owner))
        else:
            wake_for_profile(namespace)

    for resource in CHILD_KINDS:
        kopf.on.event(*resource, id=f"wake_by_{resource[2]}", labels=dict(OURS), registry=registry)(child_event)


def _indices() -> Mapping[Resource, Mapping[str, Trim]]:
    """Return what is kept of each resource, by the name of the index."""
    return {
        JOBS: {"training_jobs": lambda body: {_key(body): parsing.training_job(body)}},
        ("batch", "v1", "jobs"): {
            "jobs": lambda body: {_owner(body): parsing.job(body)},
            "profilers": _profiler_at_work,
        },
        ("", "v1", "pods"): {"pods": lambda body: {_owner(body): parsing.pod(body)}},
        ("", "v1", "configmaps"): {"config_maps": lambda body: {_owner(body): parsing.config_map(body)}},
        **{resource: {resource[2]: _other(kind)} for resource, kind in OTHER_KINDS.items()},
    }


def _keep(registry: kopf.OperatorRegistry, resource: Resource, **kept: Trim) -> None:
    """Make one of Kopf's indices for each way to cut a resource down."""
    labels = None if resource == JOBS else dict(OURS)
    for name, trim in kept.items():

        async def index(body: kopf.Body, *, trim: Trim = trim, **_: Any) -> Mapping[Any, Any]:  # noqa: ANN401 - Kopf's
            return trim(body)

        kopf.index(*resource, id=name, labels=labels, registry=registry)(index)


def _other(kind: str) -> Trim:
    return lambda body: {_owner(body): parsing.other(kind, body)}


def _profiler_at_work(body: Mapping[str, Any]) -> dict[tuple[str, str], Profiler]:
    return profiler_at_work(parsing.job(body), *_owner(body))


def profiler_at_work(job: ChildJob, namespace: str, owner: str) -> dict[tuple[str, str], Profiler]:
    """Return the claim of a profiler Job on its profile; one that is suspended, as by Kueue, holds nobody up."""
    profile_key = job.meta.labels.get(names.PROFILE_KEY_LABEL)
    is_at_work = job.outcome is None and job.meta.deleted is None and not job.suspended
    if job.role != names.PROFILER or not profile_key or not is_at_work:
        return {}
    other = OtherProfiler(owner=owner, created=job.meta.created, is_running=job.ready > 0)
    return {(namespace, profile_key): Profiler(uid=job.meta.uid, job=other)}


def indices_of(by_id: Mapping[str, Any]) -> Indices:
    """Return Kopf's indices by the names that the caches know."""
    return Indices(
        training_jobs=by_id["training_jobs"],
        jobs=by_id["jobs"],
        pods=by_id["pods"],
        config_maps=by_id["config_maps"],
        objects={kind: by_id[resource[2]] for resource, kind in OTHER_KINDS.items()},
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
