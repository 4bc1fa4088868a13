"""Plans are named by their content: what happens when other inputs lead to an equal plan."""

from typing import Any

import pytest
from neuroshard_decisions import names
from support import builders
from support.operator.operator_process import JOB, TWO_NODES, OperatorProcess, Story
from support.operator.operator_world import World

PLAN = {"name": "own-plan", "key": "plan.json"}


def given_plan(**spec: Any) -> Story:
    """Return a job that trains under its user's plan."""
    story = Story(**spec)
    planned = Story().planned()
    [plan] = planned.world.of_kind("ConfigMap", names.PLAN)
    world = World()
    world.put({"kind": "ConfigMap", "metadata": {"name": "own-plan"}, "data": plan["data"]})
    world.put({"kind": "ConfigMap", "metadata": {"name": "renamed"}, "data": plan["data"]})
    world.submit(JOB, trainer=TWO_NODES, planRef=PLAN, **spec)
    story.world, story.operator = world, OperatorProcess(world)
    story.settle()
    return story


def suspended(story: Story) -> Story:
    """Suspend the job until all its pods are gone."""
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    return story


@pytest.mark.parametrize(
    "change",
    [
        {"model": {**builders.job_data()["spec"]["model"], "batchSizePerDevice": 128}},
        {"experimental": {"planner": {"seed": 7}}},
        {"planRef": {"name": "renamed", "key": "plan.json"}},
    ],
    ids=["another batch size", "another seed", "another name of the same plan"],
)
def test_an_equal_plan_for_other_inputs_is_taken_up(change: dict[str, Any]) -> None:
    """Its ConfigMap has the name already; it is labelled for the new inputs, and the workers start under it."""
    story = given_plan()
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")
    suspended(story).world.change_spec(JOB, suspend=False, **change)
    story.settle()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert len(story.world.of_kind("ConfigMap", names.PLAN)) == 1


def test_an_equal_plan_of_the_planner_is_taken_up() -> None:
    """The planner finds for another seed what it found before."""
    story = Story().running()
    suspended(story).world.change_spec(JOB, suspend=False, experimental={"planner": {"seed": 7}})
    story.settle()
    story.do(names.PLANNER)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


def test_plan_only_ends_with_an_equal_plan_too() -> None:
    """It does not wait for a ConfigMap that is there."""
    story = Story(launchPolicy="Manual").planned()
    suspended(story).world.change_spec(
        JOB, suspend=False, experimental={"planner": {"seed": 7}}, launchPolicy="PlanOnly"
    )
    story.settle()
    story.do(names.PLANNER)

    assert story.seen == ("Succeeded", "PlanOnly")
