"""One job through all stages on a real API server, with hands for kubelets; the operator may die at any moment."""

import hashlib
from typing import Any

import pytest
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.waiting import eventually
from support import builders
from support.operator.cluster_hands import ROLE, Hands

pytestmark = [pytest.mark.slow, pytest.mark.api_server, pytest.mark.timeout(900)]

TOLD = {"Profiled", "Planned", "Running", "Succeeded"}
TABLES = [{"name": name, "numEmbeddings": 1000, "embeddingDim": 16} for name in ("users", "films", "genres")]


def training_job(name: str, **spec: Any) -> dict[str, Any]:
    """Return a job of two nodes with two processes each."""
    trainer = {"numNodes": 2, "numProcPerNode": 2}
    return builders.job_data(name, **{"model": {"embeddingTables": TABLES}, "trainer": trainer, **spec})


def reasons(cluster: Kubectl) -> list[str]:
    """Return the reasons of the events about jobs, in the order in which they were reported."""
    return [event["reason"] for event in cluster.list("events") if event["involvedObject"]["kind"] == "DLRMTrainingJob"]


def test_a_job_goes_from_apply_to_succeeded(cluster: Kubectl, operator: Any) -> None:
    """Every stage is passed once, the workers get the plan that was published, and the status tells its cost."""
    hands = Hands(cluster)
    cluster.apply(training_job("first"))
    hands.wait_for("first", "Profiling")
    hands.profile("first")
    hands.wait_for("first", "Planning")
    plan = hands.plan()
    workers = hands.pods("worker", 2)
    hands.start(*workers)
    status = hands.wait_for("first", "Running")
    text = hands.plan_of("first")
    digest = hashlib.sha256(text).hexdigest()
    assert text == plan.to_json().encode()
    assert status["plan"]["hash"] == f"sha256:{digest}"

    hands.report("first", builders.step_report(plan_sha256=digest), builders.progress())
    cost = eventually("what was measured", lambda: hands.status("first")["cost"], accept=_is_measured)
    assert cost["measured"]["totalMicroseconds"] == 5000
    hands.end(*workers)
    status = hands.wait_for("first", "Succeeded")
    assert [stage["state"] for stage in status["stages"]] == ["Succeeded"] * 4
    eventually("each stage is told", lambda: set(reasons(cluster)) == TOLD)  # events follow the status
    assert operator.stop() == 0


def test_a_killed_operator_loses_nothing_and_makes_nothing_twice(cluster: Kubectl, operator: Any) -> None:
    """It dies in every stage, and what happens meanwhile is seen by the one that comes after it."""
    hands = Hands(cluster)
    cluster.apply(training_job("killed"))
    hands.pods("profiler", 2)
    operator.kill()
    hands.profile("killed")
    operator.start()
    hands.pods("planner")
    operator.kill()
    hands.plan()
    operator.start()
    workers = hands.pods("worker", 2)
    operator.kill()
    hands.start(*workers)
    hands.end(workers[0], code=137, message="killed for its memory")
    operator.start()
    eventually("the restart", lambda: hands.status("killed").get("restarts") == 1)
    operator.kill()
    operator.start()
    eventually("the next attempt", lambda: _attempts(cluster) == ["0", "1"])
    again = hands.pods("worker", 2)
    hands.start(*again)
    hands.wait_for("killed", "Running")
    operator.kill()
    hands.end(*again)
    operator.start()
    status = hands.wait_for("killed", "Succeeded")

    assert status["lastFailure"]["exitCode"] == 137
    assert status["lastFailure"]["message"] == "killed for its memory"
    roles = [job["metadata"]["labels"][ROLE] for job in cluster.list("jobs")]
    assert sorted(roles) == ["planner", "profiler", "worker", "worker"]
    uid = hands.job("killed")["metadata"]["uid"]
    for kind in ("jobs", "services", "serviceaccounts", "roles", "rolebindings", "configmaps"):
        for child in cluster.list(kind, selector=ROLE):
            owners = [owner["uid"] for owner in child["metadata"].get("ownerReferences", [])]
            assert owners == ([] if child["metadata"]["labels"][ROLE] == "profile" else [uid])


def test_a_job_that_is_deleted_takes_everything_along(cluster: Kubectl, operator: Any) -> None:
    """Owner references are enough, also when the operator is down; the profile stays for the next job."""
    hands = Hands(cluster)
    cluster.apply(training_job("gone"))
    hands.profile("gone")
    hands.pods("planner")
    operator.kill()
    cluster("delete", "dlrmjob", "gone", "--wait=false")

    def left() -> list[str]:
        kinds = "jobs,pods,services,serviceaccounts,roles,rolebindings,configmaps"
        return cluster("get", kinds, f"--selector={ROLE}", "--output=name").split()

    found = eventually("nothing is left", left, accept=lambda names: len(names) == 1)
    assert found[0].startswith("configmap/neuroshard-profile-")


def _attempts(cluster: Kubectl) -> list[str]:
    jobs = cluster.list("jobs", selector=f"{ROLE}=worker")
    return [job["metadata"]["labels"]["training.neuroshard.dev/attempt"] for job in jobs]


def _is_measured(cost: dict[str, Any]) -> bool:
    return "measured" in cost
