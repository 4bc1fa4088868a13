"""What a user sees of jobs that wait for each other, and of trainers that report nothing."""

import asyncio
from typing import Any

import pytest
from neuroshard_decisions import names
from support.operator.operator_process import JOB, SETTINGS, Story
from support.operator.operator_world import NAMESPACE

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available",
}


def half_start(story: Story, job: str) -> None:
    """Let one worker of a job have a node, and none take the other."""
    first, second = (pod for pod in story.pods(names.WORKER) if pod["metadata"]["labels"][names.JOB_LABEL] == job)
    story.world.start_pod(first)
    second["spec"]["nodeName"] = ""
    second["status"] = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
    story.world.touch(second)


def with_second_job(**spec: Any) -> Story:
    """Return a story with two jobs, whose workers are about to start."""
    story = Story().planned()
    key = story.world.submit("other", trainer={"numNodes": 2}, **spec)
    for _ in range(30):
        story.world.run_job_controller()
        story.world.watches.catch_up()
        asyncio.run(story.operator.look(key))
        for role in (names.PROFILER, names.PLANNER):
            for pod in story.pods(role):
                story.world.work(pod)
    return story


def test_two_jobs_that_each_hold_half_of_the_devices_are_told_of_each_other() -> None:
    """Each names the other and the remedy; neither would say why it waits for ever."""
    story = with_second_job()
    half_start(story, JOB)
    half_start(story, "other")
    story.settle()

    assert "job other also holds devices and waits for more" in story.status["message"]
    assert "hint: suspend one of them, set runPolicy.preRunningDeadlineSeconds" in story.status["message"]


def test_a_job_that_waits_alone_is_told_of_none() -> None:
    """Nodes that are just taken are no deadlock."""
    story = with_second_job()
    half_start(story, JOB)
    story.settle()

    assert "Unschedulable" in story.status["message"]
    assert "also holds" not in story.status["message"]


def test_a_job_of_another_namespace_is_not_named() -> None:
    """Its name may say what this job's users are not to know."""
    story = with_second_job()
    half_start(story, JOB)
    half_start(story, "other")
    story.world.watches.catch_up()
    brought = story.world.watches.brought
    for pod in list(brought.indices().pods[NAMESPACE, "other"]):
        brought._indices["Pod"].put(pod.meta.uid, ("elsewhere", "secret"), pod)
    story.look()

    assert "a job of another namespace also holds devices" in story.status["message"]
    assert "secret" not in story.status["message"]


@pytest.mark.parametrize("own", [True, False])
def test_a_trainer_that_reports_no_steps_is_told_of(own: bool) -> None:  # noqa: FBT001 - the cases
    """MEASURED stays empty, and the message says why; one of ours reports in time."""
    story = Story(trainer={"numNodes": 2, **({"command": ["train"]} if own else {})}).running()
    story.later(60)
    before = story.status["message"]
    story.later(600)

    assert "reports no steps" not in before
    assert ("the trainer reports no steps" in story.status["message"]) == own


ESCAPES = "\x1b[2J\x1b]8;;http://x\x1b\\\x9b1m\x07\u202e"


def test_no_status_or_event_holds_what_a_terminal_would_obey() -> None:
    """No matter who wrote it, a trainer, a kubelet, or the author of an event: kubectl shows most of it as it is."""
    story = Story(failurePolicy={"maxRestarts": 1}).planned()
    for pod in story.pods(names.WORKER):
        waiting = {"reason": "InvalidImageName", "message": f"waits {ESCAPES}"}
        pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": {"waiting": waiting}}]}
        story.world.touch(pod)
    story.settle()
    assert "waits \\x1b[2J" in story.status["message"]
    story.start_workers()
    pod = story.pods(names.WORKER)[0]
    story.world.end_pod(pod, 1)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = f"ends {ESCAPES}"
    story.world.touch(pod)
    story.settle()
    written = "".join(str(each.get("message")) for each in (*story.world.statuses, *story.world.events))
    written += story.status["lastFailure"]["message"]

    assert "ends \\x1b[2J" in written
    assert not set("\x1b\x9b\x07\u202e") & set(written)


@pytest.mark.parametrize("shown", [True, False])
def test_the_end_of_a_log_is_shown_only_where_the_settings_say_so(shown: bool) -> None:  # noqa: FBT001 - the cases
    """Who may read a job need not be one who may read logs, or the Secrets that a container can print."""
    story = Story(SETTINGS.model_copy(update={"log_tails": shown})).running()
    pod = story.pods(names.WORKER)[0]
    story.world.end_pod(pod, 2)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "secret: hunter2"
    story.world.touch(pod)
    story.settle()
    story.bury()
    written = str(story.world.statuses) + str(story.world.events)

    assert story.seen == ("Failed", "WorkersFailed")
    assert story.status["lastFailure"]["exitCode"] == 2
    assert ("hunter2" in written) == shown
