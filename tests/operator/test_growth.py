"""Elastic jobs that train on fewer nodes than they may: more nodes are planned for, and taken where that pays."""

from typing import Any

import pytest
from neuroshard_decisions import names
from support.operator.elastic_story import COOLDOWN_S, joined, nodes, training_on
from support.operator.operator_process import Story
from support.operator.replanning_story import plan_in_force, report


def size(story: Story) -> int:
    """Return the recorded number of nodes."""
    number: int = story.status["elastic"]["numNodes"]
    return number


def verdict(story: Story) -> str | None:
    """Return the verdict of the last look for more nodes."""
    found: str | None = story.status["elastic"].get("growth", {}).get("verdict")
    return found


def test_nodes_that_join_are_planned_for_and_taken() -> None:
    """Planned next to the workers, which stop with a checkpoint only for the plan that pays; no restart counts."""
    story = joined(training_on(1), 2)
    before = plan_in_force(story)
    assert (size(story), verdict(story)) == (1, None)
    assert story.seen == ("Running", "AllWorkersReady")
    story.do(names.PLANNER)
    decided = story.status["elastic"]
    story.bury()
    story.start_workers()

    assert (decided["numNodes"], decided["reason"]) == (2, "NodesJoined")
    assert "half of the difference counts" in decided["message"]
    assert (story.seen, len(story.pods(names.WORKER))) == (("Running", "AllWorkersReady"), 2)
    assert plan_in_force(story) != before
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert story.reasons().count("Resized") == 2
    assert story.world.doubled == []


def test_nodes_are_not_looked_at_before_the_cooldown() -> None:
    """Half an hour from the last change of the number on."""
    story = joined(training_on(1), 2, COOLDOWN_S - 120)

    assert "growth" not in story.status["elastic"]
    assert len(story.jobs(names.PLANNER)) == 1


def test_a_job_without_more_nodes_looks_again() -> None:
    """Every five minutes, and without a planner."""
    story = joined(training_on(1), 1)
    first = story.status["elastic"]["growth"]
    story.later(310)

    assert first["verdict"] == verdict(story) == "NoNodes"
    assert story.status["elastic"]["growth"]["time"] > first["time"]
    assert len(story.jobs(names.PLANNER)) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"checkpoint_ms": None}, "PriceUnknown"), ({"step": 99_000}, "NearEnd"), ({"start_ms": 1e9}, "GainTooSmall")],
)
def test_more_nodes_that_do_not_pay_are_left(fields: dict[str, Any], expected: str) -> None:
    """By the rules of every restart: its price is known, is gained twice, and steps remain."""
    story = training_on(1)
    story.world.nodes = nodes(2)
    report(story, **fields)
    story.later(COOLDOWN_S)
    story.do(names.PLANNER)

    assert (size(story), verdict(story), story.status["restarts"]) == (1, expected, 0)


def test_nodes_that_leave_while_they_are_planned_for_are_not_taken() -> None:
    """The plan is kept for the next time."""
    story = joined(training_on(1), 2)
    story.world.nodes = nodes(1)
    story.later(20)
    story.do(names.PLANNER)

    assert (size(story), verdict(story)) == (1, "NoNodes")


def test_a_plan_that_is_not_found_for_more_nodes_stops_nothing() -> None:
    """Training goes on, and the reason is shown."""
    story = joined(training_on(1), 2)
    story.fail(names.PLANNER, 3)

    assert (size(story), verdict(story)) == (1, "CandidateFailed")
    assert story.seen == ("Running", "AllWorkersReady")


def test_nodes_that_were_full_double_the_cooldown() -> None:
    """Open nodes whose GPUs other pods have: the workers go back after two minutes, and wait longer next time."""
    story = joined(training_on(1), 2)
    story.do(names.PLANNER)
    story.world.has_free_nodes = False
    story.bury()
    story.later(130)
    story.world.has_free_nodes = True
    story.bury()
    back = story.status["elastic"]
    story.start_workers()
    report(story, step=7_000)
    story.later(COOLDOWN_S + 60)

    assert (back["numNodes"], back["missed"]) == (1, 1)
    assert "growth" not in story.status["elastic"]
    assert story.world.doubled == []
