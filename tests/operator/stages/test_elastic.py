"""Elastic jobs: the number of nodes of each start of the workers, by what can take them."""

import json
from typing import Any

import pytest
from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions import names
from support.operator.operator_process import JOB, Story

GPUS = {"limits": {"nvidia.com/gpu": 8}}
BATCH = 512


def node(name: str, **spec: object) -> dict[str, Any]:
    """Return a node of eight GPUs."""
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def nodes(count: int) -> list[dict[str, Any]]:
    """Return that many open nodes."""
    return [node(f"node-{index}") for index in range(count)]


def elastic(most: int = 4, least: int = 1, **fields: Any) -> dict[str, Any]:
    """Return the parts of an elastic job's spec."""
    return {
        "trainer": {"numNodes": most, "resourcesPerNode": GPUS},
        "experimental": {"elastic": {"minNodes": least, **fields}},
    }


def started(count: int, **spec: Any) -> Story:
    """Return the story of an elastic job that is submitted where that many nodes are open, and is planned."""
    story = Story(**{"suspend": True, **elastic(), **spec})
    story.world.training_job(JOB)["spec"]["model"]["batchSizePerDevice"] = BATCH
    story.world.nodes = nodes(count)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    return story.planned()


def size(story: Story) -> tuple[int, str]:
    """Return the recorded number of nodes, and its reason."""
    recorded = story.status["elastic"]
    return recorded["numNodes"], recorded["reason"]


def job_file(story: Story) -> dict[str, Any]:
    """Return the spec that the workers of the newest start read."""
    workers = story.world.of_kind("Job", names.WORKER)[-1]
    volumes = {volume["name"]: volume for volume in workers["spec"]["template"]["spec"]["volumes"]}
    files = story.world.objects["ConfigMap", volumes["files"]["configMap"]["name"]]
    spec: dict[str, Any] = json.loads(unpack_files(contents_of(files))["job.json"])["spec"]
    return spec


def restarted(story: Story, count: int) -> Story:
    """Let a worker's node be drained, and the workers start again where that many nodes are open."""
    story.world.nodes = nodes(count)
    story.later(700)
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")
    story.later(40)
    story.do(names.PLANNER)
    story.start_workers()
    return story


def test_a_job_starts_on_as_many_nodes_as_there_are() -> None:
    """Two of at most four: two workers, a plan for sixteen devices, and the samples of a step as on four nodes."""
    story = started(2)
    story.start_workers()
    trained = job_file(story)

    assert size(story) == (2, "NodesAvailable")
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["workers"]["desired"] == len(story.pods(names.WORKER)) == 2
    assert story.status["plan"]["worldSize"] == 16
    assert trained["trainer"]["numNodes"] == 2
    assert trained["model"]["batchSizePerDevice"] == 2 * BATCH
    assert "Resized" in story.reasons()


def test_a_job_of_all_its_nodes_tells_of_no_size() -> None:
    """No event, and the spec as the user wrote it."""
    story = started(6)

    assert size(story) == (4, "NodesAvailable")
    assert "Resized" not in story.reasons()
    assert job_file(story)["model"]["batchSizePerDevice"] == BATCH


def test_a_job_waits_for_its_minimum_of_nodes() -> None:
    """Never fewer workers than asked for, whatever the nodes are."""
    story = started(1, **elastic(4, 2))

    assert size(story) == (2, "NodesAvailable")
    assert "waits for its minimum" in story.status["elastic"]["message"]
    assert len(story.pods(names.WORKER)) == 2


def test_a_restart_takes_the_nodes_that_are_there_then() -> None:
    """Four, then one, then three that do not divide the samples of a step and leave two."""
    story = restarted(started(4), 1)
    fewer = size(story)
    story = restarted(story, 3)

    assert (fewer, size(story)) == ((1, "NodesLost"), (2, "NodesJoined"))
    assert story.status["elastic"]["resizes"] == 2
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (2, 0)
    assert story.world.doubled == []


def test_a_size_that_was_planned_for_is_not_planned_again() -> None:
    """Two, one, two nodes: the plan for two is kept."""
    story = restarted(restarted(started(2), 1), 2)

    assert size(story) == (2, "NodesJoined")
    assert len(story.jobs(names.PLANNER)) == 2
    assert story.seen == ("Running", "AllWorkersReady")


def test_nodes_that_come_while_a_start_is_prepared_wait_for_the_next_one() -> None:
    """A plan is made for one size, and its workers start, however often nodes come and go meanwhile."""
    story = started(2)
    story.world.nodes = nodes(4)
    story.later(60)

    assert size(story) == (2, "NodesAvailable")
    assert len(story.jobs(names.PLANNER)) == 1


def test_cordoned_nodes_take_no_workers() -> None:
    """A drain takes the pods away after the cordon; the workers restart on the nodes that are left."""
    story = started(2)
    story.start_workers()
    story.world.nodes = [node("node-0"), node("node-1", unschedulable=True)]
    story.later(700)
    assert story.seen == ("Running", "AllWorkersReady")
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")
    story.later(40)

    assert size(story) == (1, "NodesLost")


def test_workers_that_find_no_node_start_again_on_those_of_their_peers() -> None:
    """After two minutes: other pods have the GPUs that nodes offer, or a quota keeps some from being made."""
    story = started(4)
    for pod in story.pods(names.WORKER)[2:]:
        pod["spec"]["nodeName"] = ""
        story.world.touch(pod)
    story.later(100)
    assert size(story) == (4, "NodesAvailable")
    story.later(30)
    story.do(names.PLANNER)
    story.bury()
    story.later(30)
    story.start_workers()

    assert size(story) == (2, "NodesLost")
    assert "2 of 4 workers have found a node" in story.status["elastic"]["message"]
    assert (story.seen, story.status["restartsCountTowardsMax"]) == (("Running", "AllWorkersReady"), 0)
    assert story.world.doubled == []


def test_workers_at_the_minimum_wait_for_nodes() -> None:
    """As those of any other job do, without a restart."""
    story = started(1, **elastic(4, 2))
    for pod in story.pods(names.WORKER):
        pod["spec"]["nodeName"] = ""
        story.world.touch(pod)
    story.later(3600)

    assert size(story) == (2, "NodesAvailable")
    assert story.status["restarts"] == 0


def test_a_size_without_a_plan_is_left_out() -> None:
    """The tables do not fit on one node: the job takes two, waits for them, and never plans for one again."""
    story = Story(suspend=True, **elastic())
    story.world.nodes = nodes(1)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.do(names.PROFILER)
    story.fail(names.PLANNER, ExitCode.INFEASIBLE)
    story.settle()
    story.do(names.PLANNER)

    assert size(story) == (2, "NoPlan")
    assert story.status["elastic"]["leastNodes"] == 2
    assert len(story.pods(names.WORKER)) == 2
    restarted(story, 1)
    assert size(story)[0] == 2


def test_a_job_without_a_plan_for_its_maximum_fails() -> None:
    """As any other job does."""
    story = Story(suspend=True, **elastic(2, 2))
    story.world.nodes = nodes(2)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.do(names.PROFILER)
    story.fail(names.PLANNER, ExitCode.INFEASIBLE)

    assert story.seen == ("Failed", "Infeasible")


def test_a_resumed_job_chooses_its_size_again() -> None:
    """What was decided before the suspension is of other nodes, and maybe of other bounds."""
    story = started(1)
    story.start_workers()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    suspended = story.status
    story.world.nodes = nodes(2)
    story.world.change_spec(JOB, suspend=False)
    story.later(30)

    assert "elastic" not in suspended
    assert size(story) == (2, "NodesAvailable")


@pytest.mark.parametrize(
    ("fields", "batch", "rates"),
    [
        ({}, 4 * BATCH, ("0.02", "0.001")),
        ({"batch": "PerDevice"}, BATCH, ("0.02", "0.001")),
        ({"batch": "PerDevice", "scaleLearningRate": "Linear"}, BATCH, ("0.005", "0.00025")),
    ],
)
def test_batch_and_learning_rates_follow_the_size_as_asked(
    fields: dict[str, Any], batch: int, rates: tuple[str, str]
) -> None:
    """On one of four nodes."""
    spec = job_file(started(1, **elastic(**fields)))
    training = spec.get("training", {})

    assert spec["model"]["batchSizePerDevice"] == batch
    assert (training["embeddingLearningRate"], training["denseLearningRate"]) == rates
