"""What a job does when a stage fails: profiler, planner, workers."""

import json
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.images import OPERATOR
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]
LIMITS = {"requests": {"cpu": "10m"}}


@pytest.mark.parametrize(
    ("pods", "reason", "words"),
    [
        ({"resources": LIMITS, "backoffLimit": 0, "image": "OPERATOR"}, "ProfilingFailed", "numpy"),
        ({"resources": LIMITS, "timeoutSeconds": 6, "image": "MISSING"}, "ProfilingTimedOut", "6 s"),
        ({"resources": {"limits": {"memory": "24Mi"}}, "backoffLimit": 0}, "ProfilingFailed", "exit code 137"),
    ],
    ids=["exits", "hangs", "out of memory"],
)
def test_a_profiler_that_fails_ends_the_job_with_the_cause(
    namespace: Namespace, pods: dict[str, object], reason: str, words: str
) -> None:
    """An image without numpy, a pod that never starts, too little memory; nothing is launched."""
    images = {"OPERATOR": OPERATOR.tag, "MISSING": "localhost/neuroshard/missing:test"}
    image = {"image": images[str(pods["image"])]} if "image" in pods else {}
    namespace.kubectl.apply(
        jobs.training_job("shop", profiler=jobs.SIMULATED, experimental={"profiler": {**pods, **image}})
    )
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Failed")

    assert (seen["reason"], jobs.conditions(seen)["Failed"]) == (reason, ("True", reason))
    assert words in seen["message"]
    assert not jobs.children(namespace.kubectl, "shop", "jobs", "worker")


TOO_LARGE = [{"name": "huge", "numEmbeddings": 10**10, "embeddingDim": 128}]


def test_a_model_that_fits_nowhere_names_the_table(namespace: Namespace) -> None:
    """And says what would fit."""
    spec: dict[str, Any] = {"model": {"embeddingTables": TOO_LARGE, "batchSizePerDevice": 256}}
    namespace.kubectl.apply(jobs.script_job("shop", "true", **spec))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Failed")

    assert seen["reason"] == "Infeasible"
    assert "huge" in seen["message"]
    assert seen["lastFailure"]["exitCode"] == 3


def test_the_fallback_is_tried_before_the_job_fails(namespace: Namespace) -> None:
    """A planner of its own for the fallback algorithm, whose refusal is what the job ends with."""
    spec: dict[str, Any] = {"model": {"embeddingTables": TOO_LARGE, "batchSizePerDevice": 256}}
    planner = {"fallbackAlgorithm": "SizeLookupGreedy"}
    namespace.kubectl.apply(jobs.script_job("shop", "true", planner=planner, **spec))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Failed")

    assert seen["reason"] == "Infeasible"
    assert len(jobs.children(namespace.kubectl, "shop", "jobs", "planner")) == 2


def test_workers_that_refuse_their_input_are_not_started_again(namespace: Namespace) -> None:
    """Exit code 2 would come again; status.lastFailure has the end of the log."""
    namespace.kubectl.apply(jobs.script_job("shop", "echo no such file >&2; exit 2"))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Failed")
    failure = seen["lastFailure"]

    assert seen.get("restarts", 0) == 0
    assert (failure["exitCode"], failure["containerName"]) == (2, "trainer")
    assert failure["podName"].startswith("shop-worker-0-0")
    assert "no such file" in failure["message"]


ONCE = 'case "$PET_RDZV_ID" in *-0) exit 137 ;; esac'
"""Fails in the first attempt: the operator numbers attempts in the rendezvous' name."""


def test_workers_that_are_killed_are_started_again_under_the_same_plan(namespace: Namespace) -> None:
    """Exit code 137, once; neither profile nor plan is made again, and the restart counts."""
    namespace.kubectl.apply(jobs.script_job("shop", ONCE, profiler=jobs.SIMULATED))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")

    assert (seen["restarts"], seen["restartsCountTowardsMax"]) == (1, 1)
    assert seen["lastFailure"]["exitCode"] == 137
    assert len(jobs.children(namespace.kubectl, "shop", "jobs", "profiler")) == 1
    assert len(jobs.children(namespace.kubectl, "shop", "jobs", "planner")) == 1
    jobs.wait_for_events(namespace.kubectl, "shop", "WorkersRestarted")


def test_restarts_end_with_max_restarts(namespace: Namespace) -> None:
    """A job that always fails ends as failed, with the last cause."""
    policy = {"maxRestarts": 1}
    namespace.kubectl.apply(jobs.script_job("shop", "exit 7", failurePolicy=policy))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Failed")

    assert seen["reason"] == "MaxRestartsExceeded"
    assert (seen["restarts"], seen["lastFailure"]["exitCode"]) == (1, 7)


def worker_pods(namespace: Namespace) -> list[str]:
    """Return the names of the workers that run."""
    pods = jobs.children(namespace.kubectl, "shop", "pods", "worker")
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def test_a_worker_that_someone_deletes_comes_back(namespace: Namespace) -> None:
    """By hand, most often; all workers start again together."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600", nodes=2))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    before = jobs.uids(jobs.children(namespace.kubectl, "shop", "pods", "worker"))
    namespace.kubectl.delete("pod", worker_pods(namespace)[0], "--wait=false")

    def all_new() -> bool:
        pods = jobs.children(namespace.kubectl, "shop", "pods", "worker")
        return len([each for each in pods if each["status"]["phase"] == "Running"]) == 2 and not (
            before >= jobs.uids(pods)
        )

    eventually("two workers run, at least one of them new", all_new)
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")


@pytest.mark.chaos
def test_a_worker_job_gets_its_labels_back_under_the_admission_policy(release: Release, namespace: Namespace) -> None:
    """No watch shows it without them; the policy lets the operator write to what a job owns, to label it."""
    release.install(admissionPolicy={"create": True})
    try:
        namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD, nodes=2))
        jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
        [job] = jobs.children(namespace.kubectl, "shop", "jobs", "worker")
        made = job["metadata"]["labels"]
        ours = [label for label in made if "neuroshard" in label or "kubernetes.io" in label]
        namespace.kubectl("label", "job", job["metadata"]["name"], *(f"{label}-" for label in ours))
        eventually(
            "the Job has its labels",
            lambda: namespace.kubectl.get("job", job["metadata"]["name"])["metadata"].get("labels", {}),
            accept=lambda labels: jobs.JOB_LABEL in labels and jobs.ROLE_LABEL in labels,
        )
        jobs.finish(namespace.kubectl, "shop")
        seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    finally:
        release.install()

    assert len(ours) >= 5
    assert seen.get("restarts", 0) == 0
    assert len(jobs.children(namespace.kubectl, "shop", "jobs", "worker")) == 1


@pytest.mark.chaos
def test_a_drained_node_costs_no_restart_of_the_budget(cluster: Cluster, namespace: Namespace) -> None:
    """A disruption is nobody's fault: maxRestarts is 0, and the job goes on elsewhere."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600", failurePolicy={"maxRestarts": 0}))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    node = jobs.workers(namespace.kubectl, "shop")["0"]["spec"]["nodeName"]
    selector = f"--pod-selector={jobs.JOB_LABEL}=shop"
    try:
        namespace.kubectl("drain", node, selector, "--delete-emptydir-data", "--force", "--timeout=600s")
        jobs.wait_for(namespace.kubectl, "shop", lambda seen: seen.get("restarts", 0) >= 1, "was restarted")
        seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
        moved = jobs.workers(namespace.kubectl, "shop")["0"]["spec"]["nodeName"]
    finally:
        cluster.kubectl("uncordon", node)

    assert seen["restartsCountTowardsMax"] == 0
    assert moved != node, json.dumps(seen)
