"""Contents of ConfigMaps, read when a pass asks for them: anybody may fill one, so no watch keeps any."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from neuroshard_operator.cluster.api import NOT_FOUND, Api, ApiError
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.objects import ChildConfigMap

INLINE_BYTES = 16 * 1024
"""Contents up to this size are parsed at once; larger ones in a thread, beside which other jobs go on."""
PARSERS = 2
"""Threads that parse at once: bounds the memory of a start with many large plans."""


class Documents:
    """What was read, by job and version. Belongs to one event loop."""

    def __init__(self, api: Api) -> None:
        """Read by an API."""
        self._api = api
        self._read: dict[JobKey, dict[str, tuple[str, str, ChildConfigMap]]] = {}
        self._parsers = asyncio.Semaphore(PARSERS)

    def known(self, key: JobKey, seen: Iterable[ChildConfigMap]) -> list[ChildConfigMap]:
        """Return the ConfigMaps of a job, those with their contents that were read in the version seen."""
        found = []
        kept: dict[str, tuple[str, str, ChildConfigMap]] = {}
        for each in seen:
            entry = self._read.get(key, {}).get(each.meta.name)
            if entry is not None and entry[:2] == (each.meta.uid, each.meta.resource_version):
                kept[each.meta.name] = entry
                found.append(entry[2])
            else:
                found.append(each)
        if kept or key in self._read:
            self._read[key] = kept
        return found

    async def read(
        self, key: JobKey, seen: Iterable[ChildConfigMap], names: Collection[str]
    ) -> tuple[ChildConfigMap, ...]:
        """Return the ConfigMaps of a job, those of `names` with their contents. Those that are gone are left out.

        Raises:
            ApiError: the API server is out of reach or refuses.
        """
        found = [each if each.meta.name not in names else await self._one(key, each) for each in seen]
        return tuple(each for each in found if each is not None)

    def forget(self, key: JobKey) -> None:
        """Drop what is kept for a job that is gone."""
        self._read.pop(key, None)

    async def _one(self, key: JobKey, seen: ChildConfigMap) -> ChildConfigMap | None:
        try:
            body = await self._api.get("ConfigMap", key[0], seen.meta.name)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return None
        if body["metadata"].get("uid", "") != seen.meta.uid:
            return None
        read = await self._parsed(body)
        entry = (seen.meta.uid, seen.meta.resource_version, read)
        self._read.setdefault(key, {})[seen.meta.name] = entry
        return read

    async def _parsed(self, body: Mapping[str, Any]) -> ChildConfigMap:
        values = (*(body.get("data") or {}).values(), *(body.get("binaryData") or {}).values())
        if sum(len(value) for value in values) <= INLINE_BYTES:
            return parsing.config_map_with_data(body)
        async with self._parsers:
            return await asyncio.to_thread(parsing.config_map_with_data, body)
