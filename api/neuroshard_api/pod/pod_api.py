"""The Kubernetes API as a pod sees it: its service account, over the standard library's HTTP. Sends one kind of call.

Pods of any image can use it; the official client, which needs 40 packages, stays out of them.
"""

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

if TYPE_CHECKING:
    from neuroshard_api.documents.config_map import ConfigMapContents

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's token, the cluster's authority and the namespace."""
FIELD_MANAGER = "neuroshard-publish"
CALL_TIMEOUT_S = 30.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
RETRIED = (401, 403, 409, 429, 500, 502, 503, 504)
"""Passing states: a token that was just rotated, a conflict, an API server that is busy or going down."""
FORBIDDEN_FOR_S = 30.0
"""An API server that has just started knows no roles yet and forbids everything; after this time it means it."""
HINTS = {
    403: "its service account may not patch this ConfigMap, or the ConfigMap was deleted",
    404: "there is no such ConfigMap; hint: create it before the pod",
    413: "the result is too large",
}


class ApiUnavailableError(Exception):
    """A call that may succeed later: no answer, or one of RETRIED.

    Attributes:
        retry_after_s: the API server asks to wait so long.
        passes_within_s: it lasts no longer if it passes at all.
    """

    def __init__(self, problem: str, *, retry_after_s: float = 0.0, passes_within_s: float = math.inf) -> None:
        self.retry_after_s = retry_after_s
        self.passes_within_s = passes_within_s
        super().__init__(problem)


@dataclass(frozen=True, kw_only=True, slots=True)
class PodApi:
    """The API server, and who we are to it. Reads the token at each call, for the kubelet rotates it."""

    host: str
    port: int
    service_account: Path = SERVICE_ACCOUNT

    @property
    def namespace(self) -> str:
        """The pod's namespace. Raises CommandError where there is no service account."""
        return self._file("namespace")

    def apply_config_map(self, name: str, contents: "ConfigMapContents") -> None:
        """Make a ConfigMap that exists hold exactly these contents, by one server-side apply.

        Keys that an earlier call wrote and this one does not are removed. Others' labels and owners stay.

        Raises:
            ApiUnavailableError: try again later.
            CommandError: the API server refuses the call, or there is no service account.
        """
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": contents.data,
            "binaryData": contents.binary_data,
        }
        path = f"/api/v1/namespaces/{quote(self.namespace)}/configmaps/{quote(name)}"
        headers = {
            "Authorization": f"Bearer {self._file('token')}",
            "Content-Type": "application/apply-patch+yaml",
            "Accept": "application/json",
            "User-Agent": FIELD_MANAGER,
        }
        # The body is read as YAML, which does not know JSON's pairs of \\u escapes.
        payload = json.dumps(body, ensure_ascii=False).encode()
        self._send("PATCH", f"{path}?fieldManager={FIELD_MANAGER}&force=true", payload, headers)

    def _send(self, verb: str, path: str, payload: bytes, headers: Mapping[str, str]) -> None:
        import http.client  # no other command needs HTTP and TLS, which take a tenth of a start
        import ssl

        try:
            context = ssl.create_default_context(cafile=str(self.service_account / "ca.crt"))
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=CALL_TIMEOUT_S, context=context)
            try:
                connection.request(verb, path, payload, dict(headers))
                answer = connection.getresponse()
                text = answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnavailableError(f"the API server at {self.host}:{self.port} does not answer: {error}") from error
        if answer.status >= HTTPStatus.BAD_REQUEST:
            hint = HINTS.get(answer.status, "ask who manages the cluster")
            place = path.partition("?")[0]
            problem = f"{place}: the API server answers {answer.status}: {_message(text)}; hint: {hint}"
            if answer.status not in RETRIED:
                raise CommandError(problem, ExitCode.CLUSTER)
            after = answer.headers.get("Retry-After", "")
            raise ApiUnavailableError(
                problem,
                retry_after_s=float(after) if after.isdigit() else 0.0,
                passes_within_s=FORBIDDEN_FOR_S if answer.status == HTTPStatus.FORBIDDEN else math.inf,
            )

    def _file(self, name: str) -> str:
        path = self.service_account / name
        try:
            return path.read_text().strip()
        except OSError as error:
            problem = (
                f"{path}: cannot be read: {error.strerror}; hint: this command runs in a pod with a service account"
            )
            raise CommandError(problem) from error


def persistently(call: Callable[[], None], *, for_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
    """Call until it succeeds, waiting twice as long after each time that the API is unavailable, at most `for_s`.

    Raises:
        CommandError: the call was refused, or the API was unavailable all the time.
    """
    began = time.monotonic()
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return call()
        except ApiUnavailableError as error:
            pause_s = max(error.retry_after_s, delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            patience_s = min(for_s, error.passes_within_s)
            if time.monotonic() + pause_s > began + patience_s:
                raise CommandError(f"{error}; gave up after {patience_s:.0f} s", ExitCode.CLUSTER) from error
            sleep(pause_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)


def _message(text: bytes) -> str:
    """Return the sentence of a Kubernetes Status object, or the beginning of whatever came instead."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200].decode(errors="replace").strip()
    return str(message) or "no reason given"
