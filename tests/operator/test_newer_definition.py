"""Jobs under a definition of a newer release: its fields and defaults reach an operator that does not know them."""

from collections.abc import Callable
from typing import Any

import pytest
from neuroshard_api.job.resource import Rule
from neuroshard_api.job.training_job import KIND
from neuroshard_api.job.workers import Trainer
from neuroshard_decisions import names
from support.operator.operator_process import JOB, Story

NEWER: tuple[dict[str, Any], ...] = (
    {"newPart": {"enabled": True}},
    {"trainer": {"numNodes": 2, "newDefaultedField": 3}},
    {"model": {"newField": "x"}},
)


def upgrade_definition(story: Story, extra: dict[str, Any]) -> None:
    """Let the API server fill in fields that the operator does not know, as a newer definition's defaults."""
    spec = story.world.training_job(JOB)["spec"]
    for part, fields in extra.items():
        spec[part] = {**spec[part], **fields} if part in spec and isinstance(fields, dict) else fields
    story.world.touch(story.world.training_job(JOB))


@pytest.mark.parametrize("extra", NEWER, ids=["a part", "a default", "a field of a part"])
def test_a_newer_definition_leaves_a_running_job_running(extra: dict[str, Any]) -> None:
    """The operator passes over fields that it does not know, says so in a warning, and keeps the pods."""
    story = Story().running()
    upgrade_definition(story, extra)
    story.settle()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert "NewerDefinition" in story.warnings


@pytest.mark.parametrize("extra", NEWER, ids=["a part", "a default", "a field of a part"])
def test_a_new_job_under_a_newer_definition_runs(extra: dict[str, Any]) -> None:
    """It is planned and trained as if it did not have the unknown fields, which the warning names."""
    story = Story()
    upgrade_definition(story, extra)
    story.settle()
    story.do(names.PROFILER).do(names.PLANNER)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert next(iter(extra)) in story.warnings["NewerDefinition"]


def test_the_warning_is_gone_once_the_operator_knows_all_fields() -> None:
    """An upgraded operator, or a definition that was rolled back, clears it."""
    story = Story().running()
    upgrade_definition(story, NEWER[0])
    story.settle()
    del story.world.training_job(JOB)["spec"]["newPart"]
    story.world.touch(story.world.training_job(JOB))
    story.settle()

    assert "NewerDefinition" not in story.warnings


def test_a_value_that_cannot_be_read_never_ends_a_job_that_was_started() -> None:
    """A newer definition may allow values that this operator rejects; the workers go on untouched."""
    story = Story().running()
    story.world.training_job(JOB)["spec"]["launchPolicy"] = "Eventually"
    story.world.touch(story.world.training_job(JOB))
    story.settle()

    assert story.status["stage"] == "Running"
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert "InvalidSpec" in story.warnings


def test_a_value_that_cannot_be_read_fails_a_job_that_is_new() -> None:
    """Nothing was started, so nothing is lost."""
    story = Story(launchPolicy="Eventually")

    assert story.seen == ("Failed", "InvalidSpec")


@pytest.fixture
def tighten_rules(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Upgrade to a release with a rule between fields that earlier ones did not have: jobs of two nodes break it."""

    def tighten(story: Story) -> None:
        rule = Rule(cel="false", message="two nodes are refused", holds=lambda trainer: trainer.num_nodes != 2)
        monkeypatch.setattr(Trainer, "cel_rules", (*Trainer.cel_rules, rule))
        story.world.touch(story.world.training_job(JOB))

    return tighten


@pytest.mark.parametrize("code", [0, 1], ids=["succeeds", "fails"])
def test_workers_of_a_job_that_this_release_refuses_are_served(
    tighten_rules: Callable[[Story], None], code: int
) -> None:
    """An upgrade with stricter rules between fields loses sight of no worker, and failures lead to a restart."""
    story = Story().running()
    tighten_rules(story)
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    assert "InvalidSpec" in story.warnings
    assert "two nodes are refused" in story.warnings["InvalidSpec"]
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, code)
    story.settle()

    assert story.seen == (("Launching", "WorkersStarting") if code else ("Succeeded", "TrainingCompleted"))


def test_a_job_that_this_release_refuses_gets_no_new_plan(tighten_rules: Callable[[Story], None]) -> None:
    """Once it needs one, it waits for another spec, and plans when it has it."""
    story = Story().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    tighten_rules(story)
    model = story.world.training_job(JOB)["spec"]["model"]
    story.world.change_spec(JOB, suspend=False, model={**model, "batchSizePerDevice": 8})
    story.settle()
    assert story.seen == ("Pending", "InvalidSpec")
    assert len(story.jobs(names.PLANNER)) == 1
    story.world.change_spec(JOB, trainer={"numNodes": 1})
    story.settle()
    story.do(names.PROFILER)  # one node has no network that the profile of two nodes could be for

    assert story.seen == ("Planning", "PlannerRunning")
    assert "InvalidSpec" not in story.warnings


def test_a_rule_that_asks_for_another_plan_restarts_under_the_old_one_where_none_can_be_made(
    tighten_rules: Callable[[Story], None],
) -> None:
    """Workers under the plan there is are better than none until somebody changes the spec."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = Story(failurePolicy={"rules": [rule]}).running()
    tighten_rules(story)
    story.settle()
    story.fail(names.WORKER, 9)

    assert story.seen == ("Launching", "WorkersStarting")
    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert len(story.jobs(names.PLANNER)) == 1
    [told] = [event["message"] for event in story.world.events if event["reason"] == "WorkersRestarted"]
    assert "two nodes are refused" in told


def test_a_new_job_that_breaks_a_rule_fails_though_children_of_its_forerunner_are_left() -> None:
    """Jobs of a deleted job of the same name belong to another one; the garbage collector has not come by yet."""
    story = Story().running()
    del story.world.objects[KIND, JOB]
    story.world.submit(JOB, trainer={"numNodes": 2, "numProcPerNode": "cpu"})
    story.settle()

    assert story.seen == ("Failed", "InvalidSpec")


def test_a_new_job_that_breaks_a_rule_fails() -> None:
    """Nothing was started, so nothing is lost; this holds where the definition is older than the operator."""
    story = Story(trainer={"numNodes": 2, "numProcPerNode": "cpu"})

    assert story.seen == ("Failed", "InvalidSpec")


def test_an_ended_job_stays_ended_whatever_its_conditions_look_like() -> None:
    """The completion time alone says that it ended; conditions of another release may be unreadable."""
    story = Story(runPolicy={"cleanPodPolicy": "All"}).running()
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    story.settle()
    assert story.seen == ("Succeeded", "TrainingCompleted")
    story.status["conditions"] = [{"type": "Succeeded", "status": "Certainly"}]
    story.world.touch(story.world.training_job(JOB))
    made = len(story.world.created)
    story.settle()

    assert len(story.world.created) == made
    assert story.status["stage"] == "Succeeded"


def test_a_default_of_a_newer_definition_is_seen_without_a_change_of_the_job() -> None:
    """The API server fills it in as it reads the job: no version changes, and no watch brings anything."""
    story = Story().running()
    story.world.training_job(JOB)["spec"]["newPart"] = {"enabled": True}
    story.settle()
    assert "NewerDefinition" not in story.warnings
    story.later(301)

    assert "spec.newPart" in story.warnings["NewerDefinition"]
    assert story.status["stage"] == "Running"
