"""Suspension, queues and deadlines."""

import pytest
from neuroshard_decisions import names
from neuroshard_operator.pace import COUNTS_EVERY_S
from support import builders
from support.operator.operator_process import JOB, OperatorProcess, Story
from support.operator.operator_world import World


@pytest.mark.parametrize("stage", ["profiling", "planning", "running"])
def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(stage: str) -> None:
    """Profile and plan stay; the workers start again without a restart being counted."""
    story = Story()
    if stage != "profiling":
        story.do(names.PROFILER)
    if stage == "running":
        story.do(names.PLANNER)
        story.start_workers()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    assert story.seen == ("Suspended", "SuspendedByUser")
    assert [pod for role in ("profiler", "planner", "worker") for pod in story.pods(role)] == []
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    if stage == "profiling":
        story.do(names.PROFILER)
    if stage != "running":
        story.do(names.PLANNER)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["restarts"] == 0
    assert story.condition("Suspended")["status"] == "False"


def test_a_suspended_job_counts_no_workers() -> None:
    """What `kubectl get` shows as ready is there; none is wanted."""
    story = Story().running()
    before = story.status["workers"]
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.later(COUNTS_EVERY_S)
    resting = story.status["workers"]

    assert (before["desired"], before["ready"]) == (2, 2)
    assert (resting["desired"], resting["active"], resting["ready"]) == (0, 0, 0)


def test_another_size_while_suspended_means_another_plan() -> None:
    """The profile stays."""
    story = Story().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False, trainer={"numNodes": 3})
    story.settle()
    assert story.seen == ("Planning", "PlannerRunning")
    story.do(names.PLANNER)

    assert story.status["plan"]["worldSize"] == 3
    [job] = story.world.of_kind("Job", names.WORKER)
    assert job["spec"]["parallelism"] == 3


def test_a_queued_job_waits_for_kueue() -> None:
    """The Job is made suspended with Kueue's label, and the operator leaves the switch alone."""
    story = Story()
    world = World()
    operator = OperatorProcess(world)
    world.submit(JOB, profiler={"policy": "Never", "deviceType": "h100-80gb"})
    world.training_job(JOB)["metadata"]["labels"] = {names.QUEUE_LABEL: "gpus"}
    story.world, story.operator = world, operator
    story.settle()
    story.do(names.PLANNER)

    assert story.seen == ("Suspended", "WaitingForAdmission")
    [job] = world.of_kind("Job", names.WORKER)
    assert job["spec"]["suspend"]
    assert job["metadata"]["labels"][names.QUEUE_LABEL] == "gpus"


def test_a_job_that_kueue_takes_its_nodes_from_is_launched_again() -> None:
    """Its pods are gone; when they are admitted again, they start and are not merely unready."""
    story = Story(profiler={"policy": "Never", "deviceType": "h100-80gb"})
    queued = story.world.training_job(JOB)
    queued["metadata"]["labels"] = {names.QUEUE_LABEL: "gpus"}
    story.world.touch(queued)
    story.do(names.PLANNER)

    def admit(*, admitted: bool) -> None:
        [job] = story.world.of_kind("Job", names.WORKER)
        job["spec"]["suspend"] = not admitted
        story.world.touch(job)

    admit(admitted=True)
    story.settle()
    story.start_workers()
    assert story.status["stage"] == "Running"
    admit(admitted=False)
    for pod in story.pods(names.WORKER):
        story.world.remove("Pod", pod["metadata"]["name"])
        story.world.finish_deletion(pod)
    story.settle()
    assert story.seen == ("Suspended", "WaitingForAdmission")
    admit(admitted=True)
    story.settle()

    assert story.seen == ("Launching", "WorkersStarting")


def test_a_job_that_takes_too_long_fails() -> None:
    """Its workers are stopped."""
    story = Story(runPolicy={"activeDeadlineSeconds": 100}).running()
    story.later(101)
    story.bury()

    assert story.seen == ("Failed", "DeadlineExceeded")
    assert story.jobs(names.WORKER) == []


def test_workers_that_never_all_run_end_the_job_in_time() -> None:
    """The message says what it was waiting for."""
    story = Story(runPolicy={"preRunningDeadlineSeconds": 60}).planned()
    story.later(61)

    assert story.seen == ("Failed", "PreRunningDeadlineExceeded")
    assert "0 of 2 workers are ready" in story.status["message"]


@pytest.mark.parametrize("policy", ["PlanOnly", "Manual"])
def test_another_launch_policy_does_not_touch_workers_that_run(policy: str) -> None:
    """It decides about the next launch; running workers are watched, and restarted when one fails."""
    story = Story().running()
    story.world.change_spec(JOB, launchPolicy=policy)
    story.settle()
    assert story.status["stage"] == "Running"
    assert len(story.pods(names.WORKER)) == 2
    story.fail(names.WORKER, 1)

    assert story.status["restarts"] == 1
    assert story.status["lastFailure"]["exitCode"] == 1


@pytest.mark.parametrize("factor", [None, 7.0], ids=["the same tables", "another pooling factor"])
def test_tables_that_were_changed_while_suspended_are_planned_when_the_job_is_resumed(factor: float | None) -> None:
    """The job names a ConfigMap and not its contents: only a comparison with the plan shows the change."""
    reference = {"configMapKeyRef": {"name": "tables", "key": "tables.json"}}
    story = Story(suspend=True, model={"embeddingTablesFrom": reference})
    tables = builders.table_set()
    config_map = story.world.put(
        {"kind": "ConfigMap", "metadata": {"name": "tables"}, "data": {"tables.json": tables.to_json()}}
    )
    story.world.change_spec("job", suspend=False)
    story.settle()
    story.running()
    story.world.change_spec("job", suspend=True)
    story.settle()
    story.bury()
    if factor is not None:
        changed = [each.model_copy(update={"pooling_factor": factor}) for each in tables.tables]
        config_map["data"]["tables.json"] = tables.model_copy(update={"tables": tuple(changed)}).to_json()
    story.world.change_spec("job", suspend=False)
    story.settle()

    assert story.status.get("tableChanges", 0) == (factor is not None)
    assert story.status["stage"] == ("Launching" if factor is None else "Planning")
    assert len(story.jobs(names.PLANNER)) == (1 if factor is None else 2)
    if factor is not None:
        story.do(names.PLANNER)
        story.start_workers()
        assert story.seen == ("Running", "AllWorkersReady")
