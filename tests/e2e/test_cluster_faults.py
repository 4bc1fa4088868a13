"""What clusters do to jobs and to the operator: dead nodes, frozen processes, lost deletions, a newer definition."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import yaml
from e2e import jobs
from e2e.operator_release import CHART, RELEASE, Release, process_of
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.usefixtures("operator")]

LEAVES_IN_S = 5
"""How long the pods of these tests tolerate a node that does not answer; 300 s by default."""
WITHOUT_GPU = {"limits": {"cpu": "100m", "memory": "64Mi"}}
CHOWN = {"name": "trainer", "securityContext": {"capabilities": {"add": ["CHOWN"]}}}
"""What a namespace of the restricted Pod Security Standard refuses, and the policy of jobs does not."""


def mobile_job(name: str, affinity: Mapping[str, Any], nodes: int) -> Object:
    """Return a job whose pods leave a dead node soon."""
    template = {
        "terminationGracePeriodSeconds": 5,
        "tolerations": jobs.leaving_in(LEAVES_IN_S),
        "affinity": {**jobs.spread(name)["affinity"], **affinity},
    }
    policy = {"maxRestarts": 0}
    return jobs.script_job(name, "sleep 900", nodes=nodes, podTemplate={"spec": template}, failurePolicy=policy)


def nodes_of(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Return the nodes of a job's running workers by their index."""
    pods = jobs.workers(kubectl, name)
    return {index: pod["spec"]["nodeName"] for index, pod in pods.items() if pod["status"]["phase"] == "Running"}


def test_jobs_whose_node_dies_run_elsewhere(release: Release, cluster: Cluster, namespace: Namespace) -> None:
    """One worker of two, and the only one of a job: kubelet and processes end at once, and no restart is counted."""
    if len(cluster.nodes()) < 3:
        pytest.skip("a pair of workers on two nodes needs a third one to move to; make cluster-up NODES=3")
    kubectl = namespace.kubectl
    [operator] = release.pods()
    kubectl.apply(mobile_job("pair", jobs.preferred(operator["spec"]["nodeName"], "NotIn"), nodes=2))
    jobs.wait_for_stage(kubectl, "pair", "Running")
    dead = next(node for node in nodes_of(kubectl, "pair").values() if node != operator["spec"]["nodeName"])
    kubectl.apply(mobile_job("alone", jobs.preferred(dead, "In"), nodes=1))
    jobs.wait_for_stage(kubectl, "alone", "Running")
    assert nodes_of(kubectl, "alone") == {"0": dead}
    cluster.kill_node(dead)
    try:
        seen = {}
        for name in ("pair", "alone"):
            jobs.wait_for(kubectl, name, lambda status: status.get("restarts", 0) >= 1, "was restarted")
            seen[name] = jobs.wait_for_stage(kubectl, name, "Running")
        moved = {name: set(nodes_of(kubectl, name).values()) for name in seen}
    finally:
        cluster.revive_node(dead)

    assert {name: status["restartsCountTowardsMax"] for name, status in seen.items()} == {"pair": 0, "alone": 0}
    assert {status["lastFailure"]["nodeName"] for status in seen.values()} == {dead}
    assert not any(dead in nodes for nodes in moved.values())


def test_pods_that_cannot_be_made_or_placed_are_shown_with_the_reason(namespace: Namespace) -> None:
    """A quota, the namespace's Pod Security level, and a claim that is not there."""
    kubectl = namespace.kubectl
    quota = {"hard": {"requests.nvidia.com/gpu": "0"}}
    kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-gpus"}, "spec": quota})
    without = {**jobs.script_job("any", "true")["spec"]["trainer"], "resourcesPerNode": WITHOUT_GPU}
    kubectl.apply(
        jobs.script_job("quota", "true"),
        jobs.script_job("security", "true", trainer=without, podTemplate={"spec": {"containers": [CHOWN]}}),
        jobs.script_job(
            "claim", "true", trainer=without, checkpoint={"persistentVolumeClaim": {"claimName": "missing"}}
        ),
    )
    words = {"quota": "exceeded quota", "security": "violates PodSecurity", "claim": '"missing" not found'}
    for name, expected in words.items():

        def says_why(status: Mapping[str, Any], expected: str = expected) -> bool:
            return status.get("reason") == "PodsPending" and expected in status["message"]

        assert jobs.wait_for(kubectl, name, says_why, f"says {expected}")["stage"] == "Launching"


@contextlib.contextmanager
def frozen(cluster: Cluster, pod: Object) -> Iterator[None]:
    """Freeze the operator in a pod, and let it go on."""
    pid, node = process_of(pod), pod["spec"]["nodeName"]
    cluster.send_signal(Signals.SIGSTOP, pid, node)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # its kubelet may have ended it
            cluster.send_signal(Signals.SIGCONT, pid, node)


def test_a_follower_takes_over_from_a_frozen_leader_through_a_restart_of_the_api_server(
    release: Release, cluster: Cluster, namespace: Namespace
) -> None:
    """The leader does nothing twice when it wakes up."""
    release.install(replicas=2)
    try:
        leader = release.leader()
        with frozen(cluster, leader):
            cluster.restart("kube-apiserver")
            namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD))
            jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
            taker = release.kubectl.get("lease", RELEASE)["spec"]["holderIdentity"]
        jobs.finish(namespace.kubectl, "shop")
        seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    finally:
        release.install()

    assert taker != leader["metadata"]["name"]
    assert seen.get("restarts", 0) == 0
    for role in ("planner", "worker"):
        assert len(jobs.children(namespace.kubectl, "shop", "jobs", role)) == 1


def test_what_is_deleted_while_the_watches_are_gone_is_made_again(
    release: Release, cluster: Cluster, namespace: Namespace
) -> None:
    """An API server that was restarted has no history: its watches list again and tell of no deletion."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.script_job("shop", "sleep 900"))
    jobs.wait_for_stage(kubectl, "shop", "Running")
    before = jobs.uids(jobs.children(kubectl, "shop", "jobs", "worker"))
    with frozen(cluster, release.leader()):
        kubectl.delete("job", "shop-worker-0", "--cascade=foreground")
        kubectl.delete("service", "shop-workers")
        cluster.restart("kube-apiserver")

    def is_back() -> bool:
        workers = jobs.uids(jobs.children(kubectl, "shop", "jobs", "worker"))
        services = jobs.children(kubectl, "shop", "services")
        return bool(workers) and not workers & before and len(services) == 1

    eventually("the workers' Job and Service are new", is_back)
    jobs.wait_for_stage(kubectl, "shop", "Running")


def with_new_field(folder: Path) -> Path:
    """Return a copy of the chart whose definition has one more field, with a default."""
    chart = Path(shutil.copytree(CHART, folder / "chart"))
    file = chart / "files" / "dlrmtrainingjobs.yaml"
    definition = yaml.safe_load(file.read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["trainer"]["properties"]["newField"] = {"type": "integer", "default": 3}
    file.write_text(yaml.safe_dump(definition))
    return chart


def test_a_running_job_outlives_a_newer_definition_and_its_rollback(
    release: Release, namespace: Namespace, tmp_path: Path
) -> None:
    """The API server fills the new field into the job; the operator that does not know it runs the job as before.

    Nobody changes the job, and no watch brings the field: what is there is read again.
    """
    kubectl = namespace.kubectl
    kubectl.apply(jobs.script_job("shop", "sleep 900"))
    jobs.wait_for_stage(kubectl, "shop", "Running")
    pods = jobs.uids(jobs.children(kubectl, "shop", "pods", "worker"))

    def warned(*, expected: bool) -> dict[str, Any]:
        def is_so(status: Mapping[str, Any]) -> bool:
            return ("NewerDefinition" in jobs.warnings(status)) == expected

        return jobs.wait_for(kubectl, "shop", is_so, f"has{'' if expected else ' no'} warning NewerDefinition")

    release.install(chart=with_new_field(tmp_path))
    try:
        between = warned(expected=True)
        stored = kubectl.get(jobs.KIND, "shop")["spec"]["trainer"]["newField"]
    finally:
        release.helm("rollback", RELEASE, "--wait")
    seen = warned(expected=False)

    assert stored == 3
    assert between["stage"] == "Running"
    assert (seen["stage"], seen.get("restarts", 0)) == ("Running", 0)
    assert jobs.uids(jobs.children(kubectl, "shop", "pods", "worker")) == pods
