"""A training on two nodes that is killed, and resumed under a plan of other placements."""

import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from e2e import jobs
from e2e.volumes import newest_step, shared_volume
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]
EVERY_STEPS = 20


def mixed_plans() -> dict[str, GivenPlan]:
    """Return two plans of rows, columns, and copies, in which every table has another placement."""
    topology = builders.topology(2, num_nodes=2)
    users, goods, shops, words = (
        builders.table(str(each["name"]), num_embeddings=each["numEmbeddings"], embedding_dim=each["embeddingDim"])
        for each in jobs.TABLES
    )
    request = PlanRequest(tables=builders.table_set(users, goods, shops, words), topology=topology)
    first = (
        by_columns(users, (1, 12), (0, 20)),
        by_rows(goods, topology),
        everywhere(shops, topology),
        by_rows(words, topology),
    )
    second = (
        by_rows(users, topology),
        everywhere(goods, topology),
        by_columns(shops, (0, 32)),
        by_columns(words, (0, 16), (1, 16)),
    )
    return {"first": given_plan(request, *first), "second": given_plan(request, *second)}


def kill_trainer(kubectl: Kubectl, index: str) -> None:
    """Send SIGKILL to the trainer's processes of a worker, all at once."""
    pod = jobs.workers(kubectl, "shop")[index]["metadata"]["name"]
    with contextlib.suppress(CommandError):  # the container ends under the command
        kubectl("exec", pod, "--container=trainer", "--", "sh", "-c", "kill -9 -1")


def test_a_killed_training_on_two_nodes_resumes_under_another_mixed_plan(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """From the last checkpoint that was whole, with the new plan's shards in the ranks' memory."""
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    texts = {name: plan.to_json() for name, plan in mixed_plans().items()}
    for name, text in texts.items():
        metadata = {"name": name}
        kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"plan.json": text}})
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(
            jobs.training_job(
                "shop",
                planRef={"name": "first"},
                data={"numSamples": 100_000_000},
                checkpoint={"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS},
            )
        )
        jobs.wait_for_stage(kubectl, "shop", "Running")
        eventually("there is a checkpoint", lambda: newest_step(folder))
        kill_trainer(kubectl, "1")
        saved = newest_step(folder)
        kubectl.patch(jobs.KIND, "shop", {"spec": {"suspend": True}})
        jobs.wait_for_stage(kubectl, "shop", "Suspended")
        jobs.wait_until_none_lives(kubectl, "shop")  # a trainer that is asked to end may write one more
        before = newest_step(folder)
        kubectl.patch(jobs.KIND, "shop", {"spec": {"suspend": False, "planRef": {"name": "second"}}})
        seen = jobs.wait_for_stage(kubectl, "shop", "Running")
        eventually("training goes on", lambda: newest_step(folder) > before + EVERY_STEPS)
        [live] = [json.loads(path.read_text()) for path in folder.glob("**/live-sharding.json")]
        jobs.wait_for_log(kubectl, "shop", f"going on from step {before} of")

    assert before >= saved > 0
    digest = hashlib.sha256(texts["second"].encode()).hexdigest()
    assert (seen["plan"]["hash"], live["plan_sha256"]) == (f"sha256:{digest}", digest)
    assert seen["plan"]["algorithm"] == "torchrec"
