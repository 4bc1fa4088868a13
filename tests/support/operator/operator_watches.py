"""What the operator's watches have brought of a cluster in memory. They may lag behind it."""

import copy
import json
from collections.abc import Collection, Mapping
from typing import Any

from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import Json
from neuroshard_operator.cluster.watched import WatchedObjects
from neuroshard_operator.observed.bounded import bounded

Place = tuple[str, str]
"""Kind and name of an object."""


class Watches:
    """The objects of one namespace as the operator knows them."""

    def __init__(self, objects: Mapping[Place, Json], *, namespace: str) -> None:
        """Watch `objects`; nothing is brought yet."""
        self._objects = objects
        self._namespace = namespace
        self._seen: dict[Place, Json] = {}
        self.brought = WatchedObjects(with_job_sets=True)
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
                if place not in self._lost and place in self._seen:
                    self._drop(place, self._seen.pop(place))
            elif _version_of(self._seen.get(place)) != _version_of(self._objects[place]):
                self._bring(place)

    def _bring(self, place: Place) -> None:
        """Bring an object as the watch of its kind does, whose selector passes our children alone."""
        before, body = self._seen.get(place), copy.deepcopy(self._objects[place])
        self._seen[place] = body
        if before is not None and before["metadata"]["uid"] != body["metadata"]["uid"] and place not in self._lost:
            self._drop(place, before)
        labels = body["metadata"].get("labels") or {}
        if place[0] == KIND or labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY:
            cut = bounded(place[0], json.dumps(body).encode()) if place[0] in self.brought.kinds else None
            if cut is not None:
                self.brought.bring(place[0], json.loads(cut))
        elif before is not None:
            self._drop(place, before)

    def _drop(self, place: Place, body: Json) -> None:
        if place[0] in self.brought.kinds:
            self.brought.drop(place[0], body["metadata"]["uid"])


def _version_of(body: Mapping[str, Any] | None) -> str:
    """Return an object's version; empty for none."""
    return "" if body is None else body["metadata"]["resourceVersion"]
