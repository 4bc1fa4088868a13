"""What the watches have brought, cut down, with our own writes on top until the watches bring them too."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from neuroshard_api.training_job import KIND

from neuroshard_operator.observed.objects import (
    ChildConfigMap,
    ChildJob,
    ChildObject,
    ChildPod,
    Meta,
    OtherProfiler,
    TrainingJobObject,
)

JobKey = tuple[str, str]
"""Namespace and name of a job."""
Child = ChildJob | ChildConfigMap | ChildObject
Found = TypeVar("Found", ChildJob, ChildConfigMap, ChildObject)
Watched = TrainingJobObject | ChildJob | ChildPod | ChildConfigMap | ChildObject
Seen = TypeVar("Seen", TrainingJobObject, ChildJob, ChildPod, ChildConfigMap, ChildObject)
WATCHED = (KIND, "Job", "Pod", "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding")
"""The kinds that the watches bring."""
_LAST = datetime.max.replace(tzinfo=UTC)
EXPECTED_WITHIN_S = 10.0
"""How long a write of ours is shown before the watch brings it; a watch is late by less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiler:
    """A profiler Job that is not suspended and has not ended."""

    uid: str
    job: OtherProfiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Indices:
    """What the watches have brought, by the job that it belongs to. Read only."""

    training_jobs: Mapping[JobKey, Collection[TrainingJobObject]]
    jobs: Mapping[JobKey, Collection[ChildJob]]
    pods: Mapping[JobKey, Collection[ChildPod]]
    config_maps: Mapping[JobKey, Collection[ChildConfigMap]]
    """Profiles that a namespace shares are under an empty job name."""
    objects: Mapping[str, Mapping[JobKey, Collection[ChildObject]]]
    """Indices of the other children, by kind."""
    profilers: Mapping[tuple[str, str], Collection[Profiler]]
    """Profilers at work, by namespace and short profile key."""

    def of_kind(self, kind: str) -> Mapping[Any, Collection[Watched]]:
        """Return the index of a kind."""
        own: Mapping[str, Mapping[Any, Collection[Watched]]] = {
            KIND: self.training_jobs,
            "Job": self.jobs,
            "Pod": self.pods,
            "ConfigMap": self.config_maps,
        }
        return own[kind] if kind in own else self.objects[kind]


class Caches:
    """The indices, and what this operator wrote a moment ago. Belongs to one event loop."""

    def __init__(self, indices: Indices, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read `indices`; `clock` counts seconds."""
        self._indices = indices
        self._clock = clock
        self._written: dict[JobKey, dict[tuple[str, str], tuple[float, Child]]] = {}
        self._status: dict[JobKey, tuple[str, TrainingJobObject]] = {}
        self._claims: dict[tuple[str, str], tuple[float, str]] = {}
        self._gone: frozenset[str] = frozenset()

    def versions(self, kind: str) -> dict[str, str]:
        """Return the resourceVersion by uid of all objects of a kind that the watches show."""
        shown = [each for found in self._indices.of_kind(kind).values() for each in found]
        return {each.meta.uid: each.meta.resource_version for each in shown}

    def drop(self, uids: Collection[str], present: Collection[str] = frozenset()) -> None:
        """Show objects no longer: they are gone, and the watch lost their deletion; those ``present`` are shown again.

        Objects leave the indices by DELETED events alone. After a watch was away for longer than the API server's
        history, it lists what is there and never hears of what went meanwhile.
        """
        shown = {uid for kind in WATCHED for uid in self.versions(kind)}
        self._gone = frozenset(((self._gone | set(uids)) - set(present)) & shown)

    def _there(self, found: Iterable[Seen]) -> list[Seen]:
        return [each for each in found if each.meta.uid not in self._gone]

    def known(self) -> list[JobKey]:
        """Return all jobs that the watch knows."""
        return [key for key, found in self._indices.training_jobs.items() if self._there(found)]

    def training_job(self, key: JobKey) -> TrainingJobObject | None:
        """Return a job, with the status that was written last."""
        seen = next(iter(self._there(self._indices.training_jobs.get(key, ()))), None)
        before, written = self._status.get(key, ("", None))
        if written is None:
            return seen
        if seen is None or seen.meta.uid != written.meta.uid or seen.meta.resource_version != before:
            del self._status[key]  # the watch has moved on: to our write, or past it
            return seen
        return written

    def jobs(self, key: JobKey) -> list[ChildJob]:
        """Return the Jobs of a job."""
        return self._with_written(key, self._there(self._indices.jobs.get(key, ())), ChildJob)

    def pods(self, key: JobKey) -> list[ChildPod]:
        """Return the pods of a job."""
        return self._there(self._indices.pods.get(key, ()))

    def config_maps(self, key: JobKey) -> list[ChildConfigMap]:
        """Return the ConfigMaps of a job and the profiles of its namespace."""
        shared = self._indices.config_maps.get((key[0], ""), ())
        seen = self._there([*self._indices.config_maps.get(key, ()), *shared])
        return self._with_written(key, seen, ChildConfigMap)

    def objects(self, key: JobKey) -> list[ChildObject]:
        """Return the other children of a job."""
        seen = [child for index in self._indices.objects.values() for child in index.get(key, ())]
        return self._with_written(key, self._there(seen), ChildObject)

    def other_profilers(self, key: JobKey) -> dict[str, OtherProfiler]:
        """Return the profiler Jobs of other jobs of the namespace, by profile key: a running one, else the newest."""
        now_s = self._clock()
        self._claims = {place: each for place, each in self._claims.items() if now_s - each[0] <= EXPECTED_WITHIN_S}
        found = {
            profile_key: OtherProfiler(owner=owner, created=None, is_running=False)
            for (namespace, profile_key), (_, owner) in self._claims.items()
            if namespace == key[0] and owner != key[1]
        }
        for (namespace, profile_key), owners in self._indices.profilers.items():
            others = [each.job for each in owners if each.job.owner != key[1] and each.uid not in self._gone]
            if namespace != key[0] or not others:
                continue
            best = max(others, key=lambda each: (each.is_running, each.created or _LAST, each.owner))
            if best.is_running or profile_key not in found:
                found[profile_key] = best
        return found

    def claim_profile(self, key: JobKey, profile_key: str) -> None:
        """Let the other jobs know that this one is about to profile, until the watch brings its Job."""
        self._claims.setdefault((key[0], profile_key), (self._clock(), key[1]))

    def wrote(self, key: JobKey, kind: str, child: Child) -> None:
        """Show a child that was just written, until the watch brings it."""
        self._written.setdefault(key, {})[kind, child.meta.name] = (self._clock(), child)

    def unseen_s(self, key: JobKey) -> float | None:
        """Return in how many seconds the first of our writes that no watch has brought counts as undone; None: none is.

        Somebody may have deleted the child before the watch came to it.
        """
        written = self._written.get(key, {}).values()
        until_s = min((at_s for at_s, _ in written), default=None)
        return None if until_s is None else max(until_s + EXPECTED_WITHIN_S - self._clock(), 0.0) + 0.1

    def wrote_status(self, key: JobKey, before: Meta, written: TrainingJobObject) -> None:
        """Show a job's status that was just written, until the watch brings it or a later one."""
        self._status[key] = (before.resource_version, written)

    def forget(self, key: JobKey) -> None:
        """Drop what is kept for a job that is gone."""
        self._written.pop(key, None)
        self._status.pop(key, None)

    def _with_written(self, key: JobKey, seen: Iterable[Found], kind: type[Found]) -> list[Found]:
        found = {
            child.meta.name if not isinstance(child, ChildObject) else (child.kind, child.meta.name): child
            for child in seen
        }
        written = self._written.get(key, {})
        now_s = self._clock()
        for place, (at_s, child) in list(written.items()):
            if not isinstance(child, kind):
                continue
            name: Any = (child.kind, child.meta.name) if isinstance(child, ChildObject) else child.meta.name
            if name in found or now_s - at_s > EXPECTED_WITHIN_S:
                del written[place]
            else:
                found[name] = child
        return list(found.values())
