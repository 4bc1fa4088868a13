"""Someone who writes objects of all kinds that the operator watches, and wishes it ill."""

import contextlib
import random
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path

from e2e import jobs
from neuroshard_api.job.training_job import API_VERSION, KIND, PLURAL
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import PATHS
from support.operator.hostile import FRAGMENTS, places, with_fragment

ALIVE = 60
"""Objects that are there at once; older ones are deleted."""
TRIES = 5
POD_SPEC = {
    "containers": [{**jobs.LOG_SHIPPER, "name": "trainer"}],
    "restartPolicy": "Never",
    "schedulingGates": [{"name": "example.com/never"}],
    "securityContext": {"runAsNonRoot": True},
}
BODIES: Mapping[str, Object] = {
    KIND: jobs.script_job("x", "true", suspend=True),
    "Pod": {"spec": POD_SPEC},
    "Job": {"apiVersion": "batch/v1", "spec": {"suspend": True, "template": {"spec": POD_SPEC}}},
    "ConfigMap": {},
    "Service": {"spec": {"clusterIP": "None"}},
    "ServiceAccount": {},
    "Role": {"apiVersion": "rbac.authorization.k8s.io/v1"},
    "RoleBinding": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"},
    },
}
"""What an API server takes of each kind that the operator watches, before anything is put into it."""


class Tenant:
    """Writes objects of all kinds with the labels of the operator's own; the seed decides which."""

    def __init__(self, where: Namespace, folder: Path, *, seed: int) -> None:
        self._file = folder / f"hostile-{seed}.json"
        self._kubectl = where.kubectl
        self._namespace = where.name
        self._random = random.Random(seed)  # noqa: S311 - keeps no secret
        self._alive: deque[str] = deque()
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def write(self) -> str:
        """Write an object that the API server takes, as its bytes, which no client reads; return what it is."""
        tried = (self._try() for _ in range(TRIES))
        return next((what for what in tried if what), "nothing that the API server takes")

    def _try(self) -> str:
        """Write one object, and delete the oldest one; return what it is. Empty: the API server refuses it."""
        number = self.taken.total() + self.refused.total()
        kind = self._random.choice(list(BODIES))
        place, fragment = self._random.choice(list(places(kind))), self._random.choice(list(FRAGMENTS))
        job = f"good-{self._random.randrange(9)}"
        labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.JOB_LABEL: job, names.ROLE_LABEL: names.WORKER}
        metadata = {"name": f"hostile-{number}", "labels": labels}
        body = {"apiVersion": "v1", "kind": kind, **BODIES[kind], "metadata": metadata}
        path = self._path(kind)
        self._file.write_bytes(with_fragment(body, place, fragment))
        try:
            self._kubectl("create", f"--raw={path}", f"--filename={self._file}")
        except ClusterError:
            self.refused[kind] += 1
            return ""
        self.taken[kind] += 1
        self._alive.append(f"{path}/hostile-{number}")
        if kind == "Pod":
            self._lie(f"hostile-{number}")
        if len(self._alive) > ALIVE:
            with contextlib.suppress(ClusterError):
                self._kubectl("delete", f"--raw={self._alive.popleft()}")
        return f"a {kind} with {fragment}"

    def _lie(self, pod: str) -> None:
        """Write the status of a pod as a kubelet with another clock would."""
        at = self._random.choice(("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"))
        ended = {
            "exitCode": self._random.choice((0, 1, 2, 255)),
            "startedAt": at,
            "finishedAt": at,
            "message": "\x1b[2J",
        }
        status = {"name": "trainer", "image": "x", "imageID": "", "ready": False, "restartCount": 2**31 - 1}
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "x", "lastTransitionTime": at}
        change = {
            "phase": self._random.choice(("Failed", "Succeeded", "Running")),
            "conditions": [condition],
            "containerStatuses": [{**status, "state": {"terminated": ended}}],
        }
        with contextlib.suppress(ClusterError):
            self._kubectl.patch("pod", pod, {"status": change}, subresource="status")

    def _path(self, kind: str) -> str:
        root, plural = {KIND: (f"/apis/{API_VERSION}", PLURAL), "Pod": ("/api/v1", "pods")}.get(kind) or PATHS[kind]
        return f"{root}/namespaces/{self._namespace}/{plural}"
