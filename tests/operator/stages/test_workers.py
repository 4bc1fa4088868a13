"""How workers end: success, failures, restarts, and what a job keeps over them."""

import json
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.pace import COUNTS_EVERY_S
from support.operator.operator_process import Story


@pytest.mark.parametrize(
    ("spec", "die"),
    [
        pytest.param({}, True, id="none"),
        pytest.param({"checkpoint": {"persistentVolumeClaim": {"claimName": "c"}}}, False, id="claim"),
        pytest.param(
            {
                "podTemplate": {
                    "spec": {"containers": [{"name": "trainer", "volumeMounts": [{"mountPath": "/checkpoints"}]}]}
                }
            },
            False,
            id="pod template",
        ),
        pytest.param({"trainer": {"numNodes": 1, "image": "mine", "command": ["torchrun", "t.py"]}}, False, id="own"),
    ],
)
def test_a_job_whose_checkpoints_die_with_its_pods_says_so(spec: dict[str, Any], *, die: bool) -> None:
    """A lost node would cost the whole training; of a trainer of one's own nothing is known."""
    story = Story(**spec).running()

    assert ("NoCheckpointVolume" in story.warnings) == die


def test_a_job_that_trains_succeeds() -> None:
    """All workers succeeded."""
    story = Story().running()
    assert story.seen == ("Running", "AllWorkersReady")
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert story.status["completionTime"]
    assert story.reasons() == ["Profiled", "Planned", "Running", "Succeeded"]


def attempts(story: Story) -> dict[str, int]:
    """Return the number of attempts of each stage."""
    return {stage["name"]: stage["attempts"] for stage in story.status["stages"]}


def test_workers_that_end_one_after_another_are_still_running() -> None:
    """Also in the moment in which a worker's container has ended and its pod has not."""
    story = Story().running()
    first, second = story.pods(names.WORKER)
    story.world.end_pod(first, 0)
    first["status"]["phase"] = "Running"
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    story.world.end_pod(first, 0)
    story.settle()
    assert story.status["message"] == "2 of 2 workers are ready"
    story.later(COUNTS_EVERY_S)
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["message"] == "1 of 2 workers are ready, 1 succeeded"
    story.world.end_pod(second, 0)
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert (attempts(story)["Launching"], attempts(story)["Running"]) == (1, 1)


def test_a_worker_that_is_not_ready_for_a_while_is_told_and_not_launched_again() -> None:
    """Its node may be out of reach for a moment."""
    story = Story().running()
    [pod, _] = story.pods(names.WORKER)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    story.world.touch(pod)
    story.settle()
    assert story.seen == ("Running", "WorkersNotReady")
    assert story.condition("PodsReady")["status"] == "False"
    assert story.condition("Running")["status"] == "True"
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert attempts(story)["Launching"] == 1
    assert story.reasons() == ["Profiled", "Planned", "Running"]


def test_a_failure_restarts_all_workers_with_the_same_plan() -> None:
    """The restart is recorded with its cause, then the next attempt starts."""
    story = Story().running()
    plan = story.status["plan"]
    story.fail(names.WORKER, 137)

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert story.seen == ("Launching", "WorkersStarting")
    assert attempts(story)["Launching"] == 2
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["exitCode"] == 137
    assert story.status["plan"] == plan
    assert len(story.jobs(names.PLANNER)) == 1
    assert "WorkersRestarted" in story.reasons()


def test_new_workers_wait_until_the_old_ones_are_gone() -> None:
    """A pod that still ends holds GPUs and a checkpoint."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    assert story.seen == ("Launching", "WaitingForOldPods")
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]


def test_a_pod_on_a_lost_node_holds_nobody_up_for_ever() -> None:
    """A minute past its grace period it counts as gone."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    story.later(91)

    assert "job-worker-1" in story.jobs(names.WORKER)


def test_a_drained_node_does_not_count() -> None:
    """The pod says that the cluster took it away."""
    story = Story().running()
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert story.status["lastFailure"]["reason"] == "EvictionByEvictionAPI"


def test_workers_that_never_met_do_not_count() -> None:
    """A worker whose image or node comes late makes the others give up; the attempts after it are free, and end."""
    story = Story(failurePolicy={"maxRestarts": 0}).planned()
    for _ in range(3):
        story.fail(names.WORKER, 7)
        story.later(400)

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (3, 0)
    assert story.seen == ("Launching", "WorkersStarting")
    story.start_workers()
    story.fail(names.WORKER, 7)
    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_a_trainer_that_breaks_before_it_is_ready_counts() -> None:
    """A bug at the start is not lateness of another worker."""
    story = Story(failurePolicy={"maxRestarts": 0}).planned()
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_wrong_input_is_not_tried_twice() -> None:
    """Exit code 2 ends the job."""
    story = Story().running()
    story.fail(names.WORKER, 2)

    assert story.seen == ("Failed", "WorkersFailed")


def test_restarts_end_at_their_limit() -> None:
    """Each pause is longer than the one before; the failure after the last restart ends the job."""
    story = Story(failurePolicy={"maxRestarts": 2}).running()
    for _ in range(2):
        story.fail(names.WORKER, 1)
        story.later(400)
        story.start_workers()
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")
    assert story.status["restarts"] == 2


def test_the_second_restart_waits_a_little() -> None:
    """A job that fails at once does not fill the cluster with pods."""
    story = Story().running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.fail(names.WORKER, 1)
    assert story.seen == ("Launching", "WaitingToRestart")
    assert (story.status["workers"]["ready"], story.status["workers"]["failed"]) == (0, 0)
    story.later(11)

    assert "job-worker-2" in story.jobs(names.WORKER)


def test_a_rule_can_ask_for_another_plan() -> None:
    """ReplanAndRestart plans with more memory held back, since equal questions have equal answers."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = Story(failurePolicy={"rules": [rule]}).running()
    story.fail(names.WORKER, 9)

    assert story.seen == ("Planning", "PlannerRunning")
    requests = [each["data"]["request.json"] for each in story.world.of_kind("ConfigMap", names.REQUEST)]
    asked = [json.loads(each) for each in requests]
    shares = [each["memory"]["reserve_bytes"] / each["topology"]["device"]["memory_bytes"] for each in asked]
    assert sorted(shares) == pytest.approx([0.0, 0.05], abs=1e-9)


def test_memory_that_failures_kept_free_is_used_again_for_other_inputs() -> None:
    """The failures were those of another plan; the status names what is kept free, and then that nothing is."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = Story(failurePolicy={"rules": [rule]}).running()
    story.fail(names.WORKER, 9)
    assert "5 % of each device's memory stays free" in story.status["message"]
    story.do(names.PLANNER)
    before = story.status["replans"]
    story.world.change_spec("job", suspend=True)
    story.settle()
    story.world.change_spec("job", suspend=False, planner={"shardingTypes": ["TableWise"]})
    story.settle()
    planning = story.status["message"]
    requests = [json.loads(each["data"]["request.json"]) for each in story.world.of_kind("ConfigMap", names.REQUEST)]
    story.do(names.PLANNER)

    assert (story.seen[0], before) == ("Launching", 1)
    assert "the memory that failures kept free is used again" in planning
    assert sorted(each["memory"]["reserve_bytes"] > 0 for each in requests) == [False, False, True]
    assert "replans" not in story.status
    assert "replansInputsHash" not in story.status
