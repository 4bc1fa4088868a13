"""Embedding servers as pods: trained for real on CPUs, killed at awkward moments, and what fits only with them."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.volumes import newest_step, shared_volume
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from support import builders

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

TRAINS_WITHIN_S = 900.0
CPU = builders.device_type(name="cpu-test", memory_bytes=4 * builders.GIB)
SERVERS: Mapping[str, Any] = {
    "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "100m"}},
    "tables": ["users"],
}
TRAINER = {
    "numNodes": 1,
    "numProcPerNode": 2,
    "resourcesPerNode": {"requests": {"cpu": "100m"}, "limits": {"memory": "4Gi"}},
}
KILL = "kill -9 $(grep -lz '^LOCAL_RANK=0' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)"
"""The processes of a pod's first rank."""


def served_job(name: str, **spec: Any) -> Object:
    """Return a job of two trainers, in one pod, and one embedding server."""
    defaults = {
        "model": {"embeddingTables": jobs.TABLES, "batchSizePerDevice": 256, "embeddingOptimizer": "SGD"},
        "trainer": TRAINER,
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 10}},
        "experimental": {"pipeline": "None", "embeddingServers": SERVERS},
    }
    return jobs.training_job(name, **{**defaults, **spec})


def with_plan(kubectl: Kubectl, job: Object) -> Object:
    """Return a job under a plan of the user's own, which is in the namespace."""
    asked = DLRMTrainingJob.from_data(job)
    tables = asked.spec.model.inline_tables("shop")
    assert tables is not None
    topology = builders.topology(2, num_nodes=asked.spec.trainer.num_nodes, device=CPU)
    made = builders.plan(plan_request(asked, tables=tables, topology=topology))
    plan = GivenPlan(algorithm=made.algorithm, tables=made.tables, servers=made.servers, request=made.request)
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plan"}, "data": {"plan.json": plan.to_json()}}
    )
    del job["spec"]["profiler"]
    return {**job, "spec": {**job["spec"], "planRef": {"name": "plan"}}}


def server(kubectl: Kubectl) -> Object:
    """Return the pod of the embedding server of the newest attempt."""
    return jobs.newest(kubectl, "shop", "server")["0"]


@pytest.fixture
def checkpoints(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder of this machine, and the checkpoints of a job that is there."""
    folder = tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        yield folder, {"persistentVolumeClaim": {"claimName": claim}}


def test_a_job_with_a_server_trains_to_its_end(namespace: Namespace) -> None:
    """Two trainers and a server are one training, and both Kubernetes Jobs complete."""
    kubectl = namespace.kubectl
    kubectl.apply(with_plan(kubectl, served_job("shop")))
    running = jobs.wait_for_stage(kubectl, "shop", "Running", "Succeeded", within_s=TRAINS_WITHIN_S)
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded", within_s=TRAINS_WITHIN_S)
    jobs.wait_for_log(kubectl, "shop", f"hold the shards of plan {seen['plan']['hash'].removeprefix('sha256:')[:12]}")

    assert seen.get("restarts", 0) == 0
    assert running["servers"]["desired"] == 1
    completed = lambda: server(kubectl)["status"]["phase"]  # noqa: E731
    eventually("the server has ended well", completed, accept="Succeeded".__eq__)


def test_trainers_of_two_nodes_share_a_server(namespace: Namespace) -> None:
    """Each node has a trainer; the server's rank comes after both, and its tables are for both."""
    kubectl = namespace.kubectl
    trainer = {**TRAINER, "numNodes": 2, "numProcPerNode": 1}
    template = {"spec": {"terminationGracePeriodSeconds": 10, **jobs.spread("shop")}}
    anywhere = {"pipeline": "None", "embeddingServers": {**SERVERS, "nodeSelector": {}}}
    job = served_job("shop", trainer=trainer, podTemplate=template, experimental=anywhere)
    kubectl.apply(with_plan(kubectl, job))
    running = jobs.wait_for_stage(kubectl, "shop", "Running", "Succeeded", within_s=TRAINS_WITHIN_S)
    nodes = {pod["spec"]["nodeName"] for pod in jobs.workers(kubectl, "shop").values()}
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded", within_s=TRAINS_WITHIN_S)
    jobs.wait_for_log(kubectl, "shop", f"hold the shards of plan {seen['plan']['hash'].removeprefix('sha256:')[:12]}")

    assert (running["workers"]["desired"], running["servers"]["desired"]) == (2, 1)
    assert len(nodes) == 2
    assert seen.get("restarts", 0) == 0


@pytest.mark.parametrize(
    "moment", ["a server", "a trainer", pytest.param("a server that saves", marks=pytest.mark.long)]
)
def test_a_process_that_is_killed_restarts_workers_and_servers_from_the_newest_checkpoint(
    namespace: Namespace, checkpoints: tuple[Path, dict[str, Any]], moment: str
) -> None:
    """All end in time, the message names the pod, and training goes on from what was saved."""
    kubectl, (folder, checkpoint) = namespace.kubectl, checkpoints
    saves = moment == "a server that saves"
    job = served_job(
        "shop", data={"numSamples": 100_000_000}, checkpoint={**checkpoint, "everySteps": 1 if saves else 20}
    )
    kubectl.apply(with_plan(kubectl, job))
    jobs.wait_for_stage(kubectl, "shop", "Running", within_s=TRAINS_WITHIN_S)
    eventually("there is a checkpoint", lambda: newest_step(folder), within_s=TRAINS_WITHIN_S)
    killed = jobs.workers(kubectl, "shop")["0"] if moment == "a trainer" else server(kubectl)
    if saves:
        eventually("a checkpoint is written", lambda: any(folder.glob("**/checkpoints/.step-*.part/*")))
    with contextlib.suppress(CommandError):  # the container may end under the command
        kubectl("exec", killed["metadata"]["name"], "--container=trainer", "--", "sh", "-c", KILL)
    saved = newest_step(folder)
    restarted = lambda seen: seen.get("restarts", 0) > 0  # noqa: E731
    seen = jobs.wait_for(kubectl, "shop", restarted, "was restarted")
    message = jobs.wait_for_events(kubectl, "shop", "WorkersRestarted")["WorkersRestarted"]
    jobs.wait_for_stage(kubectl, "shop", "Running", within_s=TRAINS_WITHIN_S)
    jobs.wait_for_log(kubectl, "shop", "going on from step")
    eventually("training goes on", lambda: newest_step(folder) > saved, within_s=TRAINS_WITHIN_S)

    assert (seen["restarts"], seen["restartsCountTowardsMax"]) == (1, 1)
    assert (seen["lastFailure"]["podName"], seen["lastFailure"]["exitCode"]) == (killed["metadata"]["name"], 137)
    assert killed["metadata"]["name"] in message
    assert ("embedding server's pod" in message) == (moment != "a trainer")


@pytest.mark.long
def test_tables_of_one_and_a_half_times_the_trainers_memory_train_with_a_server_alone(namespace: Namespace) -> None:
    """Without one the job is infeasible and says so; with one each pod stays within its control group's limit."""
    kubectl = namespace.kubectl
    tables = [*jobs.TABLES, {"name": "history", "numEmbeddings": 15_000_000, "embeddingDim": 32}]  # 1.8 GiB
    memory = {"limits": {"memory": "6Gi"}, "requests": {"cpu": "100m"}}  # the process, table, and a copy
    fits = {"embeddingServers": {"resources": memory, "tables": ["history"]}}
    common: dict[str, Any] = {
        "model": {"embeddingTables": tables, "batchSizePerDevice": 256, "embeddingOptimizer": "SGD"},
        "profiler": {"budgetSeconds": 5},
        "planner": {"maxMemoryPerDevice": "600Mi"},
    }
    kubectl.apply(served_job("alone", **common, experimental={"pipeline": "None"}))
    alone = jobs.wait_for_stage(kubectl, "alone", "Failed", within_s=TRAINS_WITHIN_S)
    kubectl.apply(served_job("shop", **common, experimental={"pipeline": "None", **fits}))
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded", within_s=TRAINS_WITHIN_S)

    assert alone["reason"] == "Infeasible"
    assert "history" in alone["message"]
    assert seen.get("restarts", 0) == 0
