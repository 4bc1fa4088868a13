"""Builders of the pods and Jobs that checks run, within restricted Pod Security. Calls no API."""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.images import PROBE
from neuroshard_cluster.kubectl import Object

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_spec(*args: str, image: str = PROBE.tag, gpus: int = 0, memory: str = "", **fields: object) -> dict[str, Any]:
    """Return a pod's spec with one container that gets `args`; `fields` are fields of the spec."""
    limits = {key: value for key, value in ((RESOURCE, str(gpus or "")), ("memory", memory)) if value}
    container = {
        "name": "main",
        "image": image,
        "args": list(args),
        "resources": {"limits": limits},
        "securityContext": RESTRICTED,
    }
    defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return {**defaults, "containers": [container], **fields}


def pod(name: str, *args: str, **fields: Any) -> Object:
    """Return a pod labelled `app: name`."""
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(*args, **fields)}


def job(name: str, template: Mapping[str, Any], **fields: object) -> Object:
    """Return a Job whose pods have the spec `template` and the label `app: name`; it does not retry by default."""
    spec = {"backoffLimit": 0, "template": {"metadata": {"labels": {"app": name}}, "spec": template}, **fields}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def service(name: str, *, headless: bool = False, port: int = 8080) -> Object:
    """Return a Service for the pods labelled `app: name`; a headless one names them before they are Ready."""
    extra = {"clusterIP": "None", "publishNotReadyAddresses": True} if headless else {}
    spec = {"selector": {"app": name}, "ports": [{"port": port}], **extra}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def spread(app: str) -> dict[str, Any]:
    """Return the affinity that keeps pods labelled `app: app` on different nodes."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def condition(thing: Object, kind: str) -> Mapping[str, Any]:
    """Return an object's condition of that type if it is True, else an empty mapping."""
    conditions: Sequence[Mapping[str, Any]] = thing.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind and item["status"] == "True"), {})
