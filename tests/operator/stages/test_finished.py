"""What is left of a job that has ended."""

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import Story
from support.operator.operator_world import owners


def test_an_ended_job_is_deleted_when_its_time_is_over() -> None:
    """The time counts from the end, also if nobody looked meanwhile."""
    story = Story(launchPolicy="PlanOnly", runPolicy={"ttlSecondsAfterFinished": 60}).planned()
    assert story.operator.requeue_after_s == pytest.approx(60, abs=1)
    story.later(61)

    assert story.world.of_kind("DLRMTrainingJob") == []
    assert [each for each in story.world.objects.values() if owners(each)] == []


def test_clean_up_takes_what_the_policy_says() -> None:
    """All: also Jobs that have ended, with their logs."""
    story = Story(launchPolicy="PlanOnly", runPolicy={"cleanPodPolicy": "All"}).planned()

    assert story.world.of_kind("Job") == []
    assert story.world.of_kind("ConfigMap", names.PLAN) != []
