"""What the watches have brought, cut down, with our own writes on top until the watches bring them too."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from neuroshard_decisions import names
from neuroshard_decisions.observed.objects import (
    OF_ANOTHER_NAMESPACE,
    ChildConfigMap,
    ChildJob,
    ChildObject,
    ChildPod,
    Meta,
    OtherProfiler,
    TrainingJobObject,
)

from neuroshard_operator.cluster.watched import JobKey, WatchedObjects
from neuroshard_operator.observed.job_sets import ChildJobSet
from neuroshard_operator.observed.parsing import UNSCHEDULABLE

Child = ChildJob | ChildJobSet | ChildConfigMap | ChildObject
Found = TypeVar("Found", ChildJob, ChildJobSet, ChildConfigMap, ChildObject)
_LAST = datetime.max.replace(tzinfo=UTC)
EXPECTED_WITHIN_S = 10.0
"""How long a write of ours is shown before the watch brings it; a watch is late by less."""


class Caches:
    """What the watches have brought, and what this operator wrote a moment ago. Belongs to one event loop."""

    def __init__(self, watched: WatchedObjects, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read `watched`; `clock` counts seconds."""
        self.watched = watched
        self._indices = watched.indices()
        self._clock = clock
        self._written: dict[JobKey, dict[tuple[str, str], tuple[float, Child]]] = {}
        self._status: dict[JobKey, tuple[str, TrainingJobObject]] = {}
        self._claims: dict[tuple[str, str], tuple[float, str]] = {}

    def known(self) -> list[JobKey]:
        """Return all jobs that the watch knows."""
        return list(self._indices.training_jobs)

    def training_job(self, key: JobKey) -> TrainingJobObject | None:
        """Return a job, with the status that was written last."""
        seen = next(iter(self._indices.training_jobs.get(key, ())), None)
        before, written = self._status.get(key, ("", None))
        if written is None:
            return seen
        if seen is None or seen.meta.uid != written.meta.uid or seen.meta.resource_version != before:
            del self._status[key]  # the watch has moved on: to our write, or past it
            return seen
        return written

    def jobs(self, key: JobKey) -> list[ChildJob]:
        """Return the Jobs of a job."""
        return self._with_written(key, self._indices.jobs.get(key, ()), ChildJob)

    def job_sets(self, key: JobKey) -> list[ChildJobSet]:
        """Return the JobSets of a job."""
        return self._with_written(key, self._indices.job_sets.get(key, ()), ChildJobSet)

    def pods(self, key: JobKey) -> list[ChildPod]:
        """Return the pods of a job."""
        return list(self._indices.pods.get(key, ()))

    def half_started(self, key: JobKey) -> tuple[str, ...]:
        """Return other jobs that wait like this one: some of their workers have nodes, and no node takes the others.

        Those of other namespaces are not named. Empty where this job is none of them.
        """
        if not _is_half_started(self._indices.pods.get(key, ())):
            return ()
        others = (other for other, pods in self._indices.pods.items() if other != key and _is_half_started(pods))
        named = {name if namespace == key[0] else OF_ANOTHER_NAMESPACE for namespace, name in others}
        return tuple(sorted(named))

    def config_maps(self, key: JobKey) -> list[ChildConfigMap]:
        """Return the ConfigMaps of a job and the profiles of its namespace."""
        shared = self._indices.config_maps.get((key[0], ""), ())
        seen = [*self._indices.config_maps.get(key, ()), *shared]
        return self._with_written(key, seen, ChildConfigMap)

    def objects(self, key: JobKey) -> list[ChildObject]:
        """Return the other children of a job."""
        seen = [child for index in self._indices.objects.values() for child in index.get(key, ())]
        return self._with_written(key, seen, ChildObject)

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
            others = [each.job for each in owners if each.job.owner != key[1]]
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


def _is_half_started(pods: Iterable[ChildPod]) -> bool:
    workers = [pod for pod in pods if pod.role in names.OF_AN_ATTEMPT and pod.live]
    return any(pod.node for pod in workers) and any(pod.waiting.startswith(UNSCHEDULABLE) for pod in workers)
