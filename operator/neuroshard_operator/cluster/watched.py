"""The objects that the watches have brought, cut down to what decisions need. Decides nothing.

Kopf's own indices are not used: until all of them are filled, every object that Kopf indexes wakes every other one that
waits, so that a start takes time with the square of the objects.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from neuroshard_decisions.observed.objects import (
    ChildConfigMap,
    ChildJob,
    ChildObject,
    ChildPod,
    OtherProfiler,
    TrainingJobObject,
)

from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.bounded import UNREADABLE
from neuroshard_operator.observed.job_sets import ChildJobSet, job_set

Body = Mapping[str, Any]
JobKey = tuple[str, str]
"""Namespace and name of a job."""
OTHER_KINDS = ("Service", "ServiceAccount", "Role", "RoleBinding")
"""Kinds of children of which only the metadata is kept."""
WATCHED = (KIND, "Job", "Pod", "ConfigMap", *OTHER_KINDS)
"""The kinds that the watches bring, in addition to JobSets where there are those."""

_PROBLEM_CHARACTERS = 500
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveProfiler:
    """A profiler Job that is not suspended and has not ended."""

    uid: str
    job: OtherProfiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Indices:
    """What the watches have brought, by the job that it belongs to, always as it is now. Read only."""

    training_jobs: Mapping[JobKey, Collection[TrainingJobObject]]
    jobs: Mapping[JobKey, Collection[ChildJob]]
    job_sets: Mapping[JobKey, Collection[ChildJobSet]]
    pods: Mapping[JobKey, Collection[ChildPod]]
    config_maps: Mapping[JobKey, Collection[ChildConfigMap]]
    """Profiles that a namespace shares are under an empty job name."""
    objects: Mapping[str, Mapping[JobKey, Collection[ChildObject]]]
    """Indices of the other children, by kind."""
    profilers: Mapping[tuple[str, str], Collection[ActiveProfiler]]
    """Profilers at work, by namespace and short profile key."""


class Index(Mapping[Any, Collection[Any]]):
    """Values by key; an object has at most one of them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_key: dict[Any, dict[str, Any]] = {}
        self._key_of: dict[str, Any] = {}

    def __getitem__(self, key: Any) -> Collection[Any]:  # noqa: ANN401 - each index has its own keys
        return self._by_key[key].values()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def num_objects(self) -> int:
        """Objects that have a value."""
        return len(self._key_of)

    def put(self, uid: str, key: Any, value: Any) -> Any:  # noqa: ANN401 - the same
        """Keep an object's value in place of an earlier one; return the key of that. None: the object is new."""
        before = self._key_of.get(uid)
        if before not in {None, key}:
            self.drop(uid)
        self._key_of[uid] = key
        self._by_key.setdefault(key, {})[uid] = value
        return before

    def drop(self, uid: str) -> Any:  # noqa: ANN401 - the same
        """Forget an object; return its key. None: it is not known."""
        key = self._key_of.pop(uid, None)
        if key is not None:
            values = self._by_key[key]
            del values[uid]
            if not values:
                del self._by_key[key]
        return key


class WatchedObjects:
    """All objects that were brought and not deleted. Belongs to one event loop."""

    def __init__(self, *, with_job_sets: bool = False) -> None:
        """Begin empty; `with_job_sets` says whether the cluster has JobSets."""
        self.kinds = (*WATCHED, names.JOB_SET) if with_job_sets else WATCHED
        """The kinds that the watches bring."""
        self._indices = {kind: Index() for kind in self.kinds}
        self._profilers = Index()
        self._unreadable: dict[str, dict[str, str]] = {kind: {} for kind in self.kinds}
        """Versions of what cannot be read, jobs and pods aside, by kind and uid: it is there, and not used."""

    def bring(self, kind: str, body: Body) -> set[JobKey]:
        """Keep an object as it is now; return the keys of the jobs that it belongs to and belonged to before.

        Anybody may have written it: one that cannot be read is brought too, as that, and takes no other along.
        """
        try:
            key, value = _read(kind, body)
        except Exception as error:  # noqa: BLE001 - whatever somebody has found to put into an object
            return self._bring_unreadable(kind, body, f"{type(error).__name__}: {error}"[:_PROBLEM_CHARACTERS])
        self._unreadable[kind].pop(value.meta.uid, None)
        before = self._indices[kind].put(value.meta.uid, key, value)
        if isinstance(value, ChildJob):
            self._bring_profiler(value, *key)
        return {key, before or key}

    def _bring_unreadable(self, kind: str, body: Body, problem: str) -> set[JobKey]:
        try:
            meta, namespace = parsing.names_of(body), str(body["metadata"]["namespace"])
        except (AttributeError, KeyError, TypeError):
            logger.warning("a %s without a name cannot be read: %s", kind, problem)
            return set()
        logger.warning("%s %s/%s cannot be read: %s", kind, namespace, meta.name, problem)
        if kind == KIND:
            key = (namespace, meta.name)
            self._indices[kind].put(meta.uid, key, parsing.unreadable_job(body, problem))
            return {key}
        gone = self.drop(kind, meta.uid)
        try:
            key = _owner_of(body)
        except (AttributeError, KeyError, TypeError):
            key = (namespace, "")
        if kind == "Pod":
            self._indices[kind].put(meta.uid, key, parsing.unreadable_pod(body, problem))
        else:
            self._unreadable[kind][meta.uid] = meta.resource_version
        return {*gone, key}

    def drop(self, kind: str, uid: str) -> set[JobKey]:
        """Forget an object that was deleted; return the key of the job that it belonged to, if it was known."""
        self._profilers.drop(uid)
        self._unreadable[kind].pop(uid, None)
        before = self._indices[kind].drop(uid)
        return set() if before is None else {before}

    def count(self, kind: str) -> int:
        """Return the number of objects of a kind."""
        return self._indices[kind].num_objects + len(self._unreadable[kind])

    def versions(self, kind: str) -> dict[str, str]:
        """Return the resourceVersion of all objects of a kind, by uid."""
        shown = (each for values in self._indices[kind].values() for each in values)
        return {**self._unreadable[kind], **{each.meta.uid: each.meta.resource_version for each in shown}}

    def indices(self) -> Indices:
        """Return the objects by the job that they belong to."""
        return Indices(
            training_jobs=self._indices[KIND],
            jobs=self._indices["Job"],
            job_sets=self._indices.get(names.JOB_SET, {}),
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
        self._profilers.put(job.meta.uid, (namespace, profile_key), ActiveProfiler(uid=job.meta.uid, job=other))


def _read(kind: str, body: Body) -> tuple[JobKey, Any]:
    if kind == KIND:
        return _key_of(body), parsing.training_job(body).to_keep
    if UNREADABLE in body:
        raise ValueError(body[UNREADABLE])
    return _owner_of(body), _PARSERS[kind](body)


def _key_of(body: Body) -> JobKey:
    return str(body["metadata"]["namespace"]), str(body["metadata"]["name"])


def _owner_of(body: Body) -> JobKey:
    """Return the key of the job that a child belongs to; an empty name for what a namespace shares.

    The label is that of pods, which Jobs own, and of what has no owner; of others somebody may have edited it.
    """
    labels = body["metadata"].get("labels") or {}
    return str(body["metadata"]["namespace"]), parsing.owner_name(body) or str(labels.get(names.JOB_LABEL, ""))


def _other(kind: str) -> Callable[[Body], Any]:
    return lambda body: parsing.other(kind, body)


_PARSERS: Mapping[str, Callable[[Body], Any]] = {
    "Job": parsing.job,
    names.JOB_SET: job_set,
    "Pod": parsing.pod,
    "ConfigMap": parsing.config_map,
    **{kind: _other(kind) for kind in OTHER_KINDS},
}
