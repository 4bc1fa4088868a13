"""Embedding servers in a queue: a JobSet joins them with the workers, so that Kueue admits both or none."""

import asyncio
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError
from neuroshard_operator.pace import COUNTS_EVERY_S
from support.operator.operator_process import JOB, KEY, SETTINGS, OperatorProcess, Story
from support.operator.operator_world import CrashError, World
from support.operator.server_story import JOINING, SERVED, QueuedServerStory, ServerStory


def only(story: Story, kind: str, role: str = "") -> dict[str, Any]:
    """Return the one object of a kind and role."""
    [found] = story.world.of_kind(kind, role)
    return found


def test_workers_and_servers_of_a_queued_job_wait_as_one() -> None:
    """Kueue sees the JobSet alone; its Jobs, their pods, and their rendezvous are those of other attempts."""
    story = QueuedServerStory().planned()
    assert story.seen == ("Suspended", "WaitingForAdmission")
    assert story.status["message"] == "JobSet job-0 waits for Kueue to admit it in queue queue"
    joint = only(story, names.JOB_SET)
    workers, servers = only(story, "Job", names.WORKER), only(story, "Job", names.SERVER)
    assert joint["metadata"]["labels"][names.QUEUE_LABEL] == "queue"
    assert names.QUEUE_LABEL not in {**workers["metadata"]["labels"], **servers["metadata"]["labels"]}
    assert "failurePolicy" not in joint["spec"]
    assert [each["metadata"]["name"] for each in (workers, servers)] == ["job-0-workers-0", "job-0-servers-0"]
    for job in (workers, servers):
        pod = job["spec"]["template"]["spec"]
        environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert environment["PET_RDZV_ENDPOINT"] == "job-0-workers-0-0.job-workers:29500"
        assert pod["subdomain"] == only(story, "Service", names.WORKER)["metadata"]["name"]
    story.admit()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["servers"] == {"desired": 2, "ready": 2}
    assert story.status["stages"][-1]["jobName"] == "job-0-workers-0"
    assert story.world.too_early == []


def test_a_job_set_has_all_workers_of_several_nodes() -> None:
    """Kueue admits two workers and two servers at once."""
    story = QueuedServerStory(trainer={"numNodes": 2, "numProcPerNode": 2}).running()

    parts = only(story, names.JOB_SET)["spec"]["replicatedJobs"]
    assert {each["name"]: each["template"]["spec"]["parallelism"] for each in parts} == {"workers": 2, "servers": 2}
    assert story.seen == ("Running", "AllWorkersReady")


@pytest.mark.parametrize("role", [names.WORKER, names.SERVER])
def test_a_failure_of_one_ends_both_and_starts_both_again(role: str) -> None:
    """It counts once, its cause is found, and the JobSet before stays for its logs."""
    story = QueuedServerStory().running()
    other = names.SERVER if role == names.WORKER else names.WORKER
    failed = story.pods(role)[0]
    for pod in story.pods(other):
        story.world.end_pod(pod, 7)
    story.world.end_pod(failed, 137)
    story.settle()
    story.bury()
    story.later(31)

    assert story.job_sets() == ["job-0", "job-1"]
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["podName"] == failed["metadata"]["name"]
    assert story.seen == ("Suspended", "WaitingForAdmission")
    story.admit()
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.world.doubled == []


@pytest.mark.parametrize("role", [names.WORKER, names.SERVER])
def test_the_part_that_has_not_failed_ends_with_the_other(role: str) -> None:
    """JobSet's controller deletes its Job, which is not taken for another hand's deletion: the next attempt follows."""
    story = QueuedServerStory().running()
    story.fail(role, 1)
    for _ in range(3):
        story.bury()

    assert story.job_sets() == ["job-0", "job-1"]
    assert story.status["restarts"] == 1
    assert story.world.doubled == []


def test_pods_that_jobsets_controller_does_not_end_are_ended() -> None:
    """The next attempt does not wait for ever where that controller is away."""
    story = QueuedServerStory().running()
    story.world.has_job_set_controller = False
    story.fail(names.WORKER, 1)
    story.bury()
    assert story.seen == ("Launching", "WaitingForOldPods")
    story.later(31)
    story.bury()

    assert story.job_sets() == ["job-1"]


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_servers_end_with_workers_that_succeed(policy: str) -> None:
    """The success of a JobSet is that of its workers; a policy that keeps logs keeps theirs."""
    story = QueuedServerStory(runPolicy={"cleanPodPolicy": policy}).running()
    story.stop(names.WORKER, 0)
    for _ in range(3):
        story.bury()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert story.pods(names.SERVER) == []
    assert story.job_sets() == ([] if policy == "All" else ["job-0"])


def test_a_preempted_job_waits_for_both_again() -> None:
    """Preemption does not count, whether a server noticed the loss of a peer or was stopped first."""
    story = QueuedServerStory(failurePolicy={"maxRestarts": 0}).running()
    story.preempt()
    for _ in range(3):
        story.bury()
    assert story.seen == ("Suspended", "WaitingForAdmission")
    story.admit()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status.get("restartsCountTowardsMax", 0) == 0
    assert story.world.doubled == []


@pytest.mark.parametrize("is_running", [False, True], ids=["held by Kueue", "running"])
def test_a_suspended_job_keeps_no_job_set(*, is_running: bool) -> None:
    """It is made again when the job goes on."""
    story = QueuedServerStory().running() if is_running else QueuedServerStory().planned()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    assert (story.job_sets(), story.jobs(names.WORKER)) == ([], [])
    story.world.change_spec(JOB, suspend=False)
    story.settle()

    assert story.job_sets() == ["job-0"]
    assert story.status.get("restarts", 0) == 0


def test_a_job_set_that_somebody_deletes_is_made_again() -> None:
    """In the same attempt, once the pods of the old one are gone."""
    story = QueuedServerStory().running()
    before = only(story, names.JOB_SET)["metadata"]["uid"]
    story.world.remove(names.JOB_SET, "job-0")
    for _ in range(3):
        story.settle()
        story.bury()

    assert only(story, names.JOB_SET)["metadata"]["uid"] != before
    assert story.status["restarts"] == 0
    assert story.world.doubled == []


def test_a_job_of_a_job_set_that_somebody_deletes_costs_a_restart() -> None:
    """JobSet's controller makes it again at once, and its peers notice that the processes they knew are gone."""
    story = QueuedServerStory().running()
    story.world.remove("Job", "job-0-servers-0")
    story.settle()
    story.stop(names.WORKER, 7)
    for _ in range(3):
        story.bury()
    story.later(31)

    assert story.job_sets() == ["job-0", "job-1"]
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)


@pytest.mark.parametrize("name", ["job-0", "job-0-workers-0", "job-0-servers-0"])
@pytest.mark.parametrize("label", [names.MANAGED_BY_LABEL, names.JOB_LABEL, names.ROLE_LABEL, names.ATTEMPT_LABEL])
def test_labels_that_somebody_takes_are_restored(name: str, label: str) -> None:
    """Without the first two no watch shows the object or whose it is; the attempt is served all the same."""
    story = QueuedServerStory().running()
    kind = names.JOB_SET if name == "job-0" else "Job"
    found = story.world.objects[kind, name]
    before = dict(found["metadata"]["labels"])
    del found["metadata"]["labels"][label]
    story.world.touch(found)
    story.settle()

    assert story.seen == ("Running", "AllWorkersReady")
    assert found["metadata"]["labels"] == before or (kind == names.JOB_SET and label != names.MANAGED_BY_LABEL)
    assert story.job_sets() == ["job-0"]


def test_an_edited_part_is_restored() -> None:
    """Its number of pods is the job's; nobody else sets it back."""
    story = QueuedServerStory().running()
    servers = only(story, "Job", names.SERVER)
    servers["spec"]["parallelism"] = 1
    story.world.touch(servers)
    story.settle()

    assert servers["spec"]["parallelism"] == 2
    assert "ChildRepaired" in story.reasons()


def test_a_job_set_without_jobs_says_whose_work_that_is() -> None:
    """Kueue has admitted it, and JobSet's controller does not run."""
    story = QueuedServerStory()
    story.world.has_job_set_controller = False
    story.planned()
    story.admit()
    story.later(COUNTS_EVERY_S)

    assert story.seen == ("Launching", "PodsPending")
    assert "JobSet job-0 has no Job job-0-workers-0 yet" in story.status["message"]


def test_a_job_set_that_the_cluster_refuses_is_asked_for_again() -> None:
    """Its webhook may be away for a moment."""
    story = QueuedServerStory()
    story.world.refuse[names.JOB_SET] = ApiError(403, "Forbidden", "admission webhook denied the request")
    story.planned()
    assert "JobSet job-0: admission webhook denied the request" in story.status["message"]
    story.world.refuse.clear()
    story.later(31)

    assert story.job_sets() == ["job-0"]


def test_a_name_that_pods_of_a_job_set_cannot_have_is_refused_at_once() -> None:
    """JobSet's webhook would refuse it at some later attempt, whose number is longer."""
    world, name = World(), "j" * 39
    world.submit(name, **SERVED)
    world.label(name, {names.QUEUE_LABEL: "queue"})
    world.watches.catch_up()
    asyncio.run(OperatorProcess(world, JOINING).look(("training", name)))

    assert world.status(name)["stage"] == "Failed"
    assert "more than 38 characters (found 39)" in world.status(name)["message"]


def test_two_jobs_that_kueue_holds_one_by_one_become_one() -> None:
    """With manageJobsWithoutQueueName both wait without a queue; the label that the message asks for joins them."""
    story = ServerStory(JOINING).planned()
    story.world.suspends_jobs_without_queue = True
    for _ in range(3):
        story.world.run_job_controller()
        story.settle()
    assert story.seen == ("Suspended", "WaitingForAdmission")
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    for _ in range(3):
        story.settle()
        story.bury()
    assert story.jobs(names.WORKER) == ["job-0-workers-0"]
    story.world.admit()
    story.settle()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


def test_two_jobs_that_run_go_on_when_the_job_gets_a_queue() -> None:
    """Their next attempt is a JobSet."""
    story = ServerStory(JOINING).running()
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    story.fail(names.SERVER, 1)
    for _ in range(3):
        story.bury()

    assert [each["metadata"]["name"] for each in story.world.of_kind(names.JOB_SET)] == ["job-1"]


@pytest.mark.parametrize("queued", [False, True], ids=["two Jobs", "JobSet"])
@pytest.mark.parametrize("writes", range(1, 10))
def test_an_operator_that_dies_at_any_write_starts_each_attempt_once(*, queued: bool, writes: int) -> None:
    """From the plan to a failure of a server, its next attempt, and the end."""
    story = QueuedServerStory() if queued else ServerStory()
    settings = JOINING if queued else SETTINGS

    def survived(what: str = "") -> None:
        story.world.crash_after = writes
        for _ in range(40):
            story.world.admit()
            story.world.run_job_controller()
            story.world.watches.catch_up()
            try:
                if asyncio.run(story.operator.look(KEY)):
                    break
            except CrashError:
                story.operator = OperatorProcess(story.world, settings)
        story.world.crash_after = None
        assert story.world.doubled == [], what

    for role in (names.PROFILER, names.PLANNER):
        survived(role)
        for pod in story.pods(role):
            story.world.work(pod)
    survived("planned")
    story.start_workers()
    story.world.end_pod(story.pods(names.SERVER)[0], 137)
    for _ in range(4):
        survived("failed")
        story.bury()
    story.start_workers()
    story.stop(names.WORKER, 0)
    survived("succeeded")

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    made = [each for each in story.world.created if each["kind"] == (names.JOB_SET if queued else "Job")]
    attempts = [
        each["metadata"]["name"] for each in made if each["metadata"]["labels"][names.ROLE_LABEL] == names.WORKER
    ]
    assert attempts == (["job-0", "job-1"] if queued else ["job-worker-0", "job-worker-1"])
