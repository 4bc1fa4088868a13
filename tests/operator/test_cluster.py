"""What is done to the cluster, in which order, and on which view of it."""

import asyncio
from datetime import timedelta

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError
from support.operator.operator_process import JOB, KEY, ONE_NODE, OperatorProcess, Story
from support.operator.operator_world import World

CHILDREN = ("Job", "Pod", "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding")


def test_nothing_is_made_before_what_it_refers_to() -> None:
    """A binding comes behind its Role, and a Job behind all that its pods need; the API server refuses nothing."""
    story = Story().running()
    story.fail(names.WORKER, 137)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.world.too_early == []


def test_a_look_at_an_old_status_makes_nothing() -> None:
    """An operator whose watch of the jobs lags behind does not know yet that this one has failed."""
    story = Story(runPolicy={"cleanPodPolicy": "All"}).planned()
    world = story.world
    world.end_pod(story.pods(names.WORKER)[0], 2)
    for _ in range(3):
        world.run_job_controller()
        world.watches.catch_up(CHILDREN)
        asyncio.run(story.operator.look(KEY))
    assert story.status["stage"] == "Failed"
    assert story.jobs(names.WORKER) == []
    for pod in story.pods(names.WORKER):
        world.finish_deletion(pod)
    world.watches.catch_up(CHILDREN)
    made = len(world.created)

    asyncio.run(OperatorProcess(world).look(KEY))

    assert len(world.created) == made


def test_a_child_that_no_watch_ever_showed_is_made_again() -> None:
    """Anyone who deleted it was faster than the watch; what was written is believed for some seconds only."""
    world = World()
    operator = OperatorProcess(world)
    world.submit(JOB)
    world.watches.catch_up()
    asyncio.run(operator.look(KEY))
    [job] = world.of_kind("Job", names.PROFILER)
    world.remove("Job", job["metadata"]["name"])
    world.watches.catch_up()
    asyncio.run(operator.look(KEY))
    assert world.of_kind("Job") == []
    assert operator.requeue_after_s is not None
    world.now += timedelta(seconds=operator.requeue_after_s)
    asyncio.run(operator.look(KEY))

    assert len(world.of_kind("Job", names.PROFILER)) == 1


def test_a_result_that_goes_before_it_is_copied_makes_the_look_stale() -> None:
    """An earlier pass had read it; the next look sees what is left, without a pause as after an error."""
    story = Story(trainer=ONE_NODE)
    [pod] = story.pods(names.PROFILER)
    story.world.work(pod)
    story.world.run_job_controller()
    story.world.watches.catch_up()
    story.world.refuse["ConfigMap"] = ApiError(503, "ServiceUnavailable", "try again")
    with pytest.raises(ApiError):
        asyncio.run(story.operator.look(KEY))
    story.world.refuse.clear()
    story.lose(names.PROFILER)
    writes = story.world.writes

    assert not asyncio.run(story.operator.look(KEY))
    assert story.world.writes == writes
    assert story.world.of_kind("ConfigMap", names.PROFILE) == []
