"""The API server in plain JSON over `kubernetes.aio`: one call, one answer, one kind of error. Decides nothing."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from neuroshard_api.job.training_job import API_VERSION, KIND, PLURAL

from neuroshard_operator import names

Json = dict[str, Any]

PATHS: Mapping[str, tuple[str, str]] = {
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
}
"""Where the kinds that the operator writes are served, and their plural."""

MERGE_PATCH = "application/merge-patch+json"
ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
CONFLICT = 409
FORBIDDEN = 403
NOT_FOUND = 404
_ERRORS_FROM = 400
_SHOWN_BYTES = 200
CALLS = 32
"""Calls at a time: each has a connection of its own, whose TLS buffers take a third of a MiB."""


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
        """Return all objects under a path. Raises ApiError."""


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
        return await self._call("GET", _path(kind, namespace, name))

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
        return await self._call("PUT", path, body=body, query=[("fieldManager", names.FIELD_MANAGER)])

    async def replace(self, body: Mapping[str, Any]) -> Json:
        """Replace an object whose resourceVersion the body names. Raises ApiError."""
        path = f"{_path_of(body)}/{body['metadata']['name']}"
        return await self._call("PUT", path, body=body, query=[("fieldManager", names.FIELD_MANAGER)])

    async def last_warning(self, namespace: str, uid: str) -> str:
        """See Api."""
        query = [("fieldSelector", f"involvedObject.uid={uid},type=Warning"), ("limit", "50")]
        found = await self._call("GET", _path("Event", namespace), query=query)
        events = sorted(found["items"] or [], key=lambda event: event.get("lastTimestamp") or "")
        return f"{events[-1].get('reason', '')}: {events[-1].get('message', '')}" if events else ""

    async def list_metadata(self, path: str, *, selector: str = "") -> list[Json]:
        """See Api."""
        return await self._list(path, selector=selector, accept=ONLY_METADATA)

    async def list_objects(self, path: str) -> list[Json]:
        """See Api."""
        return await self._list(path, selector="", accept="application/json")

    async def _list(self, path: str, *, selector: str, accept: str) -> list[Json]:
        found: list[Json] = []
        first = [("limit", "500"), *([("labelSelector", selector)] if selector else [])]
        query = first
        while True:
            page = await self._call("GET", path, query=query, accept=accept)
            found += page["items"] or []  # metadata alone: an empty list comes as null
            following = page["metadata"].get("continue")
            if not following:
                return found
            query = [*first, ("continue", following)]

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: list[tuple[str, str]] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        async with self._turns:
            if verb != "GET" and not self._may_write():
                raise ApiError(0, "MayNotWrite", f"{verb} {path}: this replica does not hold the lease")
            self._on_call(verb)
            return await self._answer(verb, path, body=body, query=query, content=content, accept=accept)

    async def _answer(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        query: list[tuple[str, str]] | None,
        content: str,
        accept: str,
    ) -> Json:
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
                text = await answer.response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._on_error(verb, 0)
            raise ApiError(0, "NoAnswer", f"{verb} {path}: {error or 'no answer in time'}") from error
        try:
            said: Json = json.loads(text) if text else {}
        except ValueError:  # load balancers and flow control answer in plain text
            said = {"message": text[:_SHOWN_BYTES].decode(errors="replace")}
            if answer.status < _ERRORS_FROM:
                self._on_error(verb, 0)
                raise ApiError(0, "NoJson", f"{verb} {path}: the answer is not JSON") from None
        if answer.status >= _ERRORS_FROM:
            self._on_error(verb, answer.status)
            raise ApiError(answer.status, said.get("reason", ""), said.get("message", f"HTTP {answer.status}"))
        return said


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = PATHS[kind]
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _path_of(manifest: Mapping[str, Any]) -> str:
    return _path(manifest["kind"], manifest["metadata"]["namespace"])
