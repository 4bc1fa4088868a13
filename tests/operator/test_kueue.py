"""Kueue where the job itself asks for no queue: default queues, and Jobs that Kueue suspends without any label."""

import asyncio
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.topology import Rack
from neuroshard_decisions import names
from neuroshard_operator.children.workers import place_of
from neuroshard_operator.pace import COUNTS_EVERY_S
from neuroshard_operator.settings import Settings
from support import builders
from support.operator.operator_process import JOB, SETTINGS, OperatorProcess, Story
from support.operator.operator_world import World


def story_with_default_queue() -> Story:
    """Return a job in a namespace whose LocalQueue is named default."""
    story = Story()
    world = World()
    world.default_queue = "default"
    world.submit(JOB, trainer={"numNodes": 2})
    story.world, story.operator = world, OperatorProcess(world)
    story.settle()
    return story


def test_a_job_that_a_default_queue_holds_is_left_to_kueue() -> None:
    """Kueue labels and suspends the child Jobs; the operator resumes none, at no stage, and says who holds them."""
    story = story_with_default_queue()
    assert story.seen == ("Suspended", "WaitingForAdmission")
    assert "queue default" in story.status["message"]
    for role in (names.PROFILER, names.PLANNER):
        story.world.admit()
        story.settle()
        story.do(role)
        assert story.seen == ("Suspended", "WaitingForAdmission")
    assert "ChildRepaired" not in story.reasons()
    story.world.admit()
    story.settle()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


def test_a_job_that_somebody_keeps_suspending_is_resumed_once() -> None:
    """With manageJobsWithoutQueueName Kueue suspends it again; the operator gives way and says what to do."""
    story = Story().planned()
    story.world.suspends_jobs_without_queue = True
    for _ in range(5):
        story.world.run_job_controller()
        story.settle()

    assert story.reasons().count("ChildRepaired") == 1
    assert story.seen == ("Suspended", "WaitingForAdmission")
    assert names.QUEUE_LABEL in story.status["message"]


def test_a_planner_that_kueue_suspends_gets_the_jobs_queue() -> None:
    """The planner needs no GPU and asks for no queue; with manageJobsWithoutQueueName it would wait for ever."""
    story = Story()
    story.world.suspends_jobs_without_queue = True
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    [profiler] = story.world.of_kind("Job", names.PROFILER)
    assert profiler["metadata"]["labels"][names.QUEUE_LABEL] == "queue"
    for role in (names.PROFILER, names.PLANNER):
        assert story.seen == ("Suspended", "WaitingForAdmission")
        story.later(COUNTS_EVERY_S)
        assert "in queue queue" in story.status["message"]
        story.world.admit()
        story.settle()
        story.do(role)

    assert story.world.of_kind("Job", names.WORKER)[0]["metadata"]["labels"][names.QUEUE_LABEL] == "queue"


def test_workers_that_somebody_keeps_suspending_get_the_queue_that_the_job_is_given_then() -> None:
    """The message asked for the label."""
    story = Story().planned()
    story.world.suspends_jobs_without_queue = True
    for _ in range(3):
        story.world.run_job_controller()
        story.settle()
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    story.world.admit()
    story.settle()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")


RACK, BLOCK = "example.com/rack", "example.com/block"
PREFIX = "kueue.x-k8s.io/podset-"


@pytest.mark.parametrize(
    ("num_nodes", "of_rack", "expected"),
    [
        (1, None, {}),
        (4, None, {"preferred-topology": RACK}),
        (4, 4, {"required-topology": RACK}),
        (36, 18, {"preferred-topology": RACK, "slice-required-topology": RACK, "slice-size": "18"}),
    ],
    ids=["one node", "no racks", "one rack", "two racks"],
)
def test_workers_ask_kueue_for_the_racks_of_their_plan(
    num_nodes: int, of_rack: int | None, expected: dict[str, str]
) -> None:
    """All in one rack, or as many consecutive pods as the plan's racks have nodes; else near each other if possible."""
    assert place_of(RACK, num_nodes, of_rack) == {f"{PREFIX}{name}": value for name, value in expected.items()}


def test_a_queued_jobs_workers_get_the_place_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operator knows the racks' label; a job outside queues, and one that asks itself, get none of it."""

    def in_one_rack(asked: PlanRequest) -> Plan:
        found = builders_plan(asked)
        topology = found.request.topology
        racks = Rack(num_nodes=topology.num_nodes, link=topology.intra_node)
        request = found.request.model_copy(update={"topology": topology.model_copy(update={"rack": racks})})
        return found.model_copy(update={"request": request})

    def annotations(settings: Settings, *, is_queued: bool = True, **spec: Any) -> dict[str, str]:
        story = Story(settings, suspend=True, **spec)
        if is_queued:
            story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
        story.world.change_spec(JOB, suspend=False)
        story.settle()
        for role in (names.PROFILER, names.PLANNER):
            story.world.admit()
            story.settle()
            story.do(role)
        [workers] = story.world.of_kind("Job", names.WORKER)
        found = workers["spec"]["template"]["metadata"].get("annotations", {})
        return {key: value for key, value in found.items() if key.startswith(PREFIX)}

    builders_plan = builders.plan
    monkeypatch.setattr(builders, "plan", in_one_rack)
    racks = SETTINGS.model_copy(update={"rack_label": RACK})
    own = {f"{PREFIX}preferred-topology": BLOCK}

    assert annotations(racks) == {f"{PREFIX}required-topology": RACK}
    assert annotations(racks, is_queued=False) == {}
    assert annotations(SETTINGS) == {}
    assert annotations(racks, podTemplate={"metadata": {"annotations": own}}) == own


def test_a_profiler_that_kueue_holds_keeps_no_other_job_from_profiling() -> None:
    """The other job may have quota in another queue."""
    story = Story()
    [held] = story.world.of_kind("Job", names.PROFILER)
    held["spec"]["suspend"] = True
    story.world.touch(held)
    story.later(11)  # its own claim of the moment is over
    story.world.submit("second")
    story.world.watches.catch_up()
    asyncio.run(story.operator.look(("training", "second")))

    assert story.world.status("second")["reason"] == "ProfilerRunning"


@pytest.mark.parametrize("sees_suspension", [True, False], ids=["while suspended", "after it was resumed"])
def test_a_preemption_of_a_trainer_that_stops_in_order_does_not_count(*, sees_suspension: bool) -> None:
    """The Job controller takes a pod that ended with 143 on its way out for a failure of the Job."""
    story = Story(failurePolicy={"maxRestarts": 0}).running()
    [job] = story.world.of_kind("Job", names.WORKER)
    job["spec"]["suspend"] = sees_suspension
    story.world.touch(job)
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 143)
    story.settle()
    story.bury()

    assert story.status["stage"] != "Failed"
    assert story.status["restarts"] == 1
    assert story.status["restartsCountTowardsMax"] == 0


def test_a_worker_that_fails_by_itself_counts_beside_peers_that_were_stopped() -> None:
    """One exit code other than that of SIGTERM is a cause of its own."""
    story = Story(failurePolicy={"maxRestarts": 3}).running()
    first, second = story.pods(names.WORKER)
    story.world.end_pod(first, 1)
    story.world.end_pod(second, 143)
    story.settle()
    story.bury()

    assert story.status["restartsCountTowardsMax"] == 1
