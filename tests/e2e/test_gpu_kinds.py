"""Nodes of several kinds of GPU: which of them a job is profiled on, planned for, and run on."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from e2e import jobs
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.gpus import POOLS
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_operator.cluster.cluster import NODES_KEPT_S

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.usefixtures("operator")]

A100, H200 = POOLS["a100"], POOLS["h200"]
PRODUCT = "nvidia.com/gpu.product"
HALL = "test.neuroshard.dev/hall"
KEPT_FREE = {"key": "test.neuroshard.dev/kept-free", "value": "true", "effect": "NoSchedule"}


def known() -> None:
    """Wait until the operator lists nodes again for the next job, of this test or of another one."""
    due = time.monotonic() + NODES_KEPT_S
    eventually("the operator's list of nodes is old", time.monotonic, within_s=2 * NODES_KEPT_S, accept=due.__lt__)


@contextlib.contextmanager
def relabeled(cluster: Cluster, labels: Mapping[str, Mapping[str, str | None]]) -> Iterator[None]:
    """Change labels of nodes by the node's name, None removes one; put back what was there, and let it be known."""
    before = {node: cluster.kubectl.get("node", node)["metadata"]["labels"] for node in labels}
    for node, changed in labels.items():
        cluster.kubectl.patch("node", node, {"metadata": {"labels": changed}})
    try:
        yield
    finally:
        for node, changed in labels.items():
            restored = {key: before[node].get(key) for key in changed}
            cluster.kubectl.patch("node", node, {"metadata": {"labels": restored}})
        known()


@contextlib.contextmanager
def closed(cluster: Cluster, *, tainted: str, cordoned: str) -> Iterator[None]:
    """Keep new pods from two nodes, by a taint and by a cordon."""
    cluster.kubectl.patch("node", tainted, {"spec": {"taints": [KEPT_FREE]}})
    cluster.kubectl("cordon", cordoned)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", cordoned)
        cluster.kubectl.patch("node", tainted, {"spec": {"taints": None}})


def profiled_job(name: str, **template: Any) -> dict[str, Any]:
    """Return a job whose hardware is profiled, with this in its pods' spec."""
    return jobs.script_job(name, "true", profiler=jobs.SIMULATED, podTemplate={"spec": template})


def required(key: str, value: str) -> dict[str, Any]:
    """Return the affinity of pods that need a label of their node."""
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def nodes_of(namespace: Namespace, job: str) -> set[str]:
    """Return the nodes of a job's profiler and workers."""
    pods = [pod for role in ("profiler", "worker") for pod in jobs.children(namespace.kubectl, job, "pods", role)]
    return {pod["spec"]["nodeName"] for pod in pods}


def test_a_job_gets_the_kind_of_gpu_that_affinity_taints_and_cordons_leave_it(
    cluster: Cluster, namespace: Namespace
) -> None:
    """The kind of one node of three, because the job requires it, and because the others take no pods."""
    if len(cluster.nodes()) != 3:
        pytest.skip("the nodes of the more frequent kind are one with a taint and one with a cordon; NODES=3")
    [rare, tainted, cordoned] = cluster.nodes()
    run, kubectl = {}, namespace.kubectl
    with relabeled(cluster, {rare: {key: A100.labels()[key] for key in (PRODUCT, "nvidia.com/gpu.memory")}}):
        known()
        kubectl.apply(profiled_job("requires", affinity=required(PRODUCT, A100.product)))
        run["requires"] = jobs.wait_for_stage(kubectl, "requires", "Succeeded")
        with closed(cluster, tainted=tainted, cordoned=cordoned):
            known()
            tolerations = [{"key": KEPT_FREE["key"], "operator": "Exists"}]
            kubectl.apply(
                profiled_job("takes-what-is-left"),
                profiled_job("tolerates", tolerations=tolerations, affinity=required(PRODUCT, H200.product)),
            )
            for name in ("takes-what-is-left", "tolerates"):
                run[name] = jobs.wait_for_stage(kubectl, name, "Succeeded")

    kinds = {name: (seen["hardware"]["gpuProduct"], nodes_of(namespace, name)) for name, seen in run.items()}
    assert kinds == {
        "requires": (A100.product, {rare}),
        "takes-what-is-left": (A100.product, {rare}),
        "tolerates": (H200.product, {tainted}),
    }
    assert run["takes-what-is-left"]["profile"]["cached"] is True


def test_nodes_without_product_labels_share_no_profile_unless_they_are_chosen_alike(
    cluster: Cluster, namespace: Namespace
) -> None:
    """Two jobs with different node selectors are both profiled, and a third one takes the profile of its selector."""
    [first, second, *_] = cluster.nodes()
    kubectl, run = namespace.kubectl, {}
    unnamed: dict[str, dict[str, str | None]] = {node: {PRODUCT: None} for node in cluster.nodes()}
    unnamed[first] |= {HALL: "north"}
    unnamed[second] |= {HALL: "south"}
    with relabeled(cluster, unnamed):
        known()
        halls = {"north": "north", "south": "south", "north-again": "north"}
        kubectl.apply(*(profiled_job(name, nodeSelector={HALL: halls[name]}) for name in ("north", "south")))
        for name in ("north", "south"):
            run[name] = jobs.wait_for_stage(kubectl, name, "Succeeded")
        kubectl.apply(profiled_job("north-again", nodeSelector={HALL: "north"}))
        run["north-again"] = jobs.wait_for_stage(kubectl, "north-again", "Succeeded")

    fingerprints = {name: seen["hardware"]["fingerprint"] for name, seen in run.items()}
    assert fingerprints["north"] != fingerprints["south"]
    assert fingerprints["north-again"] == fingerprints["north"]
    assert {name: nodes_of(namespace, name) for name in ("north", "south")} == {"north": {first}, "south": {second}}
    assert not any("gpuProduct" in seen["hardware"] for seen in run.values())
    assert [name for name in run if jobs.children(kubectl, name, "jobs", "profiler")] == ["north", "south"]
