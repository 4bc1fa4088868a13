"""Jobs that Kueue holds, admits and preempts."""

from collections.abc import Iterator
from typing import Any

import pytest
from e2e import jobs
from neuroshard_cluster import addons
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.folders import Home
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("operator")]
VERSION = "kueue.x-k8s.io/v1beta1"
PRIORITIES = {"low": 1, "high": 1000}


def kueue_object(kind: str, name: str, spec: dict[str, Any], **fields: Any) -> Object:
    """Return one of Kueue's objects."""
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name, **fields}, "spec": spec}


def queues(namespace: str) -> list[Object]:
    """Return one queue with a quota of one GPU, in which the more important job wins."""
    quotas = [{"name": name, "nominalQuota": room} for name, room in ((RESOURCE, 1), ("cpu", 64), ("memory", "64Gi"))]
    covered = [each["name"] for each in quotas]
    groups = [{"coveredResources": covered, "flavors": [{"name": addons.FLAVOR, "resources": quotas}]}]
    wins = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": wins}
    return [
        kueue_object("ClusterQueue", namespace, spec),
        kueue_object("LocalQueue", "queue", {"clusterQueue": namespace}, namespace=namespace),
        *(
            {
                "apiVersion": VERSION,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"{namespace}-{name}"},
                "value": value,
            }
            for name, value in PRIORITIES.items()
        ),
    ]


@pytest.fixture
def queue(cluster: Cluster, home: Home, namespace: Namespace) -> Iterator[str]:
    """The name of a LocalQueue; Kueue is there for one test only, as its webhooks would see every Job of the others."""
    try:
        addons.install_kueue(cluster, home, say=print)
        cluster.kubectl.apply(*queues(namespace.name))
        yield "queue"
        # Jobs and queues first, while Kueue is still there to let go of them.
        namespace.kubectl("delete", jobs.KIND, "--all", "--timeout=90s")
        namespace.kubectl("wait", "--for=delete", "workloads", "--all", "--timeout=90s")
        namespace.kubectl("delete", "localqueue", "--all")
        cluster.kubectl("delete", "clusterqueue", namespace.name, "--timeout=90s")
    finally:
        addons.remove_kueue(cluster)


def queued(name: str, script: str, queue: str, priority: str) -> Object:
    """Return a job that waits in a queue for its one GPU."""
    job = jobs.script_job(name, script, runPolicy={"cleanPodPolicy": "None"})
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority}
    return job


def test_kueue_holds_admits_and_preempts_jobs(namespace: Namespace, queue: str) -> None:
    """One GPU for three jobs: the second waits, the urgent one goes first, and all end well."""
    low, high = (f"{namespace.name}-{name}" for name in PRIORITIES)
    namespace.kubectl.apply(queued("first", "sleep 40", queue, low))
    jobs.wait_for_stage(namespace.kubectl, "first", "Running")
    namespace.kubectl.apply(queued("second", "true", queue, low))
    held = jobs.wait_for(
        namespace.kubectl, "second", lambda seen: seen.get("reason") == "WaitingForAdmission", "waits for admission"
    )
    namespace.kubectl.apply(queued("urgent", "sleep 10", queue, high))
    preempted = jobs.wait_for_stage(namespace.kubectl, "first", "Suspended")
    ended = {name: jobs.wait_for_stage(namespace.kubectl, name, "Succeeded") for name in ("urgent", "second", "first")}

    assert held["stage"] == "Suspended"
    assert preempted["reason"] == "WaitingForAdmission"
    assert {name: seen.get("restartsCountTowardsMax", 0) for name, seen in ended.items()} == dict.fromkeys(ended, 0)
