"""Workers that are kept to a kind of GPU whose nodes close after the plan was made."""

from typing import Any

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import JOB, Story

TRAINER = {"numNodes": 1, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}


def gpu_node(name: str, product: str, **spec: object) -> dict[str, Any]:
    """Return a node of eight GPUs."""
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def waiting_story() -> Story:
    """Return the story of a job that is planned for one of two kinds, and whose workers find no node."""
    story = Story(suspend=True, trainer=TRAINER)
    story.world.nodes = [gpu_node("a", "H200"), gpu_node("b", "H200"), gpu_node("c", "A100")]
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.do(names.PROFILER)
    story.world.has_free_nodes = False
    story.do(names.PLANNER)
    return story


CLOSED: list[Any] = [
    pytest.param({"unschedulable": True}, id="cordoned"),
    pytest.param({"taints": [{"key": "maintenance", "effect": "NoSchedule"}]}, id="tainted"),
]


@pytest.mark.parametrize("closed", CLOSED)
def test_workers_whose_kind_of_node_is_closed_say_so_and_keep_their_plan(closed: dict[str, object]) -> None:
    """After two minutes, with the remedy; the warning is gone once a node is open."""
    story = waiting_story()
    plan = story.status["plan"]["hash"]
    story.world.nodes = [gpu_node("a", "H200", **closed), gpu_node("b", "H200", **closed), gpu_node("c", "A100")]
    story.later(100)
    assert "NoNodeOfKind" not in story.warnings
    story.later(30)

    assert "H200" in story.warnings["NoNodeOfKind"]
    assert "suspend and resume the job" in story.warnings["NoNodeOfKind"]
    assert story.status["plan"]["hash"] == plan
    story.world.nodes = [gpu_node("a", "H200")]
    story.later(31)
    assert "NoNodeOfKind" not in story.warnings


def test_workers_that_wait_for_a_busy_node_of_an_open_kind_have_no_such_warning() -> None:
    """A full cluster is not a reason to doubt the kind."""
    story = waiting_story()
    story.later(3600)

    assert "NoNodeOfKind" not in story.warnings
    assert story.status["hardware"]["gpuProduct"] == "H200"


def test_the_remedy_of_the_warning_helps() -> None:
    """Suspended and resumed, the job gets the kind that is open."""
    story = waiting_story()
    story.world.nodes = [gpu_node("a", "H200", unschedulable=True), gpu_node("c", "A100")]
    story.later(130)
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False)
    story.later(1)

    assert story.status["hardware"]["gpuProduct"] == "A100"
