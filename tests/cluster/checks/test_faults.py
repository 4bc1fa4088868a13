"""What survives when a part of the cluster goes away for a while."""

from collections.abc import Iterator
from typing import Any

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import condition, job, pod, pod_spec

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]


def gpus(cluster: Cluster, node: str) -> int:
    """Return the number of a node's GPUs that the scheduler may give away."""
    return int(cluster.kubectl.get("node", node)["status"]["allocatable"].get(RESOURCE, 0))


def is_ready(cluster: Cluster, node: str) -> bool:
    """Return whether a node is Ready."""
    return bool(condition(cluster.kubectl.get("node", node), "Ready"))


@pytest.fixture
def runner(namespace: Namespace) -> str:
    """Return the name of a pod that runs; it was never restarted."""
    namespace.kubectl.create(pod("runner", "wait"))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/runner", "--timeout=600s")
    return "runner"


@pytest.fixture
def extra_node(cluster: Cluster) -> Iterator[str]:
    """Return a node that was added for one test."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this provider cannot add nodes")
    node = cluster.add_node("a100")
    yield node
    if node in cluster.nodes():
        cluster.delete_node(node)


def test_pods_and_gpus_survive_a_kubelet_restart(cluster: Cluster, namespace: Namespace, runner: str) -> None:
    """A restarted kubelet keeps its node's GPUs, and the pods run on."""
    node = namespace.kubectl.get("pod", runner)["spec"]["nodeName"]

    cluster.restart("kubelet", node)

    namespace.kubectl.create(job("after", pod_spec("exit", "0", nodeName=node)))
    namespace.kubectl("wait", "--for=condition=Complete", "job/after", "--timeout=600s")
    eventually("the node has its GPUs", lambda: gpus(cluster, node), accept=lambda found: found == 8)
    assert namespace.kubectl.get("pod", runner)["status"]["containerStatuses"][0]["restartCount"] == 0


def test_pods_survive_an_api_server_restart(cluster: Cluster, namespace: Namespace, runner: str) -> None:
    """Pods run on while the API server is away, and work goes on when it is back."""
    cluster.restart("kube-apiserver")

    namespace.kubectl.create(job("after", pod_spec("exit", "0")))
    namespace.kubectl("wait", "--for=condition=Complete", "job/after", "--timeout=600s")
    assert namespace.kubectl.get("pod", runner)["status"]["phase"] == "Running"


def test_work_resumes_with_the_controller_manager(cluster: Cluster, namespace: Namespace) -> None:
    """Nothing happens to a Job while the controller manager is down; it completes after."""
    cluster.stop("kube-controller-manager")
    try:
        namespace.kubectl.create(job("waits", pod_spec("exit", "0")))
        assert not namespace.kubectl.list("pods")
    finally:
        cluster.start("kube-controller-manager")

    namespace.kubectl("wait", "--for=condition=Complete", "job/waits", "--timeout=600s")


def test_added_node_takes_pods_and_can_be_drained(cluster: Cluster, namespace: Namespace, extra_node: str) -> None:
    """A node of another GPU kind joins, takes a pod that asks for it, and gives it up when drained."""
    wants: dict[str, Any] = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}
    namespace.kubectl.create(job("picky", pod_spec("wait", gpus=8, **wants), backoffLimit=6))
    eventually("the Job has its pod", lambda: namespace.kubectl.list("pods", selector="app=picky"))
    namespace.kubectl("wait", "--for=condition=Ready", "pod", "--selector=app=picky", "--timeout=600s")
    (first,) = namespace.kubectl.list("pods", selector="app=picky")
    assert first["spec"]["nodeName"] == extra_node

    cluster.kubectl("drain", extra_node, "--pod-selector=app=picky", "--force")

    def replaced() -> bool:
        pods = namespace.kubectl.list("pods", selector="app=picky")
        return any(each["metadata"]["uid"] != first["metadata"]["uid"] for each in pods)

    eventually("another pod waits for such a node", replaced)


def test_broken_node_loses_its_gpus_and_readiness(cluster: Cluster) -> None:
    """A broken node offers no GPUs at once, turns NotReady by itself, and comes back whole."""
    node = cluster.nodes()[-1]
    cluster.break_node(node)
    try:
        assert gpus(cluster, node) == 0
        eventually("the node turns NotReady", lambda: not is_ready(cluster, node))
    finally:
        cluster.mend_node(node)
    eventually("the node has its GPUs again", lambda: gpus(cluster, node))
    assert is_ready(cluster, node)
