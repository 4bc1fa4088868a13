"""One job through all stages on a real API server, with hands for kubelets; the operator may die at any moment."""

import hashlib
from typing import Any

import pytest
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.waiting import eventually
from support import builders
from support.operator.cluster_hands import ROLE, Hands
from support.operator.server_story import SERVERS

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


def served_job(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job of one node and two embedding servers, and the ConfigMap of its plan, which is the user's own."""
    asked = DLRMTrainingJob.from_data(
        training_job(
            name,
            model={"embeddingTables": TABLES, "embeddingOptimizer": "SGD"},
            trainer={"numNodes": 1, "numProcPerNode": 2},
            experimental={"pipeline": "None", "embeddingServers": {**SERVERS, "tables": ["users"]}},
        )
    )
    tables = asked.spec.model.inline_tables(name)
    assert tables is not None
    device = builders.device_type(name="cpu-test")
    made = builders.plan(plan_request(asked, tables=tables, topology=builders.topology(2, device=device)))
    plan = GivenPlan(algorithm=made.algorithm, tables=made.tables, servers=made.servers, request=made.request)
    job = asked.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    job["spec"] |= {"planRef": {"name": "plan"}}
    return job, {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "plan"},
        "data": {"plan.json": plan.to_json()},
    }


def test_a_killed_operator_keeps_workers_and_servers_one_attempt(cluster: Kubectl, operator: Any) -> None:
    """It dies before they are ready, before a server fails, before the next attempt, and before they succeed."""
    hands = Hands(cluster)
    job, plan = served_job("served")
    cluster.apply(plan)
    cluster.apply(job)
    first = [*hands.pods("worker"), *hands.pods("server", 2)]
    operator.kill()
    hands.start(*first)
    operator.start()
    hands.wait_for("served", "Running")
    operator.kill()
    hands.end(first[1], code=137, message="killed for its memory")
    hands.end(first[0], code=7)
    operator.start()
    eventually("the restart", lambda: hands.status("served").get("restarts") == 1)
    operator.kill()
    hands.bury()
    operator.start()
    hands.bury()
    eventually("the next attempt", lambda: _attempts(cluster) == ["0", "1"])
    again = [*hands.pods("worker"), *hands.pods("server", 2)]
    hands.start(*again)
    status = hands.wait_for("served", "Running")
    operator.kill()
    hands.end(*again)
    operator.start()
    ended = hands.wait_for("served", "Succeeded")

    assert status["servers"] == {"desired": 2, "ready": 2}
    assert ended["lastFailure"]["podName"] == first[1]["metadata"]["name"]
    assert ended["lastFailure"]["exitCode"] == 137
    assert ended["restartsCountTowardsMax"] == 1
    roles = sorted(job["metadata"]["labels"][ROLE] for job in cluster.list("jobs"))
    assert roles == ["server", "server", "worker", "worker"]


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
