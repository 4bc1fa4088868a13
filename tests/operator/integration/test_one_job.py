"""One job through all stages on a real API server, with hands for kubelets; the operator may die at any moment."""

import hashlib
from typing import Any

import builders
import pytest
from cluster_hands import Hands
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.waiting import eventually

pytestmark = pytest.mark.slow

TABLES = [{"name": name, "numEmbeddings": 1000, "embeddingDim": 16} for name in ("users", "items", "genres")]


def training_job(name: str, **spec: Any) -> dict[str, Any]:
    """Return a job of two nodes with two processes each."""
    trainer = {"numNodes": 2, "numProcPerNode": 2}
    return builders.job_data(name, **{"model": {"embeddingTables": TABLES}, "trainer": trainer, **spec})


def reasons(cluster: Kubectl) -> list[str]:
    """Return the reasons of the events about jobs, in the order in which they were told."""
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
    cost = eventually("what was measured", lambda: hands.status("first")["cost"], within_s=20, accept=_is_measured)
    assert cost["measured"]["totalMicroseconds"] == 4000
    hands.end(*workers)
    status = hands.wait_for("first", "Succeeded")
    assert [stage["state"] for stage in status["stages"]] == ["Succeeded"] * 4
    assert set(reasons(cluster)) == {"Profiled", "Planned", "Running", "Succeeded"}
    assert operator.stop() == 0


def _is_measured(cost: dict[str, Any]) -> bool:
    return "measured" in cost
