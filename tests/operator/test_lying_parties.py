"""Times, counts, owners and names that another party has wrong: each row of the table of whom the operator believes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import JOB, Story
from support.operator.operator_world import stamp

CLOCKS = ["0000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T02:00:00Z", "no time"]


def fail_at(story: Story, finished_at: str) -> None:
    """Let a worker fail at a time of its kubelet's clock."""
    pod = story.pods(names.WORKER)[0]
    story.world.end_pod(pod, 1)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = finished_at
    story.world.touch(pod)
    story.settle()
    story.bury()


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_kubelets_clock_neither_stops_a_job_nor_gives_restarts_back(clock: str) -> None:
    """The pause begins now, restarts are counted, and the last one ends the job."""
    story = Story(failurePolicy={"maxRestarts": 2}).running()
    for number in (1, 2):
        fail_at(story, clock)
        story.later(11)
        story.start_workers()
        assert story.seen == ("Running", "AllWorkersReady")
        assert story.status["restartsCountTowardsMax"] == number
        assert story.status["lastFailure"]["time"] <= stamp(story.world.now)
    fail_at(story, clock)

    assert story.status["reason"] == "MaxRestartsExceeded"


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_schedulers_clock_does_not_take_a_stage_its_time_limit(clock: str) -> None:
    """The time of the pod's creation, by the API server's clock, is in its place."""
    story = Story()
    [job] = story.world.of_kind("Job", names.PROFILER)
    for pod in story.pods(names.PROFILER):
        story.world.start_pod(pod)
        placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": clock}
        pod["status"]["conditions"] = [*pod["status"]["conditions"], placed]
        story.world.touch(pod)
    story.settle()
    story.later(120)

    assert "activeDeadlineSeconds" in job["spec"]


def copied_pod(story: Story, **metadata: Any) -> dict[str, Any]:
    """Store a pod that looks like a worker and has succeeded."""
    worker = story.pods(names.WORKER)[0]
    pod = {**worker, "metadata": {**worker["metadata"], "name": "copy", **metadata}, "status": {}}
    made = story.world.put(pod)
    story.world.end_pod(made, 0)
    return made


def test_a_pod_that_only_has_the_labels_of_a_worker_is_none() -> None:
    """Its owner is not the Job of the workers, by uid: its end says nothing of theirs."""
    story = Story().running()
    copied_pod(story, ownerReferences=[{"kind": "Job", "name": "job-worker-0", "uid": "forged", "controller": True}])
    story.settle()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["workers"]["succeeded"] == 0


def test_a_pod_that_claims_a_workers_place_twice_counts_once() -> None:
    """Two ends of one index are not those of two workers."""
    story = Story().running()
    [first, _] = story.pods(names.WORKER)
    for pod in (first, copied_pod(story)):
        story.world.end_pod(pod, 0)
        pod["status"]["phase"] = "Running"
        pod["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
        story.world.touch(pod)
    story.settle()

    assert story.status["stage"] == "Running"


def test_a_child_whose_owner_is_another_job_of_the_name_is_not_touched() -> None:
    """Names and labels say who may own it, and the uid who does."""
    story = Story()
    owner = {"kind": "DLRMTrainingJob", "name": JOB, "uid": "another", "controller": True}
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.JOB_LABEL: JOB, names.ROLE_LABEL: names.WORKER}
    ended = {"spec": {}, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    foreign = story.world.put(
        {"kind": "Job", "metadata": {"name": "job-worker-9", "labels": labels, "ownerReferences": [owner]}, **ended}
    )
    story.running()

    assert story.world.objects["Job", "job-worker-9"] is foreign
    assert story.status["restarts"] == 0


def test_a_status_that_was_wiped_costs_no_workers() -> None:
    """Who may write a status may give restarts back; what runs is found by what is there, and runs on."""
    story = Story().running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.world.training_job(JOB).pop("status")
    story.world.touch(story.world.training_job(JOB))
    made = len(story.world.created)
    story.settle()

    assert story.seen == ("Running", "AllWorkersReady")
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert len(story.world.created) == made


def test_a_start_that_no_pause_explains_is_not_waited_for() -> None:
    """As after an operator whose clock was ahead: the next attempt would wait for as long."""
    story = Story(failurePolicy={"maxRestarts": 9}).running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.fail(names.WORKER, 1)
    assert story.seen == ("Launching", "WaitingToRestart")
    story.world.training_job(JOB)["status"]["nextStartTime"] = "2999-12-31T23:59:59Z"
    story.world.touch(story.world.training_job(JOB))
    story.settle()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


def test_a_node_that_cannot_be_read_is_none() -> None:
    """The kind of GPU is chosen among the others."""
    story = Story(suspend=True)
    story.world.nodes = [
        {"metadata": {"name": "bad", "labels": 7}, "status": {"allocatable": {"memory": "x" * 10}}},
        {"metadata": {"name": "worse"}, "spec": {"taints": 7}},
        {},
    ]
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.running()

    assert story.seen == ("Running", "AllWorkersReady")


def test_the_tests_know_the_time() -> None:
    """The clock that is ahead is ahead of all that these stories reach."""
    story = Story().running()
    story.later(60)

    assert story.world.now < datetime(2026, 1, 1, 2, tzinfo=UTC) - timedelta(hours=1)
