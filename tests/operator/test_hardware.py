"""Which hardware a job gets, and when a profile of it still holds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_decisions.hardware import hardware_for, product_selector
from neuroshard_decisions.observed.objects import Node, Taint
from support import builders

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


def required(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod template that requires one of several terms of nodes."""
    node_terms = [{"matchExpressions": list(term)} for term in terms]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms}}}
    return {"spec": {"affinity": affinity}}


IS_H100 = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["H100"]}
RESERVED = Taint(key="team", value="ads", effect="NoSchedule")


def product(template: dict[str, Any], *nodes: Node) -> str | None:
    """Return the kind of GPU that a job with a pod template gets."""
    return hardware_for(builders.job(**GPU_JOB, podTemplate=template).spec, nodes, profiler_image="p").gpu_product


@pytest.mark.parametrize(
    ("template", "majority"),
    [
        pytest.param(required([IS_H100]), {}, id="affinity"),
        pytest.param({}, {"taints": (RESERVED,)}, id="taint"),
        pytest.param({}, {"unschedulable": True}, id="cordon"),
        pytest.param({}, {"resources": {"nvidia.com/gpu": 4}}, id="too few GPUs"),
    ],
)
def test_a_kind_that_the_scheduler_would_not_give_is_not_taken(
    template: dict[str, Any], majority: dict[str, Any]
) -> None:
    """Pods that are kept to it would wait for ever, however many nodes there are of it."""
    a100 = [replace(node(name, "A100"), **majority) for name in "abc"]

    assert product(template, *a100, node("d", "H100"), node("e", "H100")) == "H100"


def test_a_tolerated_taint_keeps_nobody_off() -> None:
    """Neither does the taint of the GPUs themselves: admission plugins tolerate it for pods that ask for GPUs."""
    tolerates = {"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}}
    gpus_only = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
    a100 = [replace(node(name, "A100"), taints=(RESERVED, gpus_only)) for name in "abc"]

    assert product(tolerates, *a100, node("d", "H100")) == "A100"


def test_nodes_that_are_all_cordoned_say_what_will_come_back() -> None:
    """A drain of all nodes for an upgrade is over sooner than a profile is measured."""
    away = Taint(key="node.kubernetes.io/not-ready", effect="NoExecute")
    cordoned = [replace(node("a", "H100"), unschedulable=True), replace(node("b", "H100"), taints=(away,))]

    assert product({}, *cordoned) == "H100"


LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")


def test_a_resource_that_the_job_names_is_its_gpus() -> None:
    """Nodes are chosen by what they offer of it, whatever a device plug-in calls it; its taint is tolerated."""
    trainer = {
        "gpuResource": "example.com/a100",
        "resourcesPerNode": {"limits": {"example.com/a100": 4, "rdma/hca": 1}},
    }
    job = builders.job(trainer=trainer)
    taint = Taint(key="example.com/a100", effect="NoSchedule")
    fits = replace(node("fits", "A100"), resources={"example.com/a100": 4, "rdma/hca": 1}, taints=(taint,))
    others = [replace(node(f"other-{index}"), resources={"rdma/hca": 8, "nvidia.com/gpu": 8}) for index in range(2)]
    hardware = hardware_for(job.spec, [fits, *others], profiler_image="p")

    assert (hardware.gpu_product, hardware.gpus_per_node) == ("A100", 4)
    assert hardware.fingerprint != hardware_for(builders.job(**GPU_JOB).spec, [fits], profiler_image="p").fingerprint


def kind_of(resource: str, **labels: str) -> tuple[str | None, str | None, dict[str, str]]:
    """Return product, fingerprint and selector of a job on nodes without the labels of GPU feature discovery."""
    job = builders.job(trainer={"resourcesPerNode": {"limits": {resource: 8}}})
    named = {key.replace("__", "/"): value for key, value in labels.items()}
    nodes = [Node(name="n", labels=named, resources={resource: 8})]
    found = hardware_for(job.spec, nodes, profiler_image="p", product_labels=LABELS)
    return found.gpu_product, found.fingerprint, product_selector(found)


def test_any_label_that_is_set_up_names_the_kind_of_gpu() -> None:
    """AMD's node labeller and clouds have labels of their own; pods are kept to the label that the nodes have."""
    gke = kind_of("nvidia.com/gpu", **{"cloud.google.com__gke-accelerator": "nvidia-h100-80gb"})
    amd = kind_of("amd.com/gpu", **{"amd.com__gpu.product-name": "MI300X"})

    assert gke[0] == "nvidia-h100-80gb"
    assert gke[2] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert (amd[0], amd[2]) == ("MI300X", {"amd.com/gpu.product-name": "MI300X"})
    assert len({gke[1], amd[1], kind_of("nvidia.com/gpu")[1], kind_of("amd.com/gpu")[1]}) == 4


def test_unknown_gpus_share_a_profile_only_where_their_nodes_are_chosen_alike() -> None:
    """Without a label of the product, another selector or affinity may lead to another kind of GPU."""
    templates = [
        {},
        {"spec": {"nodeSelector": {"pool": "h100"}}},
        {"spec": {"nodeSelector": {"pool": "t4"}}},
        required([{"key": "pool", "operator": "In", "values": ["h100"]}]),
    ]
    found = [fingerprint(builders.job(**GPU_JOB, podTemplate=template)) for template in templates]

    assert len(set(found)) == len(templates)


NETWORKS: list[Any] = [
    pytest.param({"podTemplate": {"spec": {"hostNetwork": True}}}, id="the hosts' network"),
    pytest.param({"env": [{"name": "NCCL_IB_HCA", "value": "mlx5_0"}]}, id="other cards"),
    pytest.param({"limits": {"rdma/hca": 1}}, id="devices for RDMA"),
    pytest.param(
        {"podTemplate": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}}}}, id="attached"
    ),
]


@pytest.mark.parametrize("change", NETWORKS)
def test_another_network_means_another_profile_for_jobs_of_several_nodes(change: dict[str, Any]) -> None:
    """Kind and network together are what a measured link holds for; a job of one node has none."""

    def job(num_nodes: int, *, limits: Mapping[str, Any] | None = None, **more: Any) -> DLRMTrainingJob:
        template = {"podTemplate": more.pop("podTemplate")} if "podTemplate" in more else {}
        gpus = {"limits": {"nvidia.com/gpu": 8, **(limits or {})}}
        return builders.job(trainer={"numNodes": num_nodes, "resourcesPerNode": gpus, **more}, **template)

    nodes = [node("a"), node("b")]

    assert fingerprint(job(2, **change), *nodes) != fingerprint(job(2), *nodes)
    assert fingerprint(job(1, **change), *nodes) == fingerprint(job(1), *nodes)
    assert fingerprint(job(3), *nodes) == fingerprint(job(2), *nodes)
    assert fingerprint(job(2), node("a")) == fingerprint(job(1), node("a"))
