"""Which hardware a job will train on, from the labels of nodes, and when two jobs may share a profile. Calls no API."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from neuroshard_api.job_status import Hardware
from neuroshard_api.training_job import Spec

from neuroshard_operator.observed.objects import Node

PRODUCT_LABEL = "nvidia.com/gpu.product"
COUNT_LABEL = "nvidia.com/gpu.count"
MEMORY_LABEL = "nvidia.com/gpu.memory"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
ARCHITECTURE_LABEL = "kubernetes.io/arch"


def hardware_for(spec: Spec, nodes: Sequence[Node], *, profiler_image: str) -> Hardware:
    """Return the hardware that the job's pods will meet, with its fingerprint.

    Of several kinds of nodes that the job's node selector allows, the most frequent is taken, and its pods are kept to
    it. Where no node is there yet (or none may be read), the selector itself is all that is known.
    """
    selector: Mapping[str, str] = spec.pod_template.spec.get("nodeSelector") or {}
    gpus = spec.trainer.num_gpus_per_node
    fitting = [node.labels for node in nodes if _fits(node.labels, selector, gpus)]
    labels = _commonest(fitting) or dict(selector)
    memory = labels.get(MEMORY_LABEL, "")
    hardware = Hardware(
        gpu_product=_product(labels, gpus),
        gpus_per_node=gpus,
        gpu_memory_mib=int(memory) if gpus and memory.isdecimal() else None,
        driver_version=next((labels[key] for key in DRIVER_LABELS if key in labels), None) if gpus else None,
    )
    return hardware.model_copy(update={"fingerprint": _fingerprint(spec, hardware, profiler_image)})


def product_selector(hardware: Hardware | None) -> dict[str, str]:
    """Return the node selector that keeps pods to the profiled kind of GPU; empty where its label is not known."""
    if hardware is None or not hardware.gpu_product or not hardware.gpus_per_node:
        return {}
    return {PRODUCT_LABEL: hardware.gpu_product}


def _fits(labels: Mapping[str, str], selector: Mapping[str, str], gpus: int) -> bool:
    count = labels.get(COUNT_LABEL, "")
    has_gpus = gpus == 0 or (PRODUCT_LABEL in labels and (not count.isdecimal() or int(count) >= gpus))
    return has_gpus and all(labels.get(key) == value for key, value in selector.items())


def _kind(labels: Mapping[str, str]) -> tuple[str, ...]:
    keys = (PRODUCT_LABEL, MEMORY_LABEL, *DRIVER_LABELS, INSTANCE_LABEL, ARCHITECTURE_LABEL)
    return tuple(labels.get(key, "") for key in keys)


def _commonest(fitting: Sequence[Mapping[str, str]]) -> dict[str, str] | None:
    """Return the labels of the most frequent kind of node; of equally frequent ones the first by name of the kind."""
    if not fitting:
        return None
    counts = Counter(_kind(labels) for labels in fitting)
    chosen = min(counts, key=lambda kind: (-counts[kind], kind))
    return dict(next(labels for labels in fitting if _kind(labels) == chosen))


def _product(labels: Mapping[str, str], gpus: int) -> str | None:
    keys = [PRODUCT_LABEL] if gpus else [INSTANCE_LABEL, ARCHITECTURE_LABEL]
    return next((labels[key] for key in keys if key in labels), None)


def _fingerprint(spec: Spec, hardware: Hardware, profiler_image: str) -> str:
    """Return a hash of the devices, their driver, and what measures them: a change of any one means a new profile."""
    profiler = spec.profiler
    said = {
        "hardware": hardware.model_dump(mode="json", exclude_none=True),
        "image": profiler.image or profiler_image,
        "backend": profiler.backend,
        "device_type": profiler.device_type,
        "budget_seconds": profiler.budget_seconds,
        "processes": profiler.num_procs or spec.trainer.devices_per_node,
    }
    return "sha256:" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
