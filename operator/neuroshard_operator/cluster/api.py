"""The API server in plain JSON over `kubernetes.aio`: one call, one answer, one kind of error. Decides nothing."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from neuroshard_api.job.training_job import API_VERSION, KIND, PLURAL
from neuroshard_decisions import names

from neuroshard_operator.observed.bounded import EVENT, NAMED, NODE, SHAPES, Shape, cut
from neuroshard_operator.observed.json_text import ItemReader

logger = logging.getLogger(__name__)
Json = dict[str, Any]

PATHS: Mapping[str, tuple[str, str]] = {
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Job": ("/apis/batch/v1", "jobs"),
    names.JOB_SET: ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
}
"""Where the kinds that the operator writes are served, and their plural."""

MERGE_PATCH = "application/merge-patch+json"
METADATA_OF_ALL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONLY_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
CONFLICT = 409
FORBIDDEN = 403
NOT_FOUND = 404
_ERRORS_FROM = 400
_SHOWN_BYTES = 200
CHUNK_BYTES = 64 * 1024
CALLS = 32
"""Calls at a time: each has its own connection, whose TLS buffers take a third of a MiB."""


class ApiError(Exception):
    """The API server rejected a request, or did not answer.

    Attributes:
        code: the HTTP status; 0 where there was no answer.
        reason: Kubernetes' word for it, such as AlreadyExists.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(message)


class Api(Protocol):
    """What the operator asks of an API server."""

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object. Raises ApiError."""

    async def create(self, manifest: Mapping[str, Any]) -> Json:
        """Create an object and return it. Raises ApiError."""

    async def patch(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """Merge a change into an object. Raises ApiError."""

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """Delete the object with that uid. Raises ApiError."""

    async def replace_status(self, body: Mapping[str, Any]) -> Json:
        """Replace the status of a job whose resourceVersion the body names. Raises ApiError."""

    async def last_warning(self, namespace: str, uid: str) -> str:
        """Return reason and message of the newest Warning event about an object; empty: none. Raises ApiError."""

    async def list_metadata(self, path: str, *, selector: str = "") -> list[Json]:
        """Return the metadata of all objects under a path that have the labels of a selector. Raises ApiError."""

    async def list_objects(self, path: str) -> list[Json]:
        """Return all nodes under a path, cut down to what is read of them. Raises ApiError."""


class KubernetesApi:
    """The API server of one kubeconfig or service account."""

    def __init__(
        self,
        client: ApiClient,
        *,
        timeout_s: float,
        on_call: Callable[[str], None],
        on_error: Callable[[str, int], None],
        may_write: Callable[[], bool] = lambda: True,
        calls: int = CALLS,
    ) -> None:
        """Use a client.

        Args:
            client: of one API server.
            timeout_s: of each call.
            on_call: gets the verb of each call.
            on_error: gets the verb and the HTTP status of each call that failed.
            may_write: asked before each call that changes something, which fails where the answer is no.
            calls: maximum at a time; others wait for their turn, which is not part of `timeout_s`.
        """
        self._client = client
        self._timeout_s = timeout_s
        self._on_call = on_call
        self._on_error = on_error
        self._may_write = may_write
        self._turns = asyncio.Semaphore(calls)

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """See Api."""
        # A job has what its tenant put into it; other kinds are read for their contents.
        shape = SHAPES[KIND] if kind == KIND else None
        return await self._call("GET", _path(kind, namespace, name), shape=shape)

    async def create(self, manifest: Mapping[str, Any]) -> Json:
        """See Api."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        return await self._call("POST", _path_of(manifest), body=manifest, query=query)

    async def patch(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """See Api."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        return await self._call("PATCH", _path(kind, namespace, name), body=change, query=query, content=MERGE_PATCH)

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """See Api."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        await self._call("DELETE", _path(kind, namespace, name), body=options)

    async def replace_status(self, body: Mapping[str, Any]) -> Json:
        """See Api."""
        path = f"{_path_of(body)}/{body['metadata']['name']}/status"
        query = [("fieldManager", names.FIELD_MANAGER)]
        return await self._call("PUT", path, body=body, query=query, accept=ONLY_METADATA, shape=NAMED)

    async def replace(self, body: Mapping[str, Any]) -> Json:
        """Replace an object whose resourceVersion the body names. Raises ApiError."""
        path = f"{_path_of(body)}/{body['metadata']['name']}"
        return await self._call("PUT", path, body=body, query=[("fieldManager", names.FIELD_MANAGER)])

    async def last_warning(self, namespace: str, uid: str) -> str:
        """See Api."""
        query = [("fieldSelector", f"involvedObject.uid={uid},type=Warning"), ("limit", "50")]
        found = await self._page(_path("Event", namespace), query=query, accept="application/json", shape=EVENT)
        events = sorted(found["items"], key=lambda event: event.get("lastTimestamp") or "")
        return f"{events[-1].get('reason', '')}: {events[-1].get('message', '')}" if events else ""

    async def serves(self, kind: str) -> bool:
        """Return whether the API server has a kind. Raises ApiError."""
        root, plural = PATHS[kind]
        try:
            found = await self._call("GET", root)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return any(each["name"] == plural for each in found["resources"])

    async def list_metadata(self, path: str, *, selector: str = "") -> list[Json]:
        """See Api."""
        return await self._list(path, selector=selector, accept=METADATA_OF_ALL, shape=NAMED)

    async def list_objects(self, path: str) -> list[Json]:
        """See Api."""
        return await self._list(path, selector="", accept="application/json", shape=NODE)

    async def _list(self, path: str, *, selector: str, accept: str, shape: Shape) -> list[Json]:
        found: list[Json] = []
        first = [("limit", "500"), *([("labelSelector", selector)] if selector else [])]
        query = first
        while True:
            page = await self._page(path, query=query, accept=accept, shape=shape)
            found += page["items"]
            following = page["metadata"].get("continue")
            if not following:
                return found
            query = [*first, ("continue", following)]

    async def _page(self, path: str, *, query: list[tuple[str, str]], accept: str, shape: Shape) -> Json:
        """Return one page of a list, each item cut down to a shape; one that cannot be read is left out."""
        items: list[Json] = []

        def take(item: bytes) -> None:
            try:
                items.append(json.loads(cut(item, shape, where=path)))
            except ValueError as error:
                logger.warning("an object cannot be read: %s", error)

        page = await self._call("GET", path, query=query, accept=accept, reader=ItemReader(), on_item=take)
        return {**page, "items": items}

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: list[tuple[str, str]] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        shape: Shape = None,
        reader: ItemReader | None = None,
        on_item: Callable[[bytes], None] = lambda _: None,
    ) -> Json:
        """Make a call; return its answer, cut down to a shape. Of a list the items go to `on_item`."""
        async with self._turns:
            if verb != "GET" and not self._may_write():
                raise ApiError(0, "MayNotWrite", f"{verb} {path}: this replica does not hold the lease")
            self._on_call(verb)
            status, text = await self._answer(
                verb, path, body=body, query=query, content=content, accept=accept, reader=reader, on_item=on_item
            )
        is_error = status >= _ERRORS_FROM
        try:
            said: Json = json.loads(cut(text, None if is_error else shape, where=f"{verb} {path}")) if text else {}
        except ValueError as error:  # load balancers and flow control answer in plain text
            if not is_error:
                self._on_error(verb, 0)
                raise ApiError(0, "Unreadable", f"{verb} {path}: the answer cannot be read: {error}") from None
            said = {"message": text[:_SHOWN_BYTES].decode(errors="replace")}
        if is_error:
            self._on_error(verb, status)
            raise ApiError(status, said.get("reason", ""), said.get("message", f"HTTP {status}"))
        return said

    async def _answer(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        query: list[tuple[str, str]] | None,
        content: str,
        accept: str,
        reader: ItemReader | None,
        on_item: Callable[[bytes], None],
    ) -> tuple[int, bytes]:
        """Return status and text of an answer; of a list without its items."""
        try:
            async with asyncio.timeout(self._timeout_s):
                request = await self._client.param_serialize(
                    verb,
                    path,
                    query_params=query or [],
                    header_params={"Accept": accept, "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                answer = await self._client.call_api(*request)
                if reader is None or answer.status >= _ERRORS_FROM:
                    return answer.status, await answer.response.read()
                async for chunk in answer.response.content.iter_chunked(CHUNK_BYTES):
                    for item in reader.feed(chunk):
                        on_item(item)
                return answer.status, reader.rest()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._on_error(verb, 0)
            raise ApiError(0, "NoAnswer", f"{verb} {path}: {error or 'no answer in time'}") from error


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = PATHS[kind]
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _path_of(manifest: Mapping[str, Any]) -> str:
    return _path(manifest["kind"], manifest["metadata"]["namespace"])
