"""Which hardware a job will train on, from the labels of nodes, and when two jobs may share a profile. Calls no API."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.job.preparation import ProfilerBackend
from neuroshard_api.job.profile_time import profile_seconds
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.status import HardwareStatus

from neuroshard_decisions.observed.objects import Node
from neuroshard_decisions.scheduling import may_take, required_affinity, spreads

PRODUCT_LABEL = "nvidia.com/gpu.product"
COUNT_LABEL = "nvidia.com/gpu.count"
MEMORY_LABEL = "nvidia.com/gpu.memory"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major", "amd.com/gpu.driver-version")
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
NVIDIA = "nvidia.com/gpu"
_MIB = 2**20
NETWORK_NODES = 2
"""Nodes between which the network is measured: the fewest that have one."""
NETWORK_VARIABLES = ("NCCL_", "GLOO_", "UCX_", "FI_", "OFI_")
"""How the names of variables begin with which NCCL, gloo and their plug-ins choose a network."""
NETWORK_ANNOTATIONS = ("k8s.v1.cni.cncf.io/", "v1.multus-cni.io/", "networking.gke.io/")
"""How the names of annotations begin that attach networks to pods: those of Multus and of GKE."""


def hardware_for(
    spec: Spec, nodes: Sequence[Node], *, profiler_image: str, product_labels: Sequence[str] = (PRODUCT_LABEL,)
) -> HardwareStatus:
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
    fitting = [node for node in equipped if may_take(node, pod_spec, resource=resource)] or [
        node for node in equipped if may_take(node, pod_spec, resource=resource, ever=True)
    ]
    labels = _commonest([node.labels for node in fitting], keys) or dict(_selector(pod_spec))
    label = next((key for key in keys if key in labels), None)
    alike = [node for node in fitting if label is None or node.labels.get(label) == labels[label]]
    memory = labels.get(MEMORY_LABEL, "")
    hardware = HardwareStatus(
        gpu_product=labels[label] if label else None,
        gpu_product_label=label,
        gpus_per_node=gpus,
        gpu_memory_mib=int(memory) if gpus and memory.isdecimal() else None,
        driver_version=next((labels[key] for key in DRIVER_LABELS if key in labels), None) if gpus else None,
        node_memory_mib=_least_memory_mib(alike) if spec.planner.host_memory_per_node is not None else None,
        network_nodes=NETWORK_NODES if wants_network(spec) and (len(alike) >= NETWORK_NODES or not fitting) else None,
    )
    return _with_fingerprint(spec, hardware, profiler_image)


def _least_memory_mib(nodes: Sequence[Node]) -> int | None:
    """Return the memory that each of these nodes offers to pods, in MiB. None: none says."""
    offered = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    return min(offered) // _MIB if offered else None


def wants_network(spec: Spec) -> bool:
    """Return whether the network between nodes is to be measured: the job spans it, and devices can exchange data."""
    return spec.trainer.num_nodes > 1 and spec.profiler.backend is not ProfilerBackend.SIMULATED


def on_one_node(spec: Spec, hardware: HardwareStatus, *, profiler_image: str) -> HardwareStatus:
    """Return the same hardware as it is profiled on one node, without the network."""
    return _with_fingerprint(spec, hardware.model_copy(update={"network_nodes": None}), profiler_image)


def _with_fingerprint(spec: Spec, hardware: HardwareStatus, profiler_image: str) -> HardwareStatus:
    return hardware.model_copy(update={"fingerprint": _fingerprint(spec, hardware, profiler_image)})


def network_environment(spec: Spec) -> list[dict[str, Any]]:
    """Return the workers' environment variables that decide how data crosses the network."""
    chosen = [each for each in spec.trainer.env if each.name.startswith(NETWORK_VARIABLES)]
    return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in chosen]


def network_annotations(spec: Spec) -> dict[str, str]:
    """Return the annotations of the workers' pods that attach networks to them."""
    found = spec.pod_template.metadata.annotations
    return {key: value for key, value in found.items() if key.startswith(NETWORK_ANNOTATIONS)}


def _network(spec: Spec) -> dict[str, object]:
    """Return the fields that decide on the network between the job's pods and its use."""
    trainer = spec.trainer
    return {
        "host_network": spec.pod_template.spec.get("hostNetwork") is True,
        "environment": network_environment(spec),
        "annotations": network_annotations(spec),
        "devices": {
            name: str(amount) for name, amount in trainer.limits.items() if "/" in name and name != trainer.gpus
        },
    }


def product_selector(hardware: HardwareStatus | None) -> dict[str, str]:
    """Return the node selector that keeps pods to the profiled kind of GPU; empty where its label is not known."""
    if hardware is None or not hardware.gpu_product or not hardware.gpus_per_node:
        return {}
    return {hardware.gpu_product_label or PRODUCT_LABEL: hardware.gpu_product}


def places(spec: Spec, nodes: Sequence[Node], hardware: HardwareStatus | None) -> int:
    """Return the number of the job's workers that nodes take, whatever other pods have of them.

    A node takes as many as it offers GPUs for; one without GPUs, or where the workers spread over nodes.

    Args:
        spec: of the job.
        nodes: of the cluster.
        hardware: to which the workers are kept. None: any.
    """
    template, resource, gpus = spec.pod_template.spec, spec.trainer.gpus, spec.trainer.num_gpus_per_node
    selector = {**product_selector(hardware), **_selector(template)}
    pod_spec = {**template, "nodeSelector": selector}
    open_nodes = [node for node in nodes if may_take(node, pod_spec, resource=resource)]
    if not gpus or spreads(template):
        return sum(1 for node in open_nodes if not gpus or _offered(node, resource) >= gpus)
    return sum(_offered(node, resource) // gpus for node in open_nodes)


def _offered(node: Node, resource: str) -> int:
    """Return the GPUs of a node: what it offers, else by the label of GPU feature discovery."""
    count = node.labels.get(COUNT_LABEL, "")
    known = int(count) if count.isdecimal() else 0
    return node.resources.get(resource, 0 if node.resources else known)


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


def _fingerprint(spec: Spec, hardware: HardwareStatus, profiler_image: str) -> str:
    """Return a hash of the devices, their driver, and what measures them: a change of any one means a new profile.

    Where the kind of device is not known, what chooses the nodes stands for it.
    """
    profiler, resource = spec.profiler, spec.trainer.gpus
    pod_spec = spec.pod_template.spec
    placement = {"node_selector": pod_spec.get("nodeSelector"), "required_affinity": required_affinity(pod_spec)}
    said = {
        "hardware": hardware.model_dump(
            mode="json", exclude_none=True, exclude={"gpu_product_label", "node_memory_mib"}
        ),
        "image": spec.experimental.profiler.image or profiler_image,
        "backend": profiler.backend,
        "device_type": profiler.device_type,
        "budget_seconds": profile_seconds(spec),
        **({} if hardware.gpu_product else placement),
        **({"resource": resource} if resource not in {"", NVIDIA} else {}),
        **({"network": _network(spec)} if hardware.network_nodes else {}),
        "processes": spec.trainer.devices_per_node,
    }
    return "sha256:" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
