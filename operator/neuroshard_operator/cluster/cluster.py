"""Looks at the cluster, and does to it what was decided. Decides nothing itself."""

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from neuroshard_api.job.training_job import API_VERSION, KIND
from neuroshard_api.process.printable import printable
from neuroshard_decisions import names
from neuroshard_decisions.actions import Delete, Event, Reads
from neuroshard_decisions.observed.objects import (
    ChildJob,
    Fetched,
    JsonText,
    Node,
    Observed,
    Refusal,
    TrainingJobObject,
)

from neuroshard_operator.cluster.api import CONFLICT, FORBIDDEN, NOT_FOUND, Api, ApiError, Json
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.documents import Documents
from neuroshard_operator.cluster.event_writer import EventWriter
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.job_sets import ChildJobSet, job_set, joined
from neuroshard_operator.settings import Settings
from neuroshard_operator.writes import AnyWrite, CopyConfigMap, Create, Patch, Restore, Writes

NODES_KEPT_S = 10.0
"""One list of nodes serves all passes of this time: many jobs that begin together ask for it once."""
SPECIFIED = {"spec", "rules", "subjects", "automountServiceAccountToken"}
"""Fields of children next to their metadata that can be changed."""
NEVER_PATCHED = {"ServiceAccount"}
"""Kinds that the operator has no right to change."""
GARBAGE_COLLECTION = {"foregroundDeletion", "orphan"}
"""Finalizers of Kubernetes' own, which go once the dependents do."""
GOES_WITHIN_S = 10.0
"""How long an object that is being deleted is waited for before people hear of it."""
REFUSED = (400, 403, 404, 413, 422)
"""Answers to a write that the same write will get again, at least for a while."""

logger = logging.getLogger(__name__)


class StaleError(Exception):
    """What was looked at has changed meanwhile; look again."""


class Cluster:
    """One API server through caches and calls. Belongs to one event loop."""

    def __init__(
        self, api: Api, caches: Caches, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Use an API and the caches over the same cluster; `clock` counts seconds."""
        self._api = api
        self._caches = caches
        self._settings = settings
        self._clock = clock
        self._documents = Documents(api)
        self._events = EventWriter(api)
        self._refusals: dict[JobKey, tuple[Refusal, ...]] = {}
        self._specs: dict[JobKey, tuple[str, float, JsonText | None]] = {}
        """Specs as they were read last: version of the job, time, and the spec if it is kept."""
        self._taken_since_s: dict[JobKey, dict[tuple[str, str], float]] = {}
        self._nodes: tuple[Node, ...] = ()
        self._nodes_at_s: float | None = None

    def observe(self, key: JobKey) -> Observed | None:
        """Return the state of a job as the watches have it; None where there is no such job."""
        job = self._caches.training_job(key)
        if job is None:
            return None
        return Observed(
            job=job,
            jobs=joined(self._caches.jobs(key), self._caches.job_sets(key)),
            pods=self._caches.pods(key),
            config_maps=self._documents.known(key, self._caches.config_maps(key)),
            objects=self._caches.objects(key),
            refusals=self._refusals.pop(key, ()),
            half_started=self._caches.half_started(key),
        )

    async def with_spec(self, observed: Observed) -> Observed:
        """Return the same with the spec as the API server has it now.

        A spec that is too large to be kept is read each time. Others are read again after an interval: a newer
        definition fills in its defaults as an object is read, and changes no version that a watch would bring.

        Raises ApiError, and StaleError.
        """
        job = observed.job
        key, version = (job.namespace, job.meta.name), job.meta.resource_version
        known = self._specs.get(key)
        if known is None or known[0] != version:
            known = self._specs[key] = (version, self._clock(), job.stored_spec)
        _, at_s, spec = known
        is_old = self._clock() - at_s >= self._settings.resync_seconds and "completionTime" not in job.status
        if spec is None or (is_old and not job.unreadable):
            found = parsing.training_job(await self._get(KIND, job, job.meta.name))
            if found.meta.resource_version == version:
                self._specs[key] = (version, self._clock(), found.to_keep.stored_spec)
                spec = found.stored_spec
            elif spec is None:
                raise StaleError(f"{job.meta.name} has changed since it was observed")
        return replace(observed, job=replace(job, stored_spec=spec))

    async def fetch(self, observed: Observed, reads: Reads) -> Observed:
        """Return the same with what no watch brings: contents of ConfigMaps, nodes, files of users. Raises ApiError."""
        key = (observed.job.namespace, observed.job.meta.name)
        config_maps, bodies = await self._documents.read(key, observed.config_maps, reads.documents)
        unseen = {place: await self._unseen(observed.job, *place) for place in reads.jobs}
        files = [await self._fetch(observed.job.namespace, name, file_key) for name, file_key in reads.files]
        warnings = {uid: await self._last_warning(observed.job.namespace, uid) for uid in reads.events}
        nodes = await self._list_nodes() if reads.nodes else observed.nodes
        # Last, for the decision follows without a pause: of several jobs at once only one profiles.
        others = self._caches.other_profilers(key)
        return replace(
            observed,
            jobs=self._with_unseen(key, observed.jobs, unseen.values()) if unseen else observed.jobs,
            missing_jobs=observed.missing_jobs | {place for place, (job, _) in unseen.items() if job is None},
            config_maps=config_maps,
            nodes=nodes,
            fetched=(*observed.fetched, *files),
            bodies={**observed.bodies, **bodies},
            warnings={**observed.warnings, **warnings},
            other_profilers=others,
        )

    async def apply(self, observed: Observed, decision: Writes) -> float | None:
        """Apply a decision: the status first, so that nothing is done on a context that is out of date.

        A write that the API server refuses ends the work of this pass, and the next pass gets the error.

        Returns:
            In how many seconds the next pass is due next to what was decided: 0 after a refusal that is new, a few
            while
            a watch has not brought what was made; None: when something changes.

        Raises:
            StaleError: the job changed since it was looked at.
            ApiError: the API server is out of reach or overloaded.
        """
        key = (observed.job.namespace, observed.job.meta.name)
        self._claim_profiles(key, decision.actions)
        if decision.status is not None:
            await self._write_status(
                key, observed.job, decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            )
        elif decision.actions:
            await self._check_is_fresh(observed.job)
        # What the actions meet may end this pass, and the next one has no news of the status any more: gather lets the
        # events be written even then.
        _, due_s = await asyncio.gather(
            self._events.write(observed.job, decision.events), self._act(key, observed, decision)
        )
        return due_s

    async def _act(self, key: JobKey, observed: Observed, decision: Writes) -> float | None:
        """Do the actions; see `apply`."""
        for actions in _together(decision.actions):
            done = await asyncio.gather(*(self._do(key, observed, action) for action in actions))
            refused = tuple(refusal for refusal in done if refusal is not None)
            if refused:
                self._refusals[key] = refused
                return None if refused == tuple(observed.refusals) else 0.0
        return self._caches.unseen_s(key)

    async def report(self, key: JobKey, event: Event) -> None:
        """Write an event about a job outside of a decision."""
        job = self._caches.training_job(key)
        if job is not None:
            await self._events.write(job, [event])

    def forget_contents(self, key: JobKey) -> None:
        """Drop what was read for a job that has ended: nothing of it is asked for again."""
        self._documents.forget(key)

    def forget(self, key: JobKey) -> None:
        """Drop what is kept for a job that is gone."""
        self._refusals.pop(key, None)
        self._taken_since_s.pop(key, None)
        self._specs.pop(key, None)
        self._documents.forget(key)
        self._caches.forget(key)

    # Looking

    def _claim_profiles(self, key: JobKey, actions: Sequence[AnyWrite]) -> None:
        for action in actions:
            if isinstance(action, Create) and action.manifest["kind"] == "Job":
                profile_key = action.manifest["metadata"]["labels"].get(names.PROFILE_KEY_LABEL)
                if profile_key:
                    self._caches.claim_profile(key, profile_key)

    async def _unseen(
        self, owner: TrainingJobObject, role: str, attempt: int
    ) -> tuple[ChildJob | None, ChildJobSet | None]:
        """Return the Job of an attempt that no watch shows, and its JobSet, with the labels by which watches find that.

        None where there is none, or another owner's.
        """
        namespace, name = owner.namespace, owner.meta.name
        body = await self._owned("Job", namespace, names.job_of_attempt(role, name, attempt), owner.meta.uid)
        if body is not None or not self._settings.job_sets:
            return None if body is None else parsing.job(body), None
        body = await self._owned(names.JOB_SET, namespace, names.job_set(name, attempt), owner.meta.uid)
        if body is None:
            return None, None
        found = job_set(await self._relabelled(owner, names.JOB_SET, body, job_set(body).whole.lost_labels))
        body = await self._owned(
            "Job", namespace, names.job_of_set(names.PARTS_OF_SET[role], found.meta.name), found.meta.uid
        )
        return None if body is None else parsing.job(body), found

    async def _owned(self, kind: str, namespace: str, name: str, owner_uid: str) -> Json | None:
        """Return an object; None where there is none, or another owner's."""
        try:
            found = await self._api.get(kind, namespace, name)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return None
        return found if parsing.owner_uid(found) == owner_uid else None

    def _with_unseen(
        self,
        key: JobKey,
        known: Sequence[ChildJob],
        unseen: Iterable[tuple[ChildJob | None, ChildJobSet | None]],
    ) -> Sequence[ChildJob]:
        """Return a job's Jobs together with those that no watch shows."""
        alone = [job for job in known if job.job_set is None]
        jobs = {job.meta.uid: job for job in (*alone, *self._caches.jobs(key))}
        job_sets = {each.meta.uid: each for each in self._caches.job_sets(key)}
        for job, its_set in unseen:
            jobs |= {} if job is None else {job.meta.uid: job}
            job_sets |= {} if its_set is None else {its_set.meta.uid: its_set}
        return joined([*jobs.values()], [*job_sets.values()])

    async def _fetch(self, namespace: str, name: str, key: str) -> Fetched:
        try:
            found = await self._api.get("ConfigMap", namespace, name)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return Fetched(name=name, key=key, content=None)
        if key in (found.get("data") or {}):
            return Fetched(name=name, key=key, content=found["data"][key].encode())
        encoded = (found.get("binaryData") or {}).get(key)
        return Fetched(name=name, key=key, content=None if encoded is None else base64.b64decode(encoded))

    async def _last_warning(self, namespace: str, uid: str) -> str:
        try:
            return printable(await self._api.last_warning(namespace, uid))
        except ApiError as error:
            if error.code != FORBIDDEN:
                raise
            return ""  # the chart of an earlier release gave no right to read events

    async def _list_nodes(self) -> tuple[Node, ...]:
        if not self._settings.read_nodes:
            return ()
        if self._nodes_at_s is None or self._clock() - self._nodes_at_s > NODES_KEPT_S:
            found = [_node(body) for body in await self._api.list_objects("/api/v1/nodes")]
            self._nodes = tuple(node for node in found if node is not None)
            self._nodes_at_s = self._clock()
        return self._nodes

    # Doing

    async def _write_status(self, key: JobKey, job: TrainingJobObject, status: Json) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": job.meta.name,
                "namespace": job.namespace,
                "uid": job.meta.uid,
                "resourceVersion": job.meta.resource_version,
            },
            "status": status,  # the API server keeps the spec that it has
        }
        try:
            written = await self._api.replace_status(body)
        except ApiError as error:
            if error.code in {CONFLICT, NOT_FOUND}:
                raise StaleError(str(error)) from error
            raise
        version = str(written["metadata"]["resourceVersion"])
        found = replace(
            job.to_keep,
            meta=replace(job.meta, resource_version=version),
            stored_status=JsonText.of(json.dumps(status).encode()),
        )
        self._caches.wrote_status(key, job.meta, found)

    async def _check_is_fresh(self, job: TrainingJobObject) -> None:
        found = await self._get(KIND, job, job.meta.name)
        if found["metadata"]["resourceVersion"] != job.meta.resource_version:
            raise StaleError(f"{job.meta.name} has changed since it was observed")

    async def _do(self, key: JobKey, observed: Observed, action: AnyWrite) -> Refusal | None:
        job = observed.job
        match action:
            case Create():
                return await self._make(key, job, action.manifest)
            case CopyConfigMap():
                return await self._copy(key, observed, action)
            case Restore():
                return await self._restore(key, job, action.manifest)
            case Patch():
                metadata = {**action.change.get("metadata", {}), "uid": action.uid}
                change = {**action.change, "metadata": metadata}
                with contextlib.suppress(ApiError):  # the next pass sees what is left to restore
                    await self._api.patch(action.kind, job.namespace, action.name, change)
            case Delete():
                await self._remove(job, action)
        return None

    async def _copy(self, key: JobKey, observed: Observed, action: CopyConfigMap) -> Refusal | None:
        """Make a ConfigMap with the data of another one, which this pass or an earlier one has read."""
        source = observed.bodies.get(action.source) or await self._get("ConfigMap", observed.job, action.source)
        if source["metadata"]["resourceVersion"] != action.source_version:
            raise StaleError(f"ConfigMap {action.source} has changed since it was observed")
        data: Json = {part: source[part] for part in ("data", "binaryData") if part in source}

        def keep(written: Json) -> None:
            for each in observed.config_maps:
                if each.meta.name == action.source and each.is_read:
                    self._documents.copied(key, parsing.config_map(written), each)

        return await self._make(key, observed.job, {**action.manifest, **data}, made=keep)

    async def _get(self, kind: str, job: TrainingJobObject, name: str) -> Json:
        """Return an object that was there a moment ago."""
        try:
            return await self._api.get(kind, job.namespace, name)
        except ApiError as error:
            if error.code == NOT_FOUND:
                raise StaleError(f"{kind} {name} is gone") from error
            raise

    async def _make(
        self,
        key: JobKey,
        job: TrainingJobObject,
        manifest: Mapping[str, Any],
        *,
        made: Callable[[Json], None] = lambda _: None,
    ) -> Refusal | None:
        """Make an object; `made` gets it where it was not there already."""

        async def create(manifest: Mapping[str, Any]) -> Json:
            written = await self._api.create(manifest)
            made(written)
            return written

        try:
            return await self._write(key, manifest, create)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = await self._get(kind, job, name)
        return await self._judge(key, job, manifest, found)

    async def _judge(
        self, key: JobKey, job: TrainingJobObject, manifest: Mapping[str, Any], found: Json
    ) -> Refusal | None:
        """Return whether an object that was there already is the one that was to be made."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        owners = found["metadata"].get("ownerReferences") or []
        ours = any(owner["uid"] == job.meta.uid and owner.get("controller") for owner in owners)
        shared = "ownerReferences" not in manifest["metadata"]
        labels = found["metadata"].get("labels") or {}
        if ours or (shared and labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY):
            if "deletionTimestamp" in found["metadata"]:
                return self._taken(key, kind, found["metadata"], "an object of this name")
            made = parsing.job(found).lost_labels if kind == "Job" else manifest["metadata"]["labels"]
            self._remember(key, await self._relabelled(job, kind, found, made) | {"kind": kind})
            return None
        if any(owner["kind"] == KIND and owner["name"] == job.meta.name for owner in owners):
            return self._taken(key, kind, found["metadata"], "that of an earlier job of this name")
        return Refusal(kind=kind, name=name, code=CONFLICT, message="exists already", foreign=True)

    def _taken(self, key: JobKey, kind: str, metadata: Json, what: str) -> Refusal:
        """Return that a name is still taken by an object that is being deleted.

        Raises:
            StaleError: it should be gone in a moment.
        """
        finalizers = [str(each) for each in metadata.get("finalizers") or () if each not in GARBAGE_COLLECTION]
        place = (kind, metadata["name"])
        since_s = self._taken_since_s.setdefault(key, {}).setdefault(place, self._clock())
        if not finalizers and self._clock() - since_s < GOES_WITHIN_S:
            raise StaleError(f"{kind} {metadata['name']} is still being deleted")
        waits = f"and waits for its finalizers: {', '.join(finalizers[:5])}" if finalizers else "and does not go"
        hint = "hint: see what holds it, or rename the job"
        message = f"the name is still taken: {what} is being deleted {waits}; {hint}"
        return Refusal(kind=kind, name=metadata["name"], code=CONFLICT, message=message)

    async def _relabelled(self, job: TrainingJobObject, kind: str, found: Json, made: Mapping[str, str]) -> Json:
        """Return an object of ours that no watch shows, with the labels by which watches find it."""
        metadata = found["metadata"]
        labels = metadata.get("labels") or {}
        lost = {label: value for label, value in made.items() if labels.get(label) != value}
        if not lost or kind in NEVER_PATCHED:
            return found
        change = {"metadata": {"uid": metadata["uid"], "labels": lost}}
        try:
            patched = await self._api.patch(kind, job.namespace, metadata["name"], change)
        except ApiError as error:
            logger.warning("labels of %s %s were edited, and stay so: %s", kind, metadata["name"], error)
            return found
        logger.warning("labels of %s %s were edited and are restored", kind, metadata["name"])
        return patched

    async def _restore(self, key: JobKey, job: TrainingJobObject, manifest: Mapping[str, Any]) -> Refusal | None:
        """Set an edited child right by a merge patch.

        Server-side apply would merge lists and maps with those that the object was created with, as both of one
        manager but of two operations.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = await self._get(kind, job, name)
        if not any(owner["uid"] == job.meta.uid for owner in found["metadata"].get("ownerReferences") or ()):
            raise StaleError(f"{kind} {name} is another one by now")
        change = {part: _replacing(found.get(part), manifest[part]) for part in manifest.keys() & SPECIFIED}
        change["metadata"] = {"uid": found["metadata"]["uid"]}

        async def patched(manifest: Mapping[str, Any]) -> Json:
            return await self._api.patch(manifest["kind"], job.namespace, name, change)

        return await self._write(key, manifest, patched)

    async def _write(
        self, key: JobKey, manifest: Mapping[str, Any], how: Callable[[Mapping[str, Any]], Any]
    ) -> Refusal | None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            written = await how(manifest)
        except ApiError as error:
            if error.code not in REFUSED:
                raise
            return Refusal(kind=kind, name=name, code=error.code, message=str(error))
        self._taken_since_s.get(key, {}).pop((kind, name), None)
        self._remember(key, written | {"kind": kind})
        return None

    def _remember(self, key: JobKey, written: Json) -> None:
        kind = written["kind"]
        match kind:
            case "Job":
                self._caches.wrote(key, kind, parsing.job(written))
            case names.JOB_SET:
                self._caches.wrote(key, kind, job_set(written))
            case "ConfigMap":
                self._caches.wrote(key, kind, parsing.config_map(written))
            case _:
                self._caches.wrote(key, kind, parsing.other(kind, written))

    async def _remove(self, job: TrainingJobObject, action: Delete) -> None:
        propagation = "Foreground" if action.wait_for_pods else "Background"
        try:
            await self._api.delete(action.kind, job.namespace, action.name, uid=action.uid, propagation=propagation)
        except ApiError as error:
            if error.code not in {CONFLICT, NOT_FOUND}:  # gone, or another object has the name by now
                raise


def _node(body: Json) -> Node | None:
    """Return a node; None for one that cannot be read, which no job is planned for."""
    try:
        return parsing.node(body)
    except Exception as error:  # noqa: BLE001 - whatever a node's agents have found to put into it
        logger.warning("a node cannot be read: %s: %s", type(error).__name__, error)
        return None


def _replacing(found: Any, wanted: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the merge patch that makes the maps below `wanted` equal to it; of `found` itself other keys stay."""
    if not isinstance(wanted, Mapping):
        return wanted
    below = found if isinstance(found, Mapping) else {}
    return {key: _exactly(below.get(key), value) for key, value in wanted.items()}


def _exactly(found: Any, wanted: Any) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(wanted, Mapping):
        return wanted
    removed = dict.fromkeys(found.keys() - wanted.keys()) if isinstance(found, Mapping) else {}
    return {**removed, **wanted}


def _together(actions: Sequence[AnyWrite]) -> Iterator[list[AnyWrite]]:
    """Return actions in groups that may be done side by side: what an object needs is made before it."""
    for is_create, run in groupby(actions, key=lambda action: isinstance(action, Create)):
        if is_create:
            yield from (list(group) for _, group in groupby(sorted(run, key=_turn), key=_turn))
        else:
            yield from ([action] for action in run)


def _turn(action: AnyWrite) -> int:
    """Return after how many others an object is made: a binding's Role must be there, and what a Job's pods mount."""
    return (
        {"RoleBinding": 1, "Job": 2, names.JOB_SET: 2}.get(action.manifest["kind"], 0)
        if isinstance(action, Create)
        else 0
    )
