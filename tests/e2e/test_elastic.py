"""Elastic jobs on nodes that are drained, die, and come back: real training, on two nodes, one, and two."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from e2e.volumes import newest_step, shared_volume
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import WITHIN_S, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

EVERY_STEPS = 20
LOOKED_WITHIN_S = 600.0
"""The steps that the reference takes, a planner, and a look for more nodes, on a busy machine."""
HEAVY = {
    "embeddingTables": [{**table, "numEmbeddings": 200_000, "poolingFactor": 30} for table in jobs.TABLES],
    "batchSizePerDevice": 1024,
}
"""A model whose step is shorter on two nodes, by the cost models."""
SELECTOR = f"--pod-selector={jobs.JOB_LABEL}=shop,{jobs.ROLE_LABEL}=worker"


def elastic_job(claim: str, nodes: list[str], **spec: Any) -> Object:
    """Return a job of one or two workers on two nodes, one on each, which trains for longer than the test takes."""
    job = jobs.training_job(
        "shop",
        profiler=jobs.BUNDLED,
        data={"numSamples": 100_000_000},
        checkpoint={"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS},
        experimental={"elastic": {"minNodes": 1}},
        **spec,
    )
    expressions = [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    }
    job["spec"]["podTemplate"]["spec"]["affinity"]["nodeAffinity"] = required
    return job


def evict(namespace: Namespace, name: str) -> None:
    """Ask the API server to evict a pod, as a drain does, and leave its node open."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction"
    namespace.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))


def let_it_grow(kubectl: Kubectl) -> None:
    """Have the number of nodes decided an hour ago, so that its cooldown is over."""
    decided = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    change = {"status": {"elastic": {"startTime": decided}}}
    kubectl("patch", jobs.KIND, "shop", "--subresource=status", "--type=merge", f"--patch={json.dumps(change)}")


def trains_on(
    kubectl: Kubectl, number: int, folder: Path, within_s: float = WITHIN_S
) -> tuple[dict[str, Any], set[str]]:
    """Wait until the job trains on that many nodes; return its status, and the nodes."""
    before = newest_step(folder)

    def is_so(seen: Mapping[str, Any]) -> bool:
        sized = seen.get("elastic", {}).get("numNodes") == number
        return sized and seen.get("stage") == "Running" and seen["workers"].get("ready") == number

    seen = jobs.wait_for(kubectl, "shop", is_so, f"trains on {number} nodes", within_s)
    eventually("training goes on", lambda: newest_step(folder) > before + EVERY_STEPS)
    return seen, {pod["spec"]["nodeName"] for pod in jobs.workers(kubectl, "shop").values()}


@pytest.mark.usefixtures("operator")
def test_an_elastic_job_trains_on_the_nodes_that_there_are(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """A node is drained and comes back: two nodes, one, and two, from the newest checkpoint, and no restart counts."""
    if len(cluster.nodes()) < 2:
        pytest.skip("a job on two nodes and on one needs two; make cluster-up NODES=2")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    kept, drained = sorted(cluster.nodes())[:2]
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(elastic_job(claim, [kept, drained]))
        first, at_first = trains_on(kubectl, 2, folder)
        try:
            namespace.kubectl("drain", drained, SELECTOR, "--delete-emptydir-data", "--force", "--timeout=600s")
            fewer, at_fewer = trains_on(kubectl, 1, folder)
        finally:
            cluster.kubectl("uncordon", drained)
        [worker] = jobs.workers(kubectl, "shop").values()
        evict(namespace, worker["metadata"]["name"])
        again, at_again = trains_on(kubectl, 2, folder)
        jobs.wait_for_log(kubectl, "shop", "going on from step")
        jobs.wait_for_events(kubectl, "shop", "Resized")

    assert (at_first, at_fewer, at_again) == ({kept, drained}, {kept}, {kept, drained})
    assert [seen["elastic"]["reason"] for seen in (first, fewer, again)] == [
        "NodesAvailable",
        "NodesLost",
        "NodesJoined",
    ]
    assert [seen["plan"]["worldSize"] for seen in (first, fewer, again)] == [2, 1, 2]
    assert (first["plan"]["hash"], again["restartsCountTowardsMax"]) == (again["plan"]["hash"], 0)


@pytest.fixture
def home_of_operator(operator: Release) -> Iterator[str]:
    """Keep the operator on one node, which no test kills, and yield its name."""
    node: str = operator.leader()["spec"]["nodeName"]
    operator.install(nodeSelector={"kubernetes.io/hostname": node})
    try:
        yield node
    finally:
        operator.install()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_elastic_job_takes_a_node_that_joins_and_leaves_one_that_dies(
    cluster: Cluster, operator: Release, home_of_operator: str, namespace: Namespace, tmp_path: Path
) -> None:
    """One node, two, and one; the operator dies while it plans for two, while they start, and once one is lost."""
    if len(cluster.nodes()) < 2:
        pytest.skip("a job on two nodes and on one needs two; make cluster-up NODES=2")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    kept = home_of_operator
    joins = next(name for name in sorted(cluster.nodes()) if name != kept)
    template = {"terminationGracePeriodSeconds": 10, "tolerations": jobs.leaving_in(10), **jobs.spread("shop")}
    cluster.kubectl("cordon", joins)
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(elastic_job(claim, [kept, joins], model=HEAVY, podTemplate={"spec": template}))
        first, _ = trains_on(kubectl, 1, folder)
        cluster.kubectl("uncordon", joins)
        let_it_grow(kubectl)
        plans = lambda seen: "growth" in seen["elastic"] and "verdict" not in seen["elastic"]["growth"]  # noqa: E731
        jobs.wait_for(kubectl, "shop", plans, "plans for a node more", LOOKED_WITHIN_S)
        operator.kill()
        starts = lambda seen: seen["elastic"]["numNodes"] == 2  # noqa: E731
        jobs.wait_for(kubectl, "shop", starts, "starts on two nodes", LOOKED_WITHIN_S)
        operator.kill()
        joined, at_both = trains_on(kubectl, 2, folder, LOOKED_WITHIN_S)
        cluster.kill_node(joins)
        try:
            lost = lambda seen: seen["elastic"]["numNodes"] == 1  # noqa: E731
            jobs.wait_for(kubectl, "shop", lost, "leaves the node", LOOKED_WITHIN_S)
            operator.kill()
            left, at_left = trains_on(kubectl, 1, folder, LOOKED_WITHIN_S)
        finally:
            cluster.revive_node(joins)

    assert (at_both, at_left) == ({kept, joins}, {kept})
    assert [seen["elastic"]["reason"] for seen in (first, joined, left)] == [
        "NodesAvailable",
        "NodesJoined",
        "NodesLost",
    ]
    assert [seen["plan"]["worldSize"] for seen in (first, joined, left)] == [1, 2, 1]
    assert left["restartsCountTowardsMax"] == 0
