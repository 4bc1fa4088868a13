"""The periodic list of everything that is watched: finds what watches lost, and watches that stopped. Decides nothing.

A watch can lose deletions, and it can stop without an error. Neither shows in what it brings. So metadata of all
watched kinds is listed now and then. What the watches show and the API server no longer has is dropped. A watch that in
a whole interval has not brought what the list before had is stalled, and the operator is not alive.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from neuroshard_api.job.training_job import API_VERSION, KIND, PLURAL
from neuroshard_decisions import names

from neuroshard_operator.cluster.api import FORBIDDEN, NOT_FOUND, PATHS, Api, ApiError
from neuroshard_operator.cluster.watched import JobKey, WatchedObjects

PODS = ("/api/v1", "pods")
FILL_S = 2.0
"""Without anything new, until what is missing counts as deleted since it was listed."""
FILL_LOOK_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resynced:
    """What one list of everything found."""

    jobs: frozenset[JobKey]
    """Jobs that the API server has."""
    stalled: tuple[str, ...] = ()
    """Kinds whose watch has not brought what the list before already had."""
    unreachable: tuple[str, ...] = ()
    """Namespaces that are gone or that the operator has no rights in."""


class Resync:
    """Lists of one API server over time. Belongs to one event loop."""

    def __init__(self, api: Api, watched: WatchedObjects, namespaces: Sequence[str]) -> None:
        """Compare an API server with what its watches have brought; no namespaces: all of them."""
        self._api = api
        self._watched = watched
        self._namespaces = namespaces
        self._overdue: dict[str, dict[str, str]] = {}
        self._missed: frozenset[str] | None = None

    async def run(self) -> Resynced:
        """List everything once, and forget what is gone.

        Objects are forgotten by DELETED events alone else: a watch that was away for longer than the API server's
        history lists what is there, and never hears of what went meanwhile.

        Raises:
            ApiError: the API server is out of reach, or refuses in every namespace.
        """
        jobs: set[JobKey] = set()
        num_gone = 0
        stalled: list[str] = []
        unreachable: set[str] = set()
        for kind in self._watched.kinds:
            before = self._watched.versions(kind)
            listed, refused = await self._list(kind)
            unreachable |= refused
            if kind == KIND:
                jobs = {place for place, _, _ in listed}
            versions = {uid: version for _, uid, version in listed}
            # A refusal may pass; a namespace that is really gone ends in NamespacesChangedError.
            if not refused:
                num_gone += self._forget(kind, {uid: before[uid] for uid in before.keys() - versions.keys()})
            if self._is_stalled(kind, versions):
                stalled.append(kind)
        if num_gone:
            logger.warning("%d objects are gone whose deletion no watch has brought", num_gone)
        return Resynced(jobs=frozenset(jobs), stalled=tuple(stalled), unreachable=tuple(sorted(unreachable)))

    def _forget(self, kind: str, gone: Mapping[str, str]) -> int:
        """Forget objects that a list lacks, by uid and the version before it; return how many.

        What a watch has brought since then is there again, as an object that got its label back.
        """
        shown = self._watched.versions(kind)
        forgotten = [uid for uid, version in gone.items() if shown.get(uid) == version]
        for uid in forgotten:
            self._watched.drop(kind, uid)
        return len(forgotten)

    async def is_filled(self) -> bool:
        """Wait while the watches bring what the last list had and they do not show; return whether all is there.

        What is missing may have been deleted since, and only another list tells. What lived for less than two lists
        holds nothing up.
        """
        missing, waited_s = self._missing(), 0.0
        while missing and waited_s < FILL_S:
            await asyncio.sleep(FILL_LOOK_S)
            before, missing = missing, self._missing()
            waited_s = waited_s + FILL_LOOK_S if missing == before else 0.0
        lasting, self._missed = missing if self._missed is None else missing & self._missed, missing
        return not lasting

    def _missing(self) -> frozenset[str]:
        """Return the uids of the last list that no watch has brought."""
        overdue = {kind: uids.keys() for kind, uids in self._overdue.items() if uids}
        return frozenset(uid for kind, uids in overdue.items() for uid in uids - self._watched.versions(kind).keys())

    async def _list(self, kind: str) -> tuple[list[tuple[JobKey, str, str]], set[str]]:
        """Return place, uid and version of all objects of a kind, and the namespaces that could not be listed."""
        root, plural = (f"/apis/{API_VERSION}", PLURAL) if kind == KIND else PODS if kind == "Pod" else PATHS[kind]
        selector = "" if kind == KIND else names.SELECTOR
        paths = {namespace: f"{root}/namespaces/{namespace}/{plural}" for namespace in self._namespaces}
        refused: dict[str, ApiError] = {}
        found: list[tuple[JobKey, str, str]] = []
        for namespace, path in (paths or {"": f"{root}/{plural}"}).items():
            try:
                items = await self._api.list_metadata(path, selector=selector)
            except ApiError as error:
                if error.code not in {FORBIDDEN, NOT_FOUND} or not namespace:
                    raise
                refused[namespace] = error
                continue
            for item in items:
                meta = item["metadata"]
                found.append(((meta["namespace"], meta["name"]), meta["uid"], meta["resourceVersion"]))
            await asyncio.sleep(0)  # other work goes on beside a long list
        if refused and len(refused) == len(paths):
            raise next(iter(refused.values()))
        return found, set(refused)

    def _is_stalled(self, kind: str, listed: Mapping[str, str]) -> bool:
        """Return whether the watch still shows the versions that it showed when the list before had others."""
        shown = self._watched.versions(kind)
        waited = self._overdue.get(kind, {})
        stalled = any(uid in listed and shown.get(uid, "") == version for uid, version in waited.items())
        self._overdue[kind] = {
            uid: shown.get(uid, "") for uid, version in listed.items() if shown.get(uid, "") != version
        }
        return stalled


async def reachable(api: Api, namespaces: Collection[str]) -> tuple[str, ...]:
    """Return the namespaces in which jobs can be listed. Raises ApiError where the API server is out of reach."""
    found = []
    for namespace in namespaces:
        try:
            await api.list_metadata(f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}")
        except ApiError as error:
            if error.code not in {FORBIDDEN, NOT_FOUND}:
                raise
            logger.warning("namespace %s is not watched: %s", namespace, error)
        else:
            found.append(namespace)
    return tuple(found)
