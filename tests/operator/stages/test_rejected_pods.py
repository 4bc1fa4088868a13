"""Pods that end before any container ran, and workers that run and do not meet."""

from datetime import timedelta
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.observed import parsing
from support.operator.operator_process import Story
from support.operator.operator_world import stamp

REASONS = ["UnexpectedAdmissionError", "OutOfcpu", "NodeAffinity", "NodeShutdown", "OutOfnvidia.com/gpu"]


def reject(story: Story, pod: dict[str, Any], reason: str = "UnexpectedAdmissionError") -> None:
    """Let a kubelet reject a pod."""
    pod["status"] = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {reason}"}
    story.world.touch(pod)
    story.settle()
    story.bury()


def restart(story: Story) -> float:
    """Let the pause before the next attempt pass; return its seconds."""
    again = parsing.timestamp(story.status["nextStartTime"])
    failed = parsing.timestamp(story.status["lastFailure"]["time"])
    assert again is not None
    assert failed is not None
    story.later((again - story.world.now).total_seconds() + 1)
    return (again - failed).total_seconds()


@pytest.mark.parametrize("reason", REASONS)
def test_a_rejected_pod_is_no_failure_of_the_job(reason: str) -> None:
    """However often it happens; the pause grows, and the next attempt prefers another node."""
    story = Story().planned()
    pauses = []
    for _ in range(7):
        reject(story, story.pods(names.WORKER)[0], reason)
        told = [each["message"] for each in story.world.events if each["reason"] == "WorkersRestarted"]
        assert "pods of which no container ran" in told[-1]
        pauses.append(restart(story))
        affinity = story.world.of_kind("Job", names.WORKER)[-1]["spec"]["template"]["spec"]["affinity"]
        [preferred] = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["preference"]["matchFields"][0]["values"] == ["node-0"]
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (7, 0)
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


def test_a_rule_can_name_the_reason_of_a_pod() -> None:
    """For those who want it to count, or to end the job."""
    rules = [{"action": "FailJob", "onPodReasons": ["OutOfcpu"]}]
    story = Story(failurePolicy={"rules": rules}).planned()
    reject(story, story.pods(names.WORKER)[0], "OutOfcpu")

    assert story.seen == ("Failed", "WorkersFailed")


def test_a_pod_that_is_rejected_after_workers_trained_is_still_none() -> None:
    """A node that reboots rejects the pods of the next attempt, and those count for nothing either."""
    story = Story().running()
    story.fail(names.WORKER, 137)
    reject(story, story.pods(names.WORKER)[1])

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (2, 1)


@pytest.mark.parametrize("role", [names.PROFILER, names.PLANNER])
def test_a_stage_whose_pods_are_rejected_begins_again(role: str) -> None:
    """After a pause, as often as it takes."""
    story = Story(trainer={"numNodes": 1})
    if role == names.PLANNER:
        story.do(names.PROFILER)
    for _ in range(3):
        [before] = story.world.of_kind("Job", role)
        reject(story, story.pods(role)[0])
        assert story.status["reason"] == "PodsPending"
        assert "UnexpectedAdmissionError" in story.status["message"]
        story.later(60)
        story.bury()
        assert story.world.of_kind("Job", role)[0]["metadata"]["uid"] != before["metadata"]["uid"]
    story.planned() if role == names.PROFILER else story.do(role)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


def start_at(story: Story, pod: dict[str, Any], seconds: float) -> None:
    """Let a worker's container have started some seconds from now, before it was ready."""
    started = stamp(story.world.now + timedelta(seconds=seconds))
    state = {"running": {"startedAt": started}}
    pod["status"] = {"phase": "Running", "conditions": [], "containerStatuses": [{"name": "trainer", "state": state}]}
    story.world.touch(pod)


@pytest.mark.parametrize(("late_s", "counted"), [(0, 1), (300, 1), (595, 0)])
def test_workers_that_all_run_and_do_not_meet_count(late_s: float, counted: int) -> None:
    """As with names that do not resolve: nobody was late, and another attempt would end the same way for ever."""
    story = Story().planned()
    first, second = story.pods(names.WORKER)
    start_at(story, first, 0)
    start_at(story, second, late_s)
    story.later(600)
    started = first["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    story.world.end_pod(first, 7)
    first["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = started
    story.settle()
    story.bury()

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, counted)


@pytest.mark.parametrize(("spec", "found"), [({}, "ClusterFirstWithHostNet"), ({"dnsPolicy": "None"}, "None")])
def test_pods_in_the_network_of_their_nodes_find_each_other(spec: dict[str, str], found: str) -> None:
    """With the resolver of the node the names of pods mean nothing; the user's own choice stays."""
    story = Story(podTemplate={"spec": {"hostNetwork": True, **spec}}).planned()
    for role in (names.PROFILER, names.WORKER):
        [job] = story.world.of_kind("Job", role)
        assert job["spec"]["template"]["spec"]["dnsPolicy"] == found
    [planner] = story.world.of_kind("Job", names.PLANNER)

    assert "dnsPolicy" not in planner["spec"]["template"]["spec"]
    assert "dnsPolicy" not in Story().planned().world.of_kind("Job", names.WORKER)[0]["spec"]["template"]["spec"]
