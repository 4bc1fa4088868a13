"""The objects that the watches have brought, cut down to what decisions need. Decides nothing.

Kopf's own indices are not used: until all of them are filled, every object that Kopf indexes wakes every other one that
waits, so that a start takes time with the square of the objects: 1,000 jobs with their 16,000 children kept it busy for
longer than ten minutes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from neuroshard_api.training_job import KIND

from neuroshard_operator import names
from neuroshard_operator.cluster.caches import WATCHED, Indices, JobKey, Profiler
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.objects import ChildJob, OtherProfiler

Body = Mapping[str, Any]
OTHER_KINDS = ("Service", "ServiceAccount", "Role", "RoleBinding")
"""Kinds of children of which only the metadata is kept."""


class Index(Mapping[Any, Collection[Any]]):
    """Values by key; an object has at most one of them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_key: dict[Any, dict[str, Any]] = {}
        self._key_of: dict[str, Any] = {}

    def __getitem__(self, key: Any) -> Collection[Any]:  # noqa: ANN401 - each index has keys of its own
        return self._by_key[key].values()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, uid: str, key: Any, value: Any) -> None:  # noqa: ANN401 - the same
        """Keep an object's value in place of an earlier one."""
        if self._key_of.get(uid, key) != key:
            self.drop(uid)
        self._key_of[uid] = key
        self._by_key.setdefault(key, {})[uid] = value

    def drop(self, uid: str) -> None:
        """Forget an object, if it is known."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        values = self._by_key[key]
        del values[uid]
        if not values:
            del self._by_key[key]


class WatchedObjects:
    """All objects that were brought and not deleted. Belongs to one event loop."""

    def __init__(self) -> None:
        """Begin empty."""
        self._indices = {kind: Index() for kind in WATCHED}
        self._profilers = Index()

    def bring(self, kind: str, body: Body) -> None:
        """Keep an object as it is now."""
        uid = body["metadata"]["uid"]
        value = _PARSERS[kind](body)
        self._indices[kind].put(uid, key_of(body) if kind == KIND else owner_of(body), value)
        if isinstance(value, ChildJob):
            self._bring_profiler(value, *owner_of(body))

    def drop(self, body: Body) -> None:
        """Forget an object that was deleted."""
        uid = body["metadata"]["uid"]
        for index in (*self._indices.values(), self._profilers):
            index.drop(uid)

    def indices(self) -> Indices:
        """Return the objects by the job that they belong to, always as they are now."""
        return Indices(
            training_jobs=self._indices[KIND],
            jobs=self._indices["Job"],
            pods=self._indices["Pod"],
            config_maps=self._indices["ConfigMap"],
            objects={kind: self._indices[kind] for kind in OTHER_KINDS},
            profilers=self._profilers,
        )

    def _bring_profiler(self, job: ChildJob, namespace: str, owner: str) -> None:
        """Keep the claim of a profiler Job on its profile; one that is suspended, as by Kueue, holds nobody up."""
        profile_key = job.meta.labels.get(names.PROFILE_KEY_LABEL)
        is_at_work = job.outcome is None and job.meta.deleted is None and not job.suspended
        if job.role != names.PROFILER or not profile_key or not is_at_work:
            self._profilers.drop(job.meta.uid)
            return
        other = OtherProfiler(owner=owner, created=job.meta.created, is_running=job.ready > 0)
        self._profilers.put(job.meta.uid, (namespace, profile_key), Profiler(uid=job.meta.uid, job=other))


def key_of(body: Body) -> JobKey:
    """Return the key of a job."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def owner_of(body: Body) -> JobKey:
    """Return the key of the job that a child belongs to; an empty name for what a namespace shares."""
    labels = body["metadata"].get("labels") or {}
    return body["metadata"]["namespace"], labels.get(names.JOB_LABEL, "")


def _other(kind: str) -> Callable[[Body], Any]:
    return lambda body: parsing.other(kind, body)


_PARSERS: Mapping[str, Callable[[Body], Any]] = {
    KIND: parsing.training_job,
    "Job": parsing.job,
    "Pod": parsing.pod,
    "ConfigMap": parsing.config_map,
    **{kind: _other(kind) for kind in OTHER_KINDS},
}
