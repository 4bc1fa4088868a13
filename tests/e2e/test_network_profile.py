"""The network between two nodes, measured by the operator's profilers with real exchanges over gloo, on CPUs."""

from typing import Any

import pytest
from e2e import jobs
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

CPU = {"requests": {"cpu": "100m", "memory": "1Gi"}}


def test_a_job_of_two_nodes_is_planned_with_the_link_that_was_measured_between_them(
    cluster: Cluster, namespace: Namespace
) -> None:
    """Two pods on two nodes meet, exchange, and leave one profile, whose link the plan's request has."""
    if len(cluster.nodes()) < 2:
        pytest.skip("the network of one node is measured nowhere; make cluster-up NODES=2")
    kubectl = namespace.kubectl
    profiler: dict[str, Any] = {"budgetSeconds": 1}
    job = jobs.training_job(
        "net", profiler=profiler, trainer={"numNodes": 2, "resourcesPerNode": CPU}, launchPolicy="PlanOnly"
    )
    kubectl.apply(job)
    seen = jobs.wait_for_stage(kubectl, "net", "Succeeded")
    pods = jobs.children(kubectl, "net", "pods", "profiler")
    files = jobs.files_in(kubectl, seen["profile"]["configMapRef"]["name"])
    hardware = Hardware.from_json(files["hardware.json"])
    plan = Plan.from_json(jobs.files_in(kubectl, seen["plan"]["configMapRef"]["name"])["plan.json"])

    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
    assert jobs.warnings(seen).isdisjoint({"OneNodeOfKind", "NodesDidNotMeet"})
    assert seen["hardware"]["networkNodes"] == 2
    assert hardware.source.startswith("cpu:")
    assert hardware.intra_node is None  # one process on each node: nothing passed between devices of a node
    assert hardware.inter_node is not None
    assert 1e6 < hardware.inter_node.bandwidth_bytes_per_second < 1e12
    assert plan.request.topology.inter_node == hardware.inter_node
