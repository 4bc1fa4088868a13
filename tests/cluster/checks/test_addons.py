"""Kueue and kwok, the ground of the queueing and scale tests."""

from collections.abc import Iterator
from typing import Any

import pytest
from neuroshard_cluster import addons
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.folders import Home
from neuroshard_cluster.gpus import POOLS, RESOURCE
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import condition, job, pod_spec

pytestmark = [pytest.mark.e2e, pytest.mark.long]

FAKE_NODES = 200
ON_KWOK: dict[str, Any] = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{**addons.KWOK_TAINT, "operator": "Equal"}],
}


def test_kwok_runs_two_hundred_nodes(cluster: Cluster, home: Home, namespace: Namespace) -> None:
    """Simulated: kwok keeps 200 nodes with GPUs Ready, and a Job's pods on them complete."""
    addons.install_kwok(cluster, home, say=print)
    nodes = [addons.fake_node(f"fake-{number}", POOLS["h200"]) for number in range(FAKE_NODES)]
    cluster.kubectl.create(*nodes)
    try:
        cluster.kubectl("wait", "--for=condition=Ready", "node", "--selector=type=kwok", "--timeout=600s")
        template = pod_spec("wait", gpus=8, **ON_KWOK)
        namespace.kubectl.create(job("wide", template, completions=FAKE_NODES, parallelism=FAKE_NODES))
        namespace.kubectl("wait", "--for=condition=Complete", "job/wide", "--timeout=600s")
    finally:
        cluster.kubectl("delete", "--raw", "/api/v1/nodes?labelSelector=type%3Dkwok")


def queues(namespace: str, gpus: int) -> list[dict[str, Any]]:
    """Return Kueue's objects for one queue with a quota of GPUs, in which the more important job wins."""
    version = "kueue.x-k8s.io/v1beta1"
    quota = [{"name": RESOURCE, "nominalQuota": gpus}]
    group = {"coveredResources": [RESOURCE], "flavors": [{"name": addons.FLAVOR, "resources": quota}]}
    wins = {"withinClusterQueue": "LowerPriority"}
    return [
        {
            "apiVersion": version,
            "kind": "ClusterQueue",
            "metadata": {"name": namespace},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group], "preemption": wins},
        },
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": "queue", "namespace": namespace},
            "spec": {"clusterQueue": namespace},
        },
        *(
            {
                "apiVersion": version,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"{namespace}-{name}"},
                "value": value,
            }
            for name, value in (("low", 1), ("high", 1000))
        ),
    ]


@pytest.fixture
def kueue(cluster: Cluster, home: Home) -> Iterator[None]:
    """Kueue for one test: left behind, its webhooks would see every Job of the others."""
    try:
        addons.install_kueue(cluster, home, say=print)
        yield
    finally:
        addons.remove_kueue(cluster)


@pytest.mark.usefixtures("kueue")
def test_kueue_admits_holds_and_preempts(cluster: Cluster, namespace: Namespace) -> None:
    """Kueue admits a Job within its quota, holds the next, and preempts the first for a more important one."""
    cluster.kubectl.apply(*queues(namespace.name, gpus=8))

    def submit(name: str, priority: str) -> None:
        labels = {
            "kueue.x-k8s.io/queue-name": "queue",
            "kueue.x-k8s.io/priority-class": f"{namespace.name}-{priority}",
        }
        queued = job(name, pod_spec("wait", gpus=8), suspend=True)
        queued["metadata"]["labels"] = labels
        namespace.kubectl.create(queued)

    def suspended(name: str) -> bool:
        return bool(namespace.kubectl.get("job", name)["spec"]["suspend"])

    try:
        submit("first", "low")
        eventually("the first is admitted", lambda: not suspended("first"))
        submit("second", "low")
        eventually("the second has a workload", lambda: len(namespace.kubectl.list("workloads")) == 2)
        assert suspended("second")
        submit("urgent", "high")
        eventually("the urgent one is admitted", lambda: not suspended("urgent"))
        eventually("the first is suspended", lambda: suspended("first"))
        eventually("the first says so", lambda: condition(namespace.kubectl.get("job", "first"), "Suspended"))
    finally:
        # While Kueue is still there: it keeps a workload, and so the namespace, until it has let go of it.
        namespace.kubectl("delete", "jobs", "--all")
        eventually("no workload is left", lambda: not namespace.kubectl.list("workloads"))
        cluster.kubectl.delete("localqueue", "queue", f"--namespace={namespace.name}")
        cluster.kubectl.delete("clusterqueue", namespace.name)
