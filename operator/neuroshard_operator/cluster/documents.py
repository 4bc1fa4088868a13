"""Contents of ConfigMaps, read when a pass asks for them: anybody may fill one, so no watch keeps any."""

import asyncio
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from neuroshard_decisions.observed.objects import ChildConfigMap
from neuroshard_decisions.observed.results import PlanResult

from neuroshard_operator.cluster.api import NOT_FOUND, Api, ApiError, Json
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.observed import parsing

INLINE_BYTES = 16 * 1024
"""Contents up to this size are parsed at once; larger ones in a thread, next to which other jobs go on."""
PARSERS = 2
"""Threads that parse: bounds the memory of a start with many large plans, for the allocator keeps some for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A ConfigMap with the meaning of its data, and the version that a watch had brought when it was read."""

    uid: str
    version: str
    config_map: ChildConfigMap

    def is_of(self, seen: ChildConfigMap) -> bool:
        """Return whether this is what was read of the version seen."""
        return (self.uid, self.version) == (seen.meta.uid, seen.meta.resource_version)


class Documents:
    """What was read, by job and version; profiles that jobs share are read once for all. Belongs to one event loop."""

    def __init__(self, api: Api) -> None:
        """Read by an API."""
        self._api = api
        self._read: dict[JobKey, dict[str, _Entry]] = {}
        self._parsers = ThreadPoolExecutor(PARSERS, thread_name_prefix="documents")
        self._locks: WeakValueDictionary[tuple[JobKey, str], asyncio.Lock] = WeakValueDictionary()

    def known(self, key: JobKey, seen: Iterable[ChildConfigMap]) -> list[ChildConfigMap]:
        """Return the ConfigMaps of a job, those with their contents that were read in the version seen.

        `seen` is all that the job and its namespace have: what is kept of others is dropped.
        """
        found = []
        kept: dict[JobKey, dict[str, _Entry]] = {key: {}, _namespace(key): {}}
        for each in seen:
            place, name = _place(key, each), each.meta.name
            entry = self._read.get(place, {}).get(name)
            if entry is not None and entry.is_of(each):
                kept[place][name] = entry
                found.append(entry.config_map)
            else:
                found.append(each)
        for place, entries in kept.items():
            if entries or place in self._read:
                self._read[place] = entries
        return found

    async def read(
        self, key: JobKey, seen: Iterable[ChildConfigMap], names: Collection[str]
    ) -> tuple[tuple[ChildConfigMap, ...], dict[str, Json]]:
        """Read the ConfigMaps of a job that `names` names.

        Returns:
            All that were seen, those of `names` with their contents, without those that are gone; and the bodies that
            were read, by name.

        Raises:
            ApiError: the API server is out of reach or refuses.
        """
        found: list[ChildConfigMap] = []
        bodies: dict[str, Json] = {}
        for each in seen:
            if each.meta.name not in names:
                found.append(each)
                continue
            place = (_place(key, each), each.meta.name)
            # Many jobs ask for one profile at once: the first reads it, the others find it read.
            async with self._locks.setdefault(place, asyncio.Lock()):
                entry = self._read.get(place[0], {}).get(place[1])
                if entry is None or not entry.is_of(each):
                    entry = await self._one(key[0], each, bodies)
                    if entry is not None:
                        self._read.setdefault(place[0], {})[place[1]] = entry
            if entry is not None:
                found.append(entry.config_map)
        return tuple(found), bodies

    def copied(self, key: JobKey, copy: ChildConfigMap, source: ChildConfigMap) -> None:
        """Keep what a copy says that was just made of a ConfigMap that was read: the same as its source."""
        document = source.document
        digest = document.hash if isinstance(document, PlanResult) else ""
        read = replace(copy, is_read=True, content_hash=digest, document=document)
        entry = _Entry(uid=copy.meta.uid, version=copy.meta.resource_version, config_map=read)
        self._read.setdefault(_place(key, copy), {})[copy.meta.name] = entry

    def forget(self, key: JobKey) -> None:
        """Drop what is kept for a job that has ended or is gone."""
        self._read.pop(key, None)

    async def _one(self, namespace: str, seen: ChildConfigMap, bodies: dict[str, Json]) -> _Entry | None:
        try:
            body = await self._api.get("ConfigMap", namespace, seen.meta.name)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return None
        if body["metadata"].get("uid", "") != seen.meta.uid:
            return None
        bodies[seen.meta.name] = body
        read = await self._parsed(body)
        return _Entry(uid=seen.meta.uid, version=seen.meta.resource_version, config_map=read)

    async def _parsed(self, body: Json) -> ChildConfigMap:
        values = (*(body.get("data") or {}).values(), *(body.get("binaryData") or {}).values())
        if sum(len(value) for value in values) <= INLINE_BYTES:
            return parsing.config_map_with_data(body)
        return await asyncio.get_running_loop().run_in_executor(self._parsers, parsing.config_map_with_data, body)


def _namespace(key: JobKey) -> JobKey:
    """Return the key of what the jobs of a namespace share."""
    return key[0], ""


def _place(key: JobKey, config_map: ChildConfigMap) -> JobKey:
    """Return under which key a ConfigMap is kept: a profile without owner belongs to the namespace."""
    return key if config_map.meta.owner_uid else _namespace(key)
