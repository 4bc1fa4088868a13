"""How the Jobs behave that the operator makes: indexes, failure policy, suspension, eviction, GPUs, limits."""

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import condition, job, pod, pod_spec

pytestmark = pytest.mark.e2e

FAIL_ON_42 = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}


def phases(namespace: Namespace, app: str = "") -> list[str]:
    """Return the phases of the pods that are not on their way out."""
    selector = f"app={app}" if app else ""
    pods = namespace.kubectl.list("pods", selector=selector)
    return sorted(each["status"]["phase"] for each in pods if "deletionTimestamp" not in each["metadata"])


def evict(namespace: Namespace, name: str) -> None:
    """Ask the API server to evict a pod, which respects disruption budgets."""
    body = {**EVICTION, "metadata": {"name": name, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction"
    namespace.kubectl("create", "--raw", path, "--filename=-", stdin=str(body).replace("'", '"'))


def test_failure_policy_ends_a_job_at_once(namespace: Namespace) -> None:
    """An Indexed Job with a podFailurePolicy fails as soon as one index exits with the named code."""
    policy = {"rules": [FAIL_ON_42]}
    indexed = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 6}
    namespace.kubectl.create(job("strict", pod_spec("exit", "index"), podFailurePolicy=policy, **indexed))

    def failed() -> Object:
        return dict(condition(namespace.kubectl.get("job", "strict"), "Failed"))

    assert eventually("the Job fails", failed)["reason"] == "PodFailurePolicy"


def test_eviction_does_not_count_as_failure(namespace: Namespace) -> None:
    """A pod that is evicted is replaced without using up the Job's backoffLimit."""
    policy = {"rules": [IGNORE_DISRUPTION]}
    namespace.kubectl.create(job("moved", pod_spec("wait"), podFailurePolicy=policy))
    eventually("the pod runs", lambda: phases(namespace) == ["Running"])
    first = namespace.kubectl.list("pods")[0]["metadata"]["name"]

    evict(namespace, first)

    def names() -> list[str]:
        running = [each for each in namespace.kubectl.list("pods") if each["status"]["phase"] == "Running"]
        return [each["metadata"]["name"] for each in running if each["metadata"]["name"] != first]

    eventually("another pod runs", names)
    assert not condition(namespace.kubectl.get("job", "moved"), "Failed")


def test_suspend_and_resume(namespace: Namespace) -> None:
    """Suspending a Job removes its pods, resuming brings them back."""
    namespace.kubectl.create(job("paused", pod_spec("wait")))
    eventually("the pod runs", lambda: phases(namespace) == ["Running"])

    namespace.kubectl.patch("job", "paused", {"spec": {"suspend": True}})
    eventually("no pod is left", lambda: not phases(namespace))
    eventually("the Job says so", lambda: condition(namespace.kubectl.get("job", "paused"), "Suspended"))

    namespace.kubectl.patch("job", "paused", {"spec": {"suspend": False}})
    eventually("the pod runs again", lambda: phases(namespace) == ["Running"])


def test_finished_job_goes_after_its_time(namespace: Namespace) -> None:
    """A finished Job is deleted ttlSecondsAfterFinished later."""
    namespace.kubectl.create(job("brief", pod_spec("exit", "0"), ttlSecondsAfterFinished=1))

    eventually("the Job is gone", lambda: not namespace.kubectl.list("jobs"))


def test_gpus_are_counted(cluster: Cluster, namespace: Namespace) -> None:
    """One more 8-GPU pod than there are GPU nodes waits, and runs when another one ends."""
    free = cluster.kubectl.list("nodes", selector="nvidia.com/gpu.count=8,type!=kwok")
    names = [f"gpus-{number}" for number in range(len(free) + 1)]
    namespace.kubectl.create(*(pod(name, "wait", gpus=8) for name in names))
    running = ["Running"] * len(free)
    eventually("all but one run", lambda: phases(namespace) == ["Pending", *running])
    first = next(each for each in namespace.kubectl.list("pods") if each["status"]["phase"] == "Running")

    namespace.kubectl.delete("pod", first["metadata"]["name"])

    eventually("the last one runs", lambda: phases(namespace) == running)


def test_memory_limit_kills(namespace: Namespace) -> None:
    """A container that outgrows its memory limit is killed with 137."""
    namespace.kubectl.create(pod("hungry", "fill", "200", memory="64Mi"))

    def exit_code() -> int:
        status = namespace.kubectl.get("pod", "hungry")["status"]
        statuses = status.get("containerStatuses", [])  # none until the kubelet reports
        return sum(int(each["state"].get("terminated", {}).get("exitCode", 0)) for each in statuses)

    eventually("the container is killed", exit_code, accept=lambda code: code == 137)
