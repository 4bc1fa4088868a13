"""Which hardware a job will train on, from the labels of nodes, and when two jobs may share a profile. Calls no API."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.job_status import Hardware
from neuroshard_api.training_job import Spec

from neuroshard_operator.observed.objects import Node
from neuroshard_operator.scheduling import may_take, required_affinity

PRODUCT_LABEL = "nvidia.com/gpu.product"
COUNT_LABEL = "nvidia.com/gpu.count"
MEMORY_LABEL = "nvidia.com/gpu.memory"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major", "amd.com/gpu.driver-version")
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
NVIDIA = "nvidia.com/gpu"


def hardware_for(
    spec: Spec, nodes: Sequence[Node], *, profiler_image: str, product_labels: Sequence[str] = (PRODUCT_LABEL,)
) -> Hardware:
    """Return the hardware that the job's pods will meet, with its fingerprint.

    Of several kinds of nodes that may take the job's pods, the most frequent is taken, and its pods are kept to it.
    Where all such nodes are cordoned or not ready, they count nevertheless. Where no node is there yet (or none may be
    read), the pod template's node selector is all that is known.

    Args:
        spec: of the job.
        nodes: of the cluster.
        profiler_image: of jobs that name none.
        product_labels: labels of nodes that name the kind of GPU; the first that a node has counts.
    """
    pod_spec, resource = spec.pod_template.spec, spec.trainer.gpus
    gpus = spec.trainer.num_gpus_per_node
    keys = product_labels if gpus else (INSTANCE_LABEL, ARCHITECTURE_LABEL)
    equipped = [node for node in nodes if _has(node, resource, gpus, product_labels)]
    fitting = [node.labels for node in equipped if may_take(node, pod_spec, resource=resource)] or [
        node.labels for node in equipped if may_take(node, pod_spec, resource=resource, ever=True)
    ]
    labels = _commonest(fitting, keys) or dict(_selector(pod_spec))
    label = next((key for key in keys if key in labels), None)
    memory = labels.get(MEMORY_LABEL, "")
    hardware = Hardware(
        gpu_product=labels[label] if label else None,
        gpu_product_label=label,
        gpus_per_node=gpus,
        gpu_memory_mib=int(memory) if gpus and memory.isdecimal() else None,
        driver_version=next((labels[key] for key in DRIVER_LABELS if key in labels), None) if gpus else None,
    )
    return hardware.model_copy(update={"fingerprint": _fingerprint(spec, hardware, profiler_image)})


def product_selector(hardware: Hardware | None) -> dict[str, str]:
    """Return the node selector that keeps pods to the profiled kind of GPU; empty where its label is not known."""
    if hardware is None or not hardware.gpu_product or not hardware.gpus_per_node:
        return {}
    return {hardware.gpu_product_label or PRODUCT_LABEL: hardware.gpu_product}


def _has(node: Node, resource: str, gpus: int, product_labels: Sequence[str]) -> bool:
    """Whether a node has the GPUs: by what it offers, else by the labels of GPU feature discovery."""
    if not gpus:
        return True
    if resource in node.resources:
        return node.resources[resource] >= gpus
    if node.resources or not any(label in node.labels for label in product_labels):
        return False
    count = node.labels.get(COUNT_LABEL, "")
    return not count.isdecimal() or int(count) >= gpus


def _selector(pod_spec: Mapping[str, Any]) -> Mapping[str, str]:
    selector = pod_spec.get("nodeSelector")
    return selector if isinstance(selector, Mapping) else {}


def _kind(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    keys = (*keys, MEMORY_LABEL, *DRIVER_LABELS, INSTANCE_LABEL, ARCHITECTURE_LABEL)
    return tuple(labels.get(key, "") for key in keys)


def _commonest(fitting: Sequence[Mapping[str, str]], keys: Sequence[str]) -> dict[str, str] | None:
    """Return the labels of the most frequent kind of node; of equally frequent ones the first by name of the kind."""
    if not fitting:
        return None
    counts = Counter(_kind(labels, keys) for labels in fitting)
    chosen = min(counts, key=lambda kind: (-counts[kind], kind))
    return dict(next(labels for labels in fitting if _kind(labels, keys) == chosen))


def _fingerprint(spec: Spec, hardware: Hardware, profiler_image: str) -> str:
    """Return a hash of the devices, their driver, and what measures them: a change of any one means a new profile.

    Where the kind of device is not known, what chooses the nodes stands for it.
    """
    profiler, resource = spec.profiler, spec.trainer.gpus
    pod_spec = spec.pod_template.spec
    placement = {"node_selector": pod_spec.get("nodeSelector"), "required_affinity": required_affinity(pod_spec)}
    said = {
        "hardware": hardware.model_dump(mode="json", exclude_none=True, exclude={"gpu_product_label"}),
        "image": profiler.image or profiler_image,
        "backend": profiler.backend,
        "device_type": profiler.device_type,
        "budget_seconds": profiler.budget_seconds,
        **({} if hardware.gpu_product else placement),
        **({"resource": resource} if resource not in {"", NVIDIA} else {}),
        "processes": profiler.num_procs or spec.trainer.devices_per_node,
    }
    return "sha256:" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
