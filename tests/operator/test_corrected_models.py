"""Jobs that correct the cost models of their hardware by their own steps, and later jobs that are planned with them."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from neuroshard_decisions import names
from support.depth import depth
from support.operator.operator_process import JOB, KEY, OperatorProcess, Story
from support.operator.operator_world import CrashError
from support.operator.replanning_story import DRIFTED, VOLUME, report

CORRECTS: dict[str, Any] = {**VOLUME, "experimental": {"profiler": {"correctBySteps": True}}}


def corrected_models(story: Story) -> list[dict[str, Any]]:
    """Return the corrected models of the namespace."""
    found = story.world.of_kind("ConfigMap", names.PROFILE)
    return [each for each in found if each["metadata"]["name"].startswith("neuroshard-corrected-")]


def correct(story: Story, *, error: float = 0.2) -> Story:
    """Let steady steps be reported, and the calibrator work."""
    story.world.correction_error = error
    report(story)
    story.later(60)
    return story.do(names.CALIBRATOR)


def next_job(story: Story, **spec: Any) -> Story:
    """Delete the job, and let another one of its name begin in the same namespace."""
    story.world.remove("DLRMTrainingJob", JOB)
    for kind, name in [place for place, each in story.world.objects.items() if "ownerReferences" in each["metadata"]]:
        story.world.objects.pop((kind, name))
    story.operator = OperatorProcess(story.world)
    story.world.submit(JOB, **{"trainer": {"numNodes": 2}, **spec})
    story.settle()
    return story


def bundle_of(story: Story) -> str:
    """Return the ConfigMap of the cost models that the newest planner mounts."""
    job = story.world.of_kind("Job", names.PLANNER)[-1]
    volumes = {each["name"]: each for each in job["spec"]["template"]["spec"]["volumes"]}
    name: str = volumes["bundle"]["configMap"]["name"]
    return name


def test_the_calibrator_writes_below_its_volume() -> None:
    """Cost models are written next to their place and renamed, and the root of its files cannot be written."""
    story = Story(**CORRECTS).running()
    report(story)
    story.later(60)
    [pod] = story.pods(names.CALIBRATOR)
    [container] = pod["spec"]["containers"]
    command, mounts = container["command"], {each["mountPath"] for each in container["volumeMounts"]}
    out = command[command.index("--out") + 1]

    assert out == command[command.index("--from") + 1]
    assert out not in mounts
    assert out.rpartition("/")[0] in mounts


def test_a_job_that_trains_steadily_leaves_corrected_models() -> None:
    """They belong to no job, cannot be changed, and have the labels of a profile; the status has their error."""
    story = correct(Story(**CORRECTS).running())
    [kept] = corrected_models(story)
    correction = story.status["correction"]

    assert (kept["immutable"], "ownerReferences" in kept["metadata"]) == (True, False)
    assert kept["metadata"]["labels"][names.ROLE_LABEL] == names.PROFILE
    assert correction["configMapRef"]["name"] == kept["metadata"]["name"]
    assert correction["errorPercent"] == 20
    assert correction["planHash"] == story.status["plan"]["hash"]
    assert story.reasons().count("CostModelsCorrected") == 1
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_plan_is_corrected_for_once() -> None:
    """Further reports start no further calibrator, and change nothing of what is kept."""
    story = correct(Story(**CORRECTS).running())
    jobs, kept = story.jobs(names.CALIBRATOR), corrected_models(story)
    report(story, step=6_000)
    story.later(60)

    assert (story.jobs(names.CALIBRATOR), corrected_models(story)) == (jobs, kept)


def test_steps_that_became_slower_correct_nothing() -> None:
    """A calibration would take the cause for the device."""
    story = Story(**CORRECTS).running()
    report(story, DRIFTED)
    story.later(60)

    assert story.jobs(names.CALIBRATOR) == []
    assert ("ConfigMap", names.steps(JOB, story.status["plan"]["hash"])) not in story.world.objects


def test_steps_of_the_reference_alone_correct_nothing() -> None:
    """An error is held out only on other steps; the reports of later ones correct."""
    story = Story(**CORRECTS).running()
    report(story, step=250)
    story.later(60)
    before = story.jobs(names.CALIBRATOR)
    report(story, step=1_000)
    story.later(60)

    assert (before, len(story.jobs(names.CALIBRATOR))) == ([], 1)


def test_without_the_field_nothing_is_made() -> None:
    """A job gets neither calibrator nor status of it."""
    story = correct(Story(**VOLUME).running())

    assert (story.jobs(names.CALIBRATOR), "correction" in story.status) == ([], False)


def test_corrected_models_are_kept_where_their_error_is_the_least() -> None:
    """Each further one has a smaller error, so that few heap up; the status says why another is not kept."""
    story = correct(Story(**CORRECTS).running(), error=0.2)
    correct(next_job(story, **CORRECTS).do(names.PLANNER).running(), error=0.3)
    worse = story.status["correction"]
    correct(next_job(story, **CORRECTS).do(names.PLANNER).running(), error=0.1)

    assert ("configMapRef" in worse, worse["errorPercent"]) == (False, 30)
    assert "not kept: their error is 30 %" in worse["message"]
    assert len(corrected_models(story)) == 2
    assert story.status["correction"]["errorPercent"] == 10


def test_a_later_job_is_planned_with_the_best_of_them() -> None:
    """Where its spec says so; the status names them, with their error."""
    story = correct(Story(**CORRECTS).running(), error=0.2)
    next_job(story, **CORRECTS)
    [kept] = corrected_models(story)
    name = kept["metadata"]["name"]

    assert bundle_of(story) == name
    assert (story.status["profile"]["correctedBy"], story.status["profile"]["correctedErrorPercent"]) == (name, 20)
    next_job(story, **VOLUME)
    assert bundle_of(story).startswith("neuroshard-profile-")
    assert "correctedBy" not in story.status["profile"]


@pytest.mark.parametrize("model", [{"batchSizePerDevice": 4096}, {"embeddingTables": [{"name": "t0"}]}])
def test_corrections_of_another_batch_size_or_other_tables_are_not_taken(model: dict[str, Any]) -> None:
    """Factors of one model say nothing of another."""
    story = correct(Story(**CORRECTS).running())
    table = {"numEmbeddings": 77, "embeddingDim": 8}
    tables = [{**table, **each} for each in model.get("embeddingTables", [])]
    usual = story.world.training_job(JOB)["spec"]["model"]
    next_job(story, **CORRECTS, model={**usual, **model, **({"embeddingTables": tables} if tables else {})})

    assert bundle_of(story).startswith("neuroshard-profile-")


def test_a_correction_that_is_made_later_changes_no_plan() -> None:
    """The choice is made when planning begins, and a running job keeps its plan and its workers."""
    story = Story(**CORRECTS).running()
    before = (story.status["plan"], story.jobs(names.WORKER), story.jobs(names.PLANNER))
    correct(story)
    story.later(600)

    assert len(corrected_models(story)) == 1
    assert (story.status["plan"], story.jobs(names.WORKER), story.jobs(names.PLANNER)) == before
    assert "correctedBy" not in story.status["profile"]


def test_corrected_models_that_were_deleted_leave_a_planned_job_alone() -> None:
    """It has its plan; a job that begins to plan is planned with the profile as it was measured."""
    story = correct(Story(**CORRECTS).running())
    next_job(story, **CORRECTS).do(names.PLANNER).running()
    plan = story.status["plan"]
    for each in corrected_models(story):
        story.world.remove("ConfigMap", each["metadata"]["name"])
    story.later(60)
    kept = (story.status["plan"], story.seen)
    next_job(story, **CORRECTS)

    assert kept == (plan, ("Running", "AllWorkersReady"))
    assert bundle_of(story).startswith("neuroshard-profile-")


def test_a_calibrator_that_fails_leaves_the_training_alone() -> None:
    """The status says why, and no further one is started."""
    story = Story(**CORRECTS).running()
    report(story)
    story.later(60)
    story.fail(names.CALIBRATOR, 2)
    report(story, step=6_000)
    story.later(60)

    assert "the calibrator failed" in story.status["correction"]["message"]
    assert (story.seen, len(story.jobs(names.CALIBRATOR))) == (("Running", "AllWorkersReady"), 1)


@pytest.mark.deep
@pytest.mark.parametrize("dies_after", range(1, 12, depth(3, 1)))
def test_an_operator_killed_after_any_write_keeps_one_correction(dies_after: int) -> None:
    """The next one goes on from what the status and the children say."""
    story = Story(**CORRECTS).running()
    report(story)
    story.world.now += timedelta(seconds=60)
    story.world.crash_after = dies_after
    for _ in _passes(story):
        for pod in story.pods(names.CALIBRATOR):
            story.world.work(pod)
    story.world.crash_after = None
    story.settle()

    assert len(corrected_models(story)) == 1
    assert story.status["correction"]["errorPercent"] == 20
    assert (story.seen, len(story.jobs(names.CALIBRATOR))) == (("Running", "AllWorkersReady"), 1)


def _passes(story: Story) -> Iterator[None]:
    """Let operators reconcile in turn, each killed one replaced by the next, for two minutes."""
    for _ in range(24):
        story.world.run_job_controller()
        story.world.watches.catch_up()
        try:
            asyncio.run(story.operator.look(KEY))
        except CrashError:
            story.operator = OperatorProcess(story.world)
        story.world.now += timedelta(seconds=5)
        yield
