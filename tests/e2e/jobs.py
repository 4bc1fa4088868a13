"""Jobs of the end-to-end tests, and what a user sees of them."""

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.images import PLANNER
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.waiting import WITHIN_S, eventually

KIND = "dlrmtrainingjob"
JOB_LABEL = "training.neuroshard.dev/job-name"
ROLE_LABEL = "training.neuroshard.dev/role"
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


def finish(kubectl: Kubectl, name: str) -> None:
    """Let the running workers of a job whose script is `HELD` exit with 0."""
    for pod in workers(kubectl, name).values():
        kubectl("exec", pod["metadata"]["name"], "--container=trainer", "--", "touch", "/tmp/finish")  # noqa: S108


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


def workers(kubectl: Kubectl, name: str) -> dict[str, Object]:
    """Return a job's worker pods that are not being deleted, by their index."""
    pods = children(kubectl, name, "pods", "worker")
    return {pod["metadata"]["labels"][INDEX_LABEL]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def names(objects: Sequence[Object]) -> list[str]:
    """Return the objects' names."""
    return [each["metadata"]["name"] for each in objects]


def uids(objects: Sequence[Object]) -> set[str]:
    """Return the objects' identities, which survive no deletion."""
    return {each["metadata"]["uid"] for each in objects}


def files_in(kubectl: Kubectl, config_map: str) -> dict[str, bytes]:
    """Return the files that a ConfigMap holds."""
    return unpack_files(contents_of(kubectl.get("configmap", config_map)))


def events(kubectl: Kubectl, name: str) -> Collection[str]:
    """Return the reasons of the events about a job."""
    found = json.loads(kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "--output=json"))
    return {each["reason"] for each in found["items"]}


def leftovers(kubectl: Kubectl, name: str) -> list[str]:
    """Return the remaining objects of a job, by kind and name."""
    kinds = ("jobs", "pods", "configmaps", "services", "serviceaccounts", "roles", "rolebindings")
    return [f"{kind}/{each}" for kind in kinds for each in names(children(kubectl, name, kind))]
