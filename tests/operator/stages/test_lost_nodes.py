"""Nodes that die under a profiler or a planner."""

from datetime import timedelta

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import ONE_NODE, Story

ROLES = [names.PROFILER, names.PLANNER]
RUNNING = {names.PROFILER: ("Profiling", "ProfilerRunning"), names.PLANNER: ("Planning", "PlannerRunning")}


def at_work(role: str) -> Story:
    """Go on until the pod of a stage runs."""
    story = Story(trainer=ONE_NODE)
    if role == names.PLANNER:
        story.do(names.PROFILER)
    for pod in story.pods(role):
        story.world.start_pod(pod)
    story.settle()
    return story


def lose_node(story: Story, role: str) -> str:
    """Let the node of a stage's pod die: the cluster evicts the pod, and no kubelet ends it; return the Job's uid."""
    [pod] = story.pods(role)
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, taken]
    story.world.remove("Pod", pod["metadata"]["name"])
    [job] = story.world.of_kind("Job", role)
    uid: str = job["metadata"]["uid"]
    return uid


def finish_on_another_node(story: Story, role: str, lost: str) -> None:
    """Let the pod of the Job that took the lost one's place do its work."""
    [job] = story.world.of_kind("Job", role)
    assert job["metadata"]["uid"] != lost
    [pod] = [pod for pod in story.pods(role) if "deletionTimestamp" not in pod["metadata"]]
    story.world.work(pod)
    story.settle()


@pytest.mark.parametrize("role", ROLES)
def test_a_stage_whose_node_dies_starts_again(role: str) -> None:
    """Kubernetes makes no other pod while the dead one is there, which is until the Node object is removed."""
    story = at_work(role)
    lost = lose_node(story, role)
    story.settle()
    assert story.seen == RUNNING[role]
    assert "ChildRepaired" not in story.reasons()
    died = story.world.now
    while "ChildRepaired" not in story.reasons():
        wait_s = story.operator.requeue_after_s
        assert wait_s is not None
        story.later(wait_s)
        assert story.world.now - died < timedelta(seconds=120)

    [told] = [event["message"] for event in story.world.events if event["reason"] == "ChildRepaired"]
    assert told.startswith(f"the node of the {role}'s pod does not answer")
    finish_on_another_node(story, role, lost)
    assert story.seen == (RUNNING[names.PLANNER] if role == names.PROFILER else ("Launching", "WorkersStarting"))
    assert story.status.get("restarts", 0) == 0


@pytest.mark.parametrize("role", ROLES)
def test_a_stage_whose_job_waits_in_deletion_for_a_dead_node_starts_again(role: str) -> None:
    """A deletion in the foreground keeps the Job's name while its pod is there; one in the background ends that."""
    story = at_work(role)
    lost = lose_node(story, role)
    [job] = story.jobs(role)
    story.world.remove("Job", job, foreground=True)
    story.settle()
    assert story.jobs(role) == [job]
    story.later(100)

    finish_on_another_node(story, role, lost)
    assert story.seen == (RUNNING[names.PLANNER] if role == names.PROFILER else ("Launching", "WorkersStarting"))


@pytest.mark.parametrize("role", ROLES)
def test_a_time_limit_that_passes_on_a_dead_node_is_no_verdict(role: str) -> None:
    """The operator was away meanwhile, and finds the Job at its deadline with a lost pod alone."""
    story = at_work(role)
    lost = lose_node(story, role)
    story.world.now += timedelta(seconds=1900)
    story.time_out(role)

    assert story.seen == RUNNING[role]
    finish_on_another_node(story, role, lost)
    assert story.status["stage"] != "Failed"


@pytest.mark.parametrize("role", ROLES)
def test_a_time_limit_that_passes_before_the_dead_node_is_known_is_no_verdict(role: str) -> None:
    """Kubernetes ends the Job at once; whether its pod still ran or sat on a dead node shows a minute later."""
    story = at_work(role)
    lost = lose_node(story, role)
    story.later(10)
    story.world.expire(story.world.of_kind("Job", role)[0], confirms=False)
    story.settle()
    assert story.seen == RUNNING[role]
    wait_s = story.operator.requeue_after_s
    assert wait_s is not None
    assert wait_s < 120
    story.later(wait_s)

    assert story.seen == RUNNING[role]
    finish_on_another_node(story, role, lost)
    assert story.status["stage"] != "Failed"


@pytest.mark.parametrize("role", ROLES)
def test_a_time_limit_is_a_verdict_once_the_pod_that_is_asked_to_end_has_ended(role: str) -> None:
    """Its kubelet confirms it within the grace period."""
    story = at_work(role)
    [pod], [job] = story.pods(role), story.world.of_kind("Job", role)
    story.world.expire(job, confirms=False)
    story.settle()
    assert story.seen == RUNNING[role]
    story.world.finish_deletion(pod)
    story.settle()

    assert story.status["stage"] == "Failed"
    assert "timeoutSeconds" in story.status["message"]


@pytest.mark.parametrize("role", ROLES)
def test_a_time_limit_that_passes_on_a_live_node_still_ends_the_job(role: str) -> None:
    """The pod that is asked to end then is not lost."""
    story = at_work(role)
    story.time_out(role)

    assert story.status["stage"] == "Failed"
    assert "timeoutSeconds" in story.status["message"]
