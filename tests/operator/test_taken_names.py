"""Children of an earlier job of the same name that do not go."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import JOB, KEY, OperatorProcess, Story
from support.operator.operator_world import World, stamp


def held_child(world: World, kind: str, name: str, finalizers: list[str]) -> dict[str, Any]:
    """Store a child of an earlier job that is being deleted."""
    owner = {"kind": "DLRMTrainingJob", "name": JOB, "uid": "the-one-before", "controller": True}
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.JOB_LABEL: JOB, names.ROLE_LABEL: names.PROFILER}
    metadata = {
        "name": name,
        "labels": labels,
        "ownerReferences": [owner],
        "finalizers": finalizers,
        "deletionTimestamp": stamp(world.now),
    }
    return world.put({"kind": kind, "metadata": metadata})


def look(story: Story, times: int) -> list[bool]:
    """Let the operator look once a second; return which passes ended for want of a newer view."""
    rested = []
    for _ in range(times):
        story.world.now += timedelta(seconds=1)
        story.world.run_job_controller()
        story.world.watches.catch_up()
        rested.append(asyncio.run(story.operator.look(KEY)))
    return rested


@pytest.mark.parametrize(
    ("finalizers", "found"),
    [(["example.com/backup"], "example.com/backup"), (["foregroundDeletion"], "does not go"), ([], "does not go")],
)
def test_a_name_that_stays_taken_is_told(finalizers: list[str], found: str) -> None:
    """With what holds it, and without a pass every half second; the job goes on once the name is free."""
    story = Story.__new__(Story)
    story.world = World()
    story.operator = OperatorProcess(story.world)
    held_child(story.world, "ServiceAccount", f"{JOB}-profiler", finalizers)
    story.world.submit(JOB, trainer={"numNodes": 1})
    look(story, 20)
    rested = look(story, 20)

    assert story.status["reason"] == "ChildRefused"
    assert f"ServiceAccount {JOB}-profiler: the name is still taken" in story.status["message"]
    assert found in story.status["message"]
    assert all(rested)
    assert story.operator.requeue_after_s == 30
    del story.world.objects["ServiceAccount", f"{JOB}-profiler"]
    look(story, 20)
    story.running()
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_name_that_is_free_in_a_moment_is_waited_for() -> None:
    """As after `kubectl replace --force`: no message names it."""
    story = Story.__new__(Story)
    story.world = World()
    story.operator = OperatorProcess(story.world)
    held_child(story.world, "ServiceAccount", f"{JOB}-profiler", [])
    story.world.submit(JOB, trainer={"numNodes": 1})
    look(story, 3)
    del story.world.objects["ServiceAccount", f"{JOB}-profiler"]
    story.settle()
    story.running()

    assert all("still taken" not in (status.get("message") or "") for status in story.world.statuses)
