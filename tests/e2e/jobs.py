"""Jobs of the end-to-end tests, and what a user sees of them."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.images import PLANNER
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.waiting import WITHIN_S, eventually

KIND = "dlrmtrainingjob"
JOB_LABEL = "training.neuroshard.dev/job-name"
ROLE_LABEL = "training.neuroshard.dev/role"
ATTEMPT_LABEL = "training.neuroshard.dev/attempt"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
DEVICE = "h200-141gb"
TABLES = [
    {"name": "users", "numEmbeddings": 20000, "embeddingDim": 32},
    {"name": "goods", "numEmbeddings": 5000, "embeddingDim": 32, "poolingFactor": 3},
    {"name": "shops", "numEmbeddings": 1000, "embeddingDim": 32},
    {"name": "words", "numEmbeddings": 8000, "embeddingDim": 32, "poolingFactor": 5},
]
SIMULATED = {"backend": "Simulated", "deviceType": DEVICE, "budgetSeconds": 5}
BUNDLED = {"policy": "Never", "deviceType": DEVICE}
"""No profiler: the cost models that come with the planner."""
_AMOUNTS = ("requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "limits"},
    "spec": {"hard": dict(zip(_AMOUNTS, ("100", "200Gi", "100", "200Gi"), strict=True))},
}
"""What refuses pods with a container that has no limits."""
LOG_SHIPPER = {
    "name": "log-shipper",
    "image": PLANNER.tag,
    "command": ["sleep", "900"],
    "resources": {"limits": {"cpu": "10m", "memory": "16Mi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
"""A container next to the trainer that runs on; a namespace of the restricted Pod Security Standard takes it."""


def training_job(name: str, **spec: Any) -> Object:
    """Return a job of two workers with one mocked GPU each, trained for real over gloo; `spec` replaces parts."""
    defaults = {
        "model": {"embeddingTables": TABLES, "batchSizePerDevice": 256},
        "profiler": SIMULATED,
        "trainer": {
            "numNodes": 2,
            "numProcPerNode": 1,
            "resourcesPerNode": {"limits": {RESOURCE: 1}},
            "args": ["--device", "cpu"],  # a mocked GPU computes nothing
        },
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 10, **spread(name)}},
        "data": {"numSamples": 20000},
        "training": {"logEverySteps": 10},
    }
    return {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": name},
        "spec": copy.deepcopy({**defaults, **spec}),
    }


def script_job(name: str, script: str, *, gpus: int = 1, nodes: int = 1, **spec: Any) -> Object:
    """Return a job whose workers run a shell script in place of a trainer, under a plan of the bundled cost models."""
    trainer = {
        "image": PLANNER.tag,
        "command": ["sh", "-c", script],
        "numNodes": nodes,
        "numProcPerNode": 1,
        "resourcesPerNode": {"limits": {RESOURCE: gpus}},
    }
    return training_job(name, **{"profiler": BUNDLED, "trainer": trainer, **spec})


HELD = "until [ -e /tmp/finish ]; do sleep 0.5; done"
"""Script of a worker that runs until `finish`, however long a busy machine takes for what the test does meanwhile."""


def finish(kubectl: Kubectl, name: str, *roles: str) -> None:
    """Let the workers, or the pods of these roles in turn, of a running job whose script is `HELD` exit with 0."""
    for role in roles or ("worker",):
        for pod in names(list(newest(kubectl, name, role).values())):
            eventually(f"{pod} finishes", partial(_let_finish, kubectl, pod))


def _let_finish(kubectl: Kubectl, pod: str) -> bool:
    """Let a pod finish, and return whether it knows: one that has succeeded does."""
    if kubectl.get("pod", pod)["status"]["phase"] != "Succeeded":
        kubectl("exec", pod, "--container=trainer", "--", "touch", "/tmp/finish")  # noqa: S108
    return True


def spread(name: str) -> dict[str, Any]:
    """Return the affinity that puts a job's workers on different nodes."""
    labels = {"matchLabels": {JOB_LABEL: name, ROLE_LABEL: "worker"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def preferred(node: str, operator: str) -> dict[str, Any]:
    """Return the affinity of pods that would rather be, or not be, on a node."""
    terms = [{"key": "kubernetes.io/hostname", "operator": operator, "values": [node]}]
    preference = {"weight": 50, "preference": {"matchExpressions": terms}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def leaving_in(seconds: int) -> list[dict[str, Any]]:
    """Return the tolerations of pods that leave a node that does not answer after this time; the default is 300 s."""
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds} for key in keys]


def status(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return a job's status; empty before the operator looked at it."""
    found: dict[str, Any] = kubectl.get(KIND, name).get("status", {})
    return found


def wait_for(
    kubectl: Kubectl,
    name: str,
    accept: Callable[[Mapping[str, Any]], bool],
    what: str,
    within_s: float = WITHIN_S,
) -> dict[str, Any]:
    """Wait until a job's status is as wanted and return it."""
    return eventually(f"{name}: {what}", lambda: status(kubectl, name), within_s=within_s, accept=accept)


def wait_for_stage(kubectl: Kubectl, name: str, *stages: str, within_s: float = WITHIN_S) -> dict[str, Any]:
    """Wait until a job is in one of these stages and return its status.

    A job that has ended otherwise never gets there, so that is not waited for.
    """
    ended = {"Succeeded", "Failed"}

    def looked(seen: Mapping[str, Any]) -> bool:
        return seen.get("stage") in {*stages, *ended}

    seen = wait_for(kubectl, name, looked, f"is {' or '.join(stages)}", within_s)
    assert seen["stage"] in stages, f"{name} is {seen['stage']}: {seen.get('reason')}: {seen.get('message')}"
    return seen


def conditions(seen: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the status and reason of each condition by its type."""
    return {each["type"]: (each["status"], each["reason"]) for each in seen.get("conditions", [])}


def warnings(seen: Mapping[str, Any]) -> set[str]:
    """Return the reasons of the job's warnings."""
    return {each["reason"] for each in seen.get("warnings", [])}


def children(kubectl: Kubectl, name: str, kind: str = "jobs", role: str = "") -> Sequence[Object]:
    """Return the operator's children of a job."""
    selector = f"{JOB_LABEL}={name}" + (f",{ROLE_LABEL}={role}" if role else "")
    return kubectl.list(kind, selector=selector)


def newest(kubectl: Kubectl, name: str, role: str) -> dict[str, Object]:
    """Return the pods of the newest attempt that has any, but for those that are being deleted, by their index.

    The Job of an attempt that failed keeps its pods, with the same indexes.
    """
    pods = [pod for pod in children(kubectl, name, "pods", role) if "deletionTimestamp" not in pod["metadata"]]
    last = max((_attempt(pod) for pod in pods), default=0)
    return {pod["metadata"]["labels"][INDEX_LABEL]: pod for pod in pods if _attempt(pod) == last}


def _attempt(pod: Object) -> int:
    return int(pod["metadata"]["labels"][ATTEMPT_LABEL])


def workers(kubectl: Kubectl, name: str) -> dict[str, Object]:
    """Return the worker pods of a job's newest attempt that has any, by their index."""
    return newest(kubectl, name, "worker")


def living(kubectl: Kubectl, name: str, role: str = "") -> list[str]:
    """Return the names of a job's pods that have not ended, those that are being deleted too."""
    pods = children(kubectl, name, "pods", role)
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


def wait_until_none_lives(kubectl: Kubectl, name: str) -> None:
    """Wait until all pods of a job have ended: a job that is suspended says so while they still do."""
    eventually(f"no pod of {name} lives", lambda: living(kubectl, name), accept=lambda pods: not pods)


def wait_for_log(kubectl: Kubectl, name: str, words: str) -> str:
    """Wait until the log of the first worker has these words, which reach it after the trainer wrote them."""

    def log() -> str:
        first = workers(kubectl, name).get("0")
        return kubectl("logs", first["metadata"]["name"], "--container=trainer", "--tail=-1") if first else ""

    return eventually(f"the log of {name} says {words!r}", log, accept=lambda found: words in found)


def names(objects: Sequence[Object]) -> list[str]:
    """Return the objects' names."""
    return [each["metadata"]["name"] for each in objects]


def uids(objects: Sequence[Object]) -> set[str]:
    """Return the objects' identities, which survive no deletion."""
    return {each["metadata"]["uid"] for each in objects}


def files_in(kubectl: Kubectl, config_map: str) -> dict[str, bytes]:
    """Return the files that a ConfigMap holds."""
    return unpack_files(contents_of(kubectl.get("configmap", config_map)))


def events(kubectl: Kubectl, name: str) -> Mapping[str, str]:
    """Return the messages of the events about a job by their reason."""
    found = json.loads(kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "--output=json"))
    return {each["reason"]: each["message"] for each in found["items"]}


def wait_for_events(kubectl: Kubectl, name: str, *reasons: str) -> Mapping[str, str]:
    """Wait for events about a job, which the operator writes after the status, and return all messages by reason."""
    return eventually(
        f"{name} has events {', '.join(reasons)}", lambda: events(kubectl, name), accept=set(reasons).issubset
    )


def leftovers(kubectl: Kubectl, name: str) -> list[str]:
    """Return the remaining objects of a job, by kind and name."""
    kinds = ("jobs", "pods", "configmaps", "services", "serviceaccounts", "roles", "rolebindings")
    return [f"{kind}/{each}" for kind in kinds for each in names(children(kubectl, name, kind))]
