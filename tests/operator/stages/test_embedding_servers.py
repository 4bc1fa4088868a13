"""Embedding servers: a second Kubernetes Job of each attempt, which starts, fails, and ends with the workers'."""

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError
from neuroshard_operator.pace import COUNTS_EVERY_S
from support import builders
from support.operator.operator_process import JOB
from support.operator.server_story import SERVED, SERVERS, ServerStory

TWO_NODES = {"numNodes": 2, "numProcPerNode": 2}
OF_FIRST, OF_SECOND = ["job-server-0"], ["job-server-0", "job-server-1"]


def environment(story: ServerStory, role: str) -> dict[str, str]:
    """Return the variables of the trainer's container in the Job of a role."""
    [job] = story.world.of_kind("Job", role)
    [container] = job["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_servers_are_nodes_after_those_of_the_workers() -> None:
    """One rendezvous and one run for both Jobs: ranks are then trainers first, which plans and groups count on."""
    story = ServerStory().planned()
    workers, servers = environment(story, names.WORKER), environment(story, names.SERVER)

    for each in (workers, servers):
        assert each["PET_NNODES"] == "3"
        assert each["PET_RDZV_ENDPOINT"] == "job-worker-0-0.job-workers:29500"
    assert workers["PET_RDZV_ID"] == servers["PET_RDZV_ID"]
    assert (workers["PET_NPROC_PER_NODE"], servers["PET_NPROC_PER_NODE"]) == ("2", "3")
    assert "NEUROSHARD_NODES_BEFORE" not in workers
    assert servers["NEUROSHARD_NODES_BEFORE"] == "1"


def test_workers_of_several_nodes_come_before_servers() -> None:
    """All pods of both Jobs meet at the first worker, are awaited together, and are counted apart."""
    story = ServerStory(trainer=TWO_NODES).planned()
    workers, servers = environment(story, names.WORKER), environment(story, names.SERVER)

    assert {each["PET_NNODES"] for each in (workers, servers)} == {"4"}
    assert {each["PET_RDZV_ENDPOINT"] for each in (workers, servers)} == {"job-worker-0-0.job-workers:29500"}
    assert (workers["PET_NPROC_PER_NODE"], servers["PET_NPROC_PER_NODE"]) == ("2", "3")
    assert servers["NEUROSHARD_NODES_BEFORE"] == "2"
    first, second = story.pods(names.WORKER)
    for pod in (first, *story.pods(names.SERVER)):
        story.world.start_pod(pod)
    story.later(COUNTS_EVERY_S)
    assert story.status["message"] == "1 of 2 workers are ready, 2 of 2 embedding servers"
    story.world.start_pod(second)
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")


def test_a_worker_of_another_node_that_fails_starts_all_again() -> None:
    """Its peers on other nodes and the servers end with 7, and it is the cause."""
    story = ServerStory(trainer=TWO_NODES).running()
    first, failed = story.pods(names.WORKER)
    for pod in (first, *story.pods(names.SERVER)):
        story.world.end_pod(pod, 7)
    story.world.end_pod(failed, 137)
    story.settle()
    story.bury()

    assert (story.jobs(names.WORKER), story.jobs(names.SERVER)) == (["job-worker-0", "job-worker-1"], OF_SECOND)
    assert story.status["lastFailure"]["podName"] == failed["metadata"]["name"]
    assert story.world.doubled == []


def test_servers_of_gpus_ask_for_none() -> None:
    """Nor for nodes with the GPUs that the plan is for."""
    gpus = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}}
    story = ServerStory(trainer=gpus)
    story.world.hardware = builders.hardware()
    story.planned()
    [workers], [servers] = (
        [job["spec"]["template"]["spec"] for job in story.world.of_kind("Job", role)]
        for role in (names.WORKER, names.SERVER)
    )

    assert workers["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert servers["containers"][0]["resources"] == {"limits": {"memory": "8Gi", "cpu": 4}}
    assert "nodeSelector" not in servers
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")


@pytest.mark.parametrize("own", [None, {"pool": "highmem"}])
def test_servers_have_nodes_of_their_own_where_the_job_names_them(own: dict[str, str] | None) -> None:
    """Else the pod template's hold for them too; tolerations always do."""
    template = {"nodeSelector": {"pool": "gpu"}, "affinity": {"podAntiAffinity": {}}, "tolerations": [{"key": "a"}]}
    servers = SERVERS if own is None else {**SERVERS, "nodeSelector": own}
    experimental = {"pipeline": "None", "embeddingServers": servers}
    story = ServerStory(podTemplate={"spec": template}, experimental=experimental).planned()
    [of_workers], [of_servers] = (
        [job["spec"]["template"]["spec"] for job in story.world.of_kind("Job", role)]
        for role in (names.WORKER, names.SERVER)
    )

    assert of_workers["nodeSelector"] == {"pool": "gpu"}
    assert of_servers["nodeSelector"] == (own or {"pool": "gpu"})
    assert ("affinity" in of_servers) == (own is None)
    assert of_servers["tolerations"] == [{"key": "a"}]


def test_servers_have_their_own_memory_and_the_rights_of_workers() -> None:
    """What they may do in the cluster is what workers may, so that no further Role is made."""
    story = ServerStory().planned()
    [job] = story.world.of_kind("Job", names.SERVER)
    pod = job["spec"]["template"]["spec"]

    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (2, 2, 0)
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "8Gi", "cpu": 4}}
    assert pod["serviceAccountName"] == "job-worker"
    assert [role["metadata"]["name"] for role in story.world.of_kind("Role")] == [
        "job-planner",
        "job-profiler",
        "job-worker",
    ]


def test_a_job_runs_once_workers_and_servers_are_ready() -> None:
    """The status counts both, and the message says which of them are awaited."""
    story = ServerStory().planned()
    for pod in story.pods(names.WORKER):
        story.world.start_pod(pod)
    story.later(COUNTS_EVERY_S)
    assert story.seen == ("Launching", "WorkersStarting")
    assert story.status["message"] == "1 of 1 workers are ready, 0 of 2 embedding servers"
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["servers"] == {"desired": 2, "ready": 2}
    assert story.status["workers"]["desired"] == 1


def test_servers_that_the_plan_does_not_need_are_not_started() -> None:
    """The planner was free to put no table there; a queue is then of no concern."""
    unneeded = {**SERVERS, "tables": [], "policy": "IfNeeded"}
    story = ServerStory(experimental={"pipeline": "None", "embeddingServers": unneeded})
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.world.admit()
    story.settle()
    story.do(names.PROFILER).do(names.PLANNER)

    assert environment(story, names.WORKER)["PET_NNODES"] == "1"
    assert story.jobs(names.SERVER) == []
    assert "servers" not in story.status


@pytest.mark.parametrize("role", [names.WORKER, names.SERVER])
def test_a_failure_of_one_ends_both_and_starts_both_again(role: str) -> None:
    """The pod that failed of itself is the cause, whichever of them ended first, and the sentence says what it was."""
    story = ServerStory().running()
    other = names.SERVER if role == names.WORKER else names.WORKER
    failed = story.pods(role)[0]
    story.stop(other, 7)
    assert story.seen == ("Running", "WorkersNotReady")  # what they lost is not known yet
    story.world.end_pod(failed, 137)
    story.settle()
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert story.jobs(names.SERVER) == OF_SECOND
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["podName"] == failed["metadata"]["name"]
    [event] = [each for each in story.world.events if each["reason"] == "WorkersRestarted"]
    assert ("embedding server's pod job-server-0-0" in event["message"]) == (role == names.SERVER)
    assert story.world.doubled == []


def test_the_next_attempt_waits_for_servers_that_still_end() -> None:
    """They hold memory, and may still write to the checkpoint."""
    story = ServerStory().running()
    story.stop(names.WORKER, 1)
    assert story.seen == ("Launching", "WaitingForOldPods")
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert len(story.pods(names.SERVER)) == 2


def test_servers_that_come_late_do_not_count() -> None:
    """Workers that all ran wait in vain for a server whose node or image comes later."""
    story = ServerStory(failurePolicy={"maxRestarts": 0}).planned()
    story.stop(names.WORKER, 7)
    story.later(120)
    story.bury()

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)


def test_a_server_on_a_lost_node_restarts_all_without_a_count() -> None:
    """Its peers end with 7 at once, and the pod itself is watched."""
    story = ServerStory(failurePolicy={"maxRestarts": 0}).running()
    story.stop(names.WORKER, 7)
    assert "does not answer" in story.status["message"]
    story.later(31)
    assert story.status["restarts"] == 0
    story.later(91)

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)


def test_workers_that_hang_after_their_servers_ended_start_again() -> None:
    """Nothing ends them: their Job has not failed, and the cluster takes them for healthy."""
    story = ServerStory(failurePolicy={"progressTimeoutSeconds": 300}).running()
    progress = builders.progress(step=10)
    story.world.publish("job-report", {"progress.json": progress.to_json().encode()})
    story.later(60)
    story.stop(names.SERVER, 7)
    assert story.seen == ("Running", "WorkersNotReady")
    story.later(301)
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-1"]
    assert story.status["lastFailure"]["reason"] == "NoProgress"


def test_servers_are_asked_for_again_while_the_cluster_refuses_them() -> None:
    """Workers start meanwhile, and their attempt is kept."""
    story = ServerStory().do(names.PROFILER)
    [planner] = story.pods(names.PLANNER)
    story.world.work(planner)
    story.world.refuse["job-server-0"] = ApiError(403, "Forbidden", "exceeded quota")
    story.settle()
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert "exceeded quota" in story.status["message"]
    story.world.refuse.clear()
    story.later(31)

    assert story.jobs(names.SERVER) == OF_FIRST
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")


@pytest.mark.parametrize("name", ["job-worker-0", "job-server-0"])
def test_a_job_of_an_attempt_that_somebody_deletes_is_replaced_with_its_partner(name: str) -> None:
    """What is left of the attempt has nobody to train with."""
    story = ServerStory().running()
    before = {job["metadata"]["uid"] for job in story.world.of_kind("Job") if "-0" in job["metadata"]["name"]}
    story.world.remove("Job", name)
    story.settle()
    for _ in range(3):
        story.bury()

    after = {job["metadata"]["uid"] for job in story.world.of_kind("Job") if "-0" in job["metadata"]["name"]}
    assert (story.jobs(names.WORKER), story.jobs(names.SERVER)) == (["job-worker-0"], OF_FIRST)
    assert not after & before
    assert story.status["restarts"] == 0
    assert story.world.doubled == []


def test_workers_do_not_wait_for_the_name_of_servers_on_lost_nodes() -> None:
    """Somebody deleted both Jobs, and that of the servers stays for as long as the Node objects do."""
    story = ServerStory().running()
    story.world.remove("Job", "job-server-0", foreground=True)
    story.world.remove("Job", "job-worker-0")
    story.settle()
    for pod in story.pods(names.WORKER):
        story.world.finish_deletion(pod)
    story.later(121)
    story.later(121)

    assert story.jobs(names.SERVER) == OF_SECOND
    assert story.jobs(names.WORKER) == ["job-worker-1"]
    assert len(story.pods(names.WORKER)) == 1


def test_an_edited_job_of_servers_is_restored() -> None:
    """Its number of pods is the job's."""
    story = ServerStory().running()
    [job] = story.world.of_kind("Job", names.SERVER)
    job["spec"]["parallelism"] = 1
    story.world.touch(job)
    story.settle()

    assert job["spec"]["parallelism"] == 2
    assert "ChildRepaired" in story.reasons()


def test_a_suspended_job_keeps_no_servers() -> None:
    """No pods run, and none is wanted."""
    story = ServerStory().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.later(COUNTS_EVERY_S)

    assert story.jobs(names.SERVER) == []
    assert story.status["servers"] == {"desired": 0, "ready": 0}
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    assert story.jobs(names.SERVER) == OF_FIRST


def test_servers_that_are_given_up_while_suspended_go_with_their_workers() -> None:
    """The job resumes without them, under another plan."""
    story = ServerStory().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False, experimental={"pipeline": "None"})
    story.settle()
    story.do(names.PLANNER)

    assert (story.jobs(names.WORKER), story.jobs(names.SERVER)) == (["job-worker-0"], [])
    story.start_workers()
    assert story.seen == ("Running", "AllWorkersReady")
    assert "servers" not in story.status


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_servers_end_with_a_job_that_succeeds(policy: str) -> None:
    """They have half a minute to end by themselves, so that their logs stay where the policy keeps those."""
    story = ServerStory(runPolicy={"cleanPodPolicy": policy}).running()
    story.stop(names.WORKER, 0)
    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert story.jobs(names.SERVER) == ([] if policy == "All" else OF_FIRST)
    story.later(31)
    story.bury()

    assert story.jobs(names.SERVER) == []


def test_the_logs_of_servers_stay_with_those_of_workers() -> None:
    """A Job that has ended by itself is deleted by no policy but All."""
    story = ServerStory().running()
    story.stop(names.WORKER, 0)
    story.stop(names.SERVER, 0)
    story.later(3600)

    assert (story.jobs(names.WORKER), story.jobs(names.SERVER)) == (["job-worker-0"], OF_FIRST)


@pytest.mark.parametrize("policy", ["Running", "All"])
def test_servers_do_not_outlive_workers_that_are_stopped_by_a_deadline(policy: str) -> None:
    """Both Jobs go at once."""
    story = ServerStory(runPolicy={"cleanPodPolicy": policy, "activeDeadlineSeconds": 600}).running()
    story.later(601)
    story.bury()

    assert story.seen == ("Failed", "DeadlineExceeded")
    assert (story.jobs(names.WORKER), story.jobs(names.SERVER)) == ([], [])


def test_a_job_with_servers_is_in_no_queue_where_nothing_joins_them() -> None:
    """Of two Kubernetes Jobs, Kueue may admit one alone; `test_job_sets` has what a JobSet does."""
    story = ServerStory()
    story.world.submit("queued", **SERVED)
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()

    assert story.seen == ("Failed", "InvalidInput")
    assert "Kueue may admit one of them alone" in story.status["message"]
    assert "hint: install JobSet" in story.status["message"]


def test_a_label_of_a_queue_that_comes_later_holds_the_next_attempt() -> None:
    """The workers that run go on, and what failed waits for the label to go."""
    story = ServerStory().running()
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    assert story.seen == ("Running", "AllWorkersReady")
    story.fail(names.SERVER, 1)
    story.bury()
    assert story.seen == ("Launching", "InvalidInput")
    del story.world.training_job(JOB)["metadata"]["labels"][names.QUEUE_LABEL]
    story.world.touch(story.world.training_job(JOB))
    story.later(11)

    assert story.jobs(names.SERVER) == OF_SECOND
