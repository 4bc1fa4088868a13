"""Pods that kubelets reject, and workers in the network of their nodes: whose failure it is."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

TOO_MUCH = {"limits": {"nvidia.com/gpu": 1, "cpu": "1000"}}
ADMISSION_ERROR = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices",
}
"""What a kubelet writes whose device plug-in restarts."""
MEETS = """exec python -c '
import os, socket, time
host, port = os.environ["PET_RDZV_ENDPOINT"].split(":")
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    socket.create_server(("", int(port))).accept()
else:
    while True:
        try:
            socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.2)
'"""
"""The first worker stays until the other found it, as its name is gone when it ends."""
UNMET = "sleep 12; exit 7"
"""As the trainer ends whose peers did not come."""


def test_pods_that_a_kubelet_rejects_are_no_failure_of_their_job(cluster: Cluster, namespace: Namespace) -> None:
    """A real kubelet, whose node is too small: not counted, after pauses that grow; a failure rule can name it."""
    kubectl, node = namespace.kubectl, cluster.nodes()[0]

    def rejected_job(name: str, **spec: Any) -> Object:
        job = jobs.script_job(name, "true", podTemplate={"spec": {"nodeName": node}}, **spec)
        job["spec"]["trainer"]["resourcesPerNode"] = TOO_MUCH
        return job

    rules = [{"name": "too small", "action": "FailJob", "onPodReasons": ["OutOfcpu"]}]
    kubectl.apply(
        rejected_job("patient", failurePolicy={"maxRestarts": 0}),
        rejected_job("strict", failurePolicy={"rules": rules}),
    )
    strict = jobs.wait_for_stage(kubectl, "strict", "Failed")

    def waits(status: Mapping[str, Any]) -> bool:
        says = status.get("reason") == "WaitingToRestart" or "pods of which no container ran" in status.get(
            "message", ""
        )
        return status.get("restarts", 0) >= 3 and says

    seen = jobs.wait_for(kubectl, "patient", waits, "was rejected three times, and waits")

    assert (strict["reason"], strict.get("restarts", 0)) == ("WorkersFailed", 0)
    assert "failure rule: too small" in strict["message"]
    assert (seen["restartsCountTowardsMax"], seen["lastFailure"]["reason"]) == (0, "OutOfcpu")
    assert seen["lastFailure"]["nodeName"] == node


def reject(kubectl: Kubectl, pod: Object) -> None:
    """Write the status that the kubelet of a pod's node would write."""
    kubectl.patch("pod", pod["metadata"]["name"], {"status": ADMISSION_ERROR}, subresource="status")


def pod_on(kubectl: Kubectl, name: str, node: str) -> Callable[[], Object | None]:
    """Return a look for the worker of a job that a node was chosen for."""

    def look() -> Object | None:
        found = [each for each in jobs.workers(kubectl, name).values() if each["spec"].get("nodeName") == node]
        return found[0] if found else None

    return look


@pytest.mark.chaos
def test_the_next_attempt_prefers_another_node_than_one_that_rejects(cluster: Cluster, namespace: Namespace) -> None:
    """Its kubelet is stopped, and its writes are played, as for a device plug-in that restarts.

    The plan waits for approval, so that the planner's pod is not given to the node without its kubelet.
    """
    kubectl, node = namespace.kubectl, cluster.nodes()[0]
    # Without its kubelet the node turns NotReady, before or after a busy scheduler chooses it.
    template = {"spec": {"affinity": jobs.preferred(node, "In"), "tolerations": [{"operator": "Exists"}]}}
    never = {"maxRestarts": 0}
    kubectl.apply(jobs.script_job("shop", "true", podTemplate=template, failurePolicy=never, launchPolicy="Manual"))
    planned = jobs.wait_for(kubectl, "shop", lambda seen: seen.get("reason") == "WaitingForApproval", "is planned")
    cluster.stop("kubelet", node)
    try:
        approved = f"{APPROVED_PLAN_ANNOTATION}={planned['plan']['configMapRef']['name']}"
        kubectl("annotate", jobs.KIND, "shop", approved)
        pod = eventually("the node is chosen", pod_on(kubectl, "shop", node))
        assert pod is not None
        reject(kubectl, pod)
        seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")
    finally:
        cluster.start("kubelet", node)
    ended = jobs.workers(kubectl, "shop")["0"]

    assert (seen["restarts"], seen["restartsCountTowardsMax"]) == (1, 0)
    assert seen["lastFailure"]["reason"] == "UnexpectedAdmissionError"
    assert ended["spec"]["nodeName"] != node


@pytest.mark.chaos
@pytest.mark.pod_security("privileged")
def test_workers_in_the_network_of_their_nodes_find_each_other(release: Release, namespace: Namespace) -> None:
    """By names of pods, without a word on DNS. Where all ran and none met all the same, the failure counts."""
    kubectl = namespace.kubectl
    release.install(jobPolicy={"hostNetwork": True})
    try:
        host = {"hostNetwork": True, **jobs.spread("shop")}
        unready = {"startupProbe": {"exec": {"command": ["false"]}, "failureThreshold": 1000}}
        unmet = {"hostNetwork": True, "containers": [{"name": "trainer", **unready}], **jobs.spread("unmet")}
        both = (
            jobs.script_job("shop", MEETS, nodes=2, podTemplate={"spec": host}, failurePolicy={"maxRestarts": 0}),
            jobs.script_job(
                "unmet",
                UNMET,
                nodes=2,
                podTemplate={"spec": unmet},
                experimental={"rendezvous": {"port": 29501}},
                failurePolicy={"maxRestarts": 1},
            ),
        )
        # The API server goes by the earlier policy for a moment.
        eventually("the policy lets them through", lambda: kubectl.apply(*both), accept=lambda _: True)
        seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")
        failed = jobs.wait_for_stage(kubectl, "unmet", "Failed")
    finally:
        release.install()
    pods = jobs.children(kubectl, "shop", "pods", "worker")

    assert seen.get("restarts", 0) == 0
    assert {pod["spec"]["dnsPolicy"] for pod in pods} == {"ClusterFirstWithHostNet"}
    assert (failed["reason"], failed["restartsCountTowardsMax"]) == ("MaxRestartsExceeded", 1)


def test_a_job_may_not_ask_for_the_network_of_nodes_by_default(namespace: Namespace) -> None:
    """The policy of jobs refuses it as the job is made, with the value that lets it through."""
    job = jobs.script_job("shop", "true", podTemplate={"spec": {"hostNetwork": True}})

    def refusal() -> str:
        try:
            namespace.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(job))
        except CommandError as error:
            return str(error)
        return ""

    words = "ask who installed the operator for jobPolicy.hostNetwork"
    eventually("the policy refuses it", refusal, accept=lambda found: words in found)
