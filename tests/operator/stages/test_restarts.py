"""Restarts: what counts and for how long, what is waited for, hangs, and nodes that failed."""

from datetime import timedelta
from typing import Any

import pytest
from neuroshard_decisions import names
from support import builders
from support.operator.operator_process import ONE_NODE, Story


def report(story: Story, step: int, run_id: str | None = None) -> None:
    """Let the workers report that they reached a step."""
    progress = builders.progress(step=step, run_id=run_id)
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})


def test_restarts_of_long_ago_do_not_count() -> None:
    """Workers that ran for an hour earn their restarts back: a job of weeks outlives more than three failures."""
    story = Story(failurePolicy={"maxRestarts": 1}).running()
    for _ in range(4):
        story.later(3700)
        story.fail(names.WORKER, 1)
        story.later(30)
        story.start_workers()
        assert story.seen == ("Running", "AllWorkersReady")

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (4, 1)


def test_restarts_in_a_row_count() -> None:
    """Workers that fail again before they earned anything back end the job."""
    story = Story(failurePolicy={"maxRestarts": 1}).running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.later(3500)
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_disruptions_in_quick_succession_are_spaced() -> None:
    """Nothing else bounds how many Jobs a preemption that thrashes could make."""
    story = Story().running()
    story.fail(names.WORKER, 1, disruption="PreemptionByScheduler")
    assert story.seen == ("Launching", "WorkersStarting")
    story.start_workers()
    story.fail(names.WORKER, 1, disruption="PreemptionByScheduler")
    assert story.seen == ("Launching", "WaitingToRestart")
    story.later(31)

    assert story.seen == ("Launching", "WorkersStarting")
    assert story.status["restartsCountTowardsMax"] == 0


def test_a_node_that_shuts_down_does_not_count_and_one_under_pressure_does() -> None:
    """Both come as TerminationByKubelet; only the pod's own reason tells spot reclaims from evictions."""
    for reason, counted in (("Terminated", 0), ("Evicted", 1)):
        story = Story().running()
        pod = story.pods(names.WORKER)[0]
        story.world.end_pod(pod, 1, disruption="TerminationByKubelet")
        pod["status"]["reason"] = reason
        story.settle()
        story.bury()

        assert story.status["restartsCountTowardsMax"] == counted


def test_a_node_that_dies_in_silence_does_not_count() -> None:
    """Its peers end with 7 at once; the cluster says nothing for minutes, so the pod itself is watched."""
    story = Story(failurePolicy={"maxRestarts": 0}).running()
    survivor, _ = story.pods(names.WORKER)
    story.world.end_pod(survivor, 7)
    story.settle()
    assert story.seen == ("Running", "WorkersNotReady")
    assert "does not answer" in story.status["message"]
    assert story.operator.requeue_after_s is not None
    story.later(91)  # its grace period in this cluster, and a minute

    assert story.status["restarts"] == 1
    assert story.status["restartsCountTowardsMax"] == 0
    story.settle()
    assert story.seen == ("Launching", "WorkersStarting")
    assert story.world.doubled == []


def lose_nodes(story: Story, pods: list[dict[str, Any]]) -> None:
    """Let the nodes of pods die: the cluster evicts the pods, and no kubelet ends them."""
    for pod in pods:
        taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, taken]
        story.world.remove("Pod", pod["metadata"]["name"])
    story.settle()


@pytest.mark.parametrize("nodes", [1, 2])
def test_workers_whose_nodes_all_die_start_again(nodes: int) -> None:
    """Nobody is left to fail, and their Job gets no outcome before the Node objects are removed."""
    story = Story(trainer={"numNodes": nodes}, failurePolicy={"maxRestarts": 0}).running()
    lose_nodes(story, story.pods(names.WORKER))
    assert story.operator.requeue_after_s is not None
    story.later(story.operator.requeue_after_s)

    assert story.seen == ("Launching", "WorkersStarting")
    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert story.status["lastFailure"]["nodeName"] == "node-0"
    assert story.world.doubled == []


def test_one_lost_node_restarts_workers_that_do_not_notice_it() -> None:
    """A trainer of one's own may wait for its peer for ever, and the attempt cannot complete."""
    story = Story(failurePolicy={"maxRestarts": 0}).running()
    _, lost = story.pods(names.WORKER)
    lose_nodes(story, [lost])
    assert story.seen == ("Running", "WorkersNotReady")
    story.later(92)
    story.bury()

    assert story.jobs(names.WORKER)[-1] == "job-worker-1"
    assert story.status["lastFailure"]["nodeName"] == "node-1"
    assert story.world.doubled == []


def test_a_resumed_job_starts_although_the_nodes_of_its_deleted_workers_are_gone() -> None:
    """The deleted Job keeps its name until the Node objects are removed; the next attempt has another name."""
    story = Story().running()
    lose_nodes(story, story.pods(names.WORKER))
    story.world.change_spec("job", suspend=True)
    story.settle()
    story.later(200)
    story.world.change_spec("job", suspend=False)
    story.settle()

    assert story.seen == ("Launching", "WorkersStarting")
    assert story.jobs(names.WORKER)[-1] == "job-worker-1"
    assert story.status["restartsCountTowardsMax"] == 0


def test_a_node_that_dies_in_silence_is_avoided_and_not_the_one_that_noticed() -> None:
    """The peer ends with 7 on a node that is healthy."""
    story = Story().running()
    survivor, _ = story.pods(names.WORKER)
    story.world.end_pod(survivor, 7)
    story.settle()
    story.later(91)
    story.settle()

    job = story.world.objects["Job", "job-worker-1"]
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchFields"][0]["values"] == ["node-1"]


def test_time_in_which_nothing_trained_earns_no_restart_back() -> None:
    """Neither the operator's downtime after a failure, nor a hang before one."""
    story = Story(failurePolicy={"maxRestarts": 1}).running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.world.end_pod(story.pods(names.WORKER)[0], 1)
    story.later(4000)  # the operator was away
    assert story.seen == ("Failed", "MaxRestartsExceeded")

    story = Story(failurePolicy={"maxRestarts": 1, "progressTimeoutSeconds": 4000}).running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    report(story, 10)
    story.later(31)
    story.later(4001)  # longer than an hour, and no report
    assert story.seen == ("Failed", "MaxRestartsExceeded")


def test_a_lost_peer_whose_pod_ends_in_order_counts() -> None:
    """The node answers, so the network or the trainer is at fault."""
    story = Story(failurePolicy={"maxRestarts": 3}).running()
    story.fail(names.WORKER, 7)

    assert story.status["restartsCountTowardsMax"] == 1


def test_workers_that_report_no_progress_any_more_are_restarted() -> None:
    """A collective that hangs ends no process; the reports stop."""
    story = Story(failurePolicy={"progressTimeoutSeconds": 900}).running()
    report(story, 10)
    story.later(31)
    for step in (20, 30, 40):
        report(story, step)
        story.later(600)
        assert story.seen == ("Running", "AllWorkersReady")
    story.later(901)
    story.bury()

    assert story.status["restarts"] == 1
    assert story.status["lastFailure"]["reason"] == "NoProgress"
    assert story.jobs(names.WORKER)[-1] == "job-worker-1"
    assert story.world.doubled == []


def test_a_restart_that_hangs_before_its_first_report_is_restarted() -> None:
    """The attempt before reported, so its trainer reports progress."""
    story = Story(failurePolicy={"progressTimeoutSeconds": 900}).running()
    report(story, 10, run_id=f"{story.world.training_job('job')['metadata']['uid']}-0")
    story.later(31)
    story.fail(names.WORKER, 1)
    story.start_workers()
    assert "trainerStatus" not in story.status
    story.later(901)

    assert story.status["restarts"] == 2
    assert story.status["lastFailure"]["reason"] == "NoProgress"


@pytest.mark.parametrize("policy", [{}, {"progressTimeoutSeconds": 900}], ids=["no limit", "no reports"])
def test_silence_alone_restarts_nobody(policy: dict[str, Any]) -> None:
    """There is no limit by default, and a trainer of one's own may report nothing at all."""
    story = Story(failurePolicy=policy).running()
    if not policy:
        report(story, 10)
    story.later(31)
    story.later(100_000)

    assert story.seen == ("Running", "AllWorkersReady")


def test_the_next_attempt_avoids_the_node_that_failed() -> None:
    """By preference, so that a job which has no other node starts on it again."""
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}
    story = Story(podTemplate={"spec": {"affinity": affinity}}).running()
    story.fail(names.WORKER, 1)

    job = story.world.objects["Job", "job-worker-1"]
    preferred = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [first, second] = preferred["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first == {"weight": 1, "preference": {}}
    assert second["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["node-0"]}]


REFUSALS = [
    'pods "job-0" is forbidden: exceeded quota: gpus',
    'pods "job-0" is forbidden: violates PodSecurity "restricted:latest"',
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["quota", "pod security"])
@pytest.mark.parametrize(
    ("role", "stage"),
    [(names.PROFILER, "Profiling"), (names.PLANNER, "Planning"), (names.WORKER, "Launching")],
    ids=["profiler", "planner", "workers"],
)
def test_pods_that_cannot_be_made_are_shown_with_the_reason(role: str, stage: str, refusal: str) -> None:
    """Quota, Pod Security and admission refuse them to the Job controller, whose events alone say so."""
    story = Story()
    for before in [names.PROFILER, names.PLANNER, names.WORKER]:
        if before == role:
            break
        story.do(before)
    [job] = story.world.of_kind("Job", role)
    for pod in story.pods(role):
        del story.world.objects["Pod", pod["metadata"]["name"]]
    story.world.warnings[job["metadata"]["uid"]] = f"FailedCreate: {refusal}"
    story.world.now += timedelta(seconds=31)
    story.world.watches.catch_up()
    story.look()

    assert story.seen == (stage, "PodsPending")
    assert refusal in story.status["message"]


def test_a_volume_that_cannot_be_mounted_is_told_with_the_reason() -> None:
    """The pod itself says no more than ContainerCreating."""
    story = Story().planned()
    [pod, _] = story.pods(names.WORKER)
    story.world.warnings[pod["metadata"]["uid"]] = 'FailedMount: secret "data" not found'
    story.later(31)

    assert story.seen == ("Launching", "PodsPending")
    assert "FailedMount" in story.status["message"]


def test_repeated_events_of_one_cause_are_one_event() -> None:
    """A policy engine that edits a child for ever writes no event object for each time."""
    story = Story().running()
    for _ in range(3):
        [service] = story.world.of_kind("Service", names.WORKER)
        service["spec"]["selector"] = {}
        story.world.touch(service)
        story.settle()

    [event] = [event for event in story.world.events if event["reason"] == "ChildRepaired"]
    assert event["count"] == 3


def test_a_worker_that_is_alone_is_not_late() -> None:
    """Exit code 7 of the only worker is its own, even where nobody saw it ready: restarts have an end."""
    story = Story(trainer=ONE_NODE, failurePolicy={"maxRestarts": 1}).planned()
    story.fail(names.WORKER, 7)
    story.fail(names.WORKER, 7)

    assert story.seen == ("Failed", "MaxRestartsExceeded")
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
