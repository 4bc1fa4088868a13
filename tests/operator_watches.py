"""What the operator's watches have brought of a cluster in memory. They may lag behind it."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from neuroshard_api.training_job import KIND
from neuroshard_operator import names
from neuroshard_operator.cluster.api import Json
from neuroshard_operator.cluster.caches import Indices, JobKey, Profiler
from neuroshard_operator.cluster.watches import profiler_at_work
from neuroshard_operator.observed import parsing

Place = tuple[str, str]
"""Kind and name of an object."""
Kept = TypeVar("Kept")


class Watches:
    """The objects of one namespace as the operator knows them."""

    def __init__(self, objects: Mapping[Place, Json], *, namespace: str) -> None:
        """Watch `objects`; nothing is brought yet."""
        self._objects = objects
        self._namespace = namespace
        self._seen: dict[Place, Json] = {}
        self._trimmed: dict[tuple[str, str], Any] = {}
        self._lost: set[Place] = set()

    def lose_deletions(self) -> None:
        """Let all watches list again after the history that they need is gone: they never hear of what was deleted."""
        self._lost |= {place for place in self._seen if place not in self._objects}

    def catch_up(self, kinds: Collection[str] | None = None) -> None:
        """Let the watches of these kinds bring everything; None: of all kinds."""
        for place in {*self._seen, *self._objects}:
            if kinds is not None and place[0] not in kinds:
                continue
            if place not in self._objects:
                if place not in self._lost:
                    self._seen.pop(place, None)
            elif _version_of(self._seen.get(place)) != _version_of(self._objects[place]):
                self._seen[place] = copy.deepcopy(self._objects[place])

    def indices(self) -> Indices:
        """Return what the watches have brought, cut down as the operator does it."""
        return Indices(
            training_jobs=Index(lambda: self._index(KIND, parsing.training_job)),
            jobs=Index(lambda: self._index("Job", parsing.job)),
            pods=Index(lambda: self._index("Pod", parsing.pod)),
            config_maps=Index(lambda: self._index("ConfigMap", parsing.config_map)),
            objects={
                kind: Index(lambda kind=kind: self._index(kind, lambda body: parsing.other(kind, body)))  # type: ignore[misc]
                for kind in ("Service", "ServiceAccount", "Role", "RoleBinding")
            },
            profilers=Index(self._profilers),
        )

    def _index(self, kind: str, trim: Callable[[Json], Kept]) -> dict[JobKey, list[Kept]]:
        found: dict[JobKey, list[Kept]] = {}
        for (each, name), body in self._seen.items():
            labels = body["metadata"].get("labels") or {}
            if each != kind or (kind != KIND and labels.get(names.MANAGED_BY_LABEL) != names.MANAGED_BY):
                continue
            version = (kind, body["metadata"]["resourceVersion"])
            if version not in self._trimmed:
                self._trimmed[version] = trim(body)
            owner = name if kind == KIND else labels.get(names.JOB_LABEL, "")
            found.setdefault((self._namespace, owner), []).append(self._trimmed[version])
        return found

    def _profilers(self) -> dict[JobKey, list[Profiler]]:
        found: dict[JobKey, list[Profiler]] = {}
        for (_, owner), jobs in self._index("Job", parsing.job).items():
            for job in jobs:
                for key, profiler in profiler_at_work(job, self._namespace, owner).items():
                    found.setdefault(key, []).append(profiler)
        return found


class Index(Mapping[Any, Any]):
    """An index that is read whenever it is asked."""

    def __init__(self, read: Callable[[], Mapping[Any, Any]]) -> None:
        """Read by `read`."""
        self._read = read

    def __getitem__(self, key: Any) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def _version_of(body: Mapping[str, Any] | None) -> str:
    """Return an object's version; empty for none."""
    return "" if body is None else body["metadata"]["resourceVersion"]
