"""Which hardware a job gets, and when a profile of it still holds."""

from collections.abc import Mapping
from typing import Any

import builders
from neuroshard_api.training_job import DLRMTrainingJob
from neuroshard_operator.hardware import hardware_for, product_selector
from neuroshard_operator.observed.objects import Node

GPU_JOB: dict[str, Any] = {"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}}


def node(name: str, product: str = "H200", **labels: str) -> Node:
    """Return a node of eight GPUs."""
    gpu = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/cuda.driver-version.full": "580.1",
    }
    return Node(name=name, labels={**gpu, **{key.replace("__", "/"): value for key, value in labels.items()}})


def fingerprint(job: DLRMTrainingJob, *nodes: Node, image: str = "profiler:1") -> str:
    """Return the fingerprint of the hardware that a job gets."""
    found = hardware_for(job.spec, nodes, profiler_image=image).fingerprint
    assert found is not None
    return found


def test_the_commonest_fitting_kind_of_node_is_taken() -> None:
    """Nodes with too few GPUs, or without the selector's labels, do not fit."""
    few = node("few", "L4", **{"nvidia.com__gpu.count": "4"})
    job = builders.job(**GPU_JOB, podTemplate={"spec": {"nodeSelector": {"pool": "a"}}})
    nodes = [node("a", "A100", pool="a"), node("b", "H200", pool="a"), node("c", "H200", pool="a"), few, few, few]
    hardware = hardware_for(job.spec, [*nodes, *[node("d", "B200")] * 5], profiler_image="p")

    assert (hardware.gpu_product, hardware.gpu_memory_mib, hardware.driver_version) == ("H200", 143771, "580.1")
    assert product_selector(hardware) == {"nvidia.com/gpu.product": "H200"}


def test_another_driver_or_image_means_another_profile() -> None:
    """The number of nodes and their names do not."""
    job = builders.job(**GPU_JOB)
    known = fingerprint(job, node("a"))

    assert fingerprint(job, node("b"), node("c")) == known
    assert fingerprint(job, node("a", **{"nvidia.com__cuda.driver-version.full": "581"})) != known
    assert fingerprint(job, node("a"), image="profiler:2") != known


def test_the_model_does_not_change_the_profile() -> None:
    """Cost models serve every model on the hardware."""
    tables = [{"name": "other", "numEmbeddings": 10, "embeddingDim": 8}]

    assert fingerprint(builders.job(**GPU_JOB), node("a")) == fingerprint(
        builders.job(**GPU_JOB, model={"embeddingTables": tables}), node("a")
    )


def test_without_nodes_the_selector_says_what_will_come() -> None:
    """A pool may be scaled to zero, and a namespaced operator may not read nodes."""
    selector: Mapping[str, object] = {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "H100"}}}
    hardware = hardware_for(builders.job(**GPU_JOB, podTemplate=selector).spec, [], profiler_image="p")

    assert hardware.gpu_product == "H100"


def test_a_job_without_gpus_is_not_kept_to_a_gpu() -> None:
    """It runs anywhere."""
    hardware = hardware_for(builders.job().spec, [node("a")], profiler_image="p")

    assert product_selector(hardware) == {}
