"""Which jobs an event wakes."""

import asyncio
from datetime import timedelta

import pytest
from neuroshard_operator.caches import Caches
from neuroshard_operator.controller import Controller
from neuroshard_operator.metrics import Metrics
from operator_world import NAMESPACE, SETTINGS, START, World, stamp

PROFILE = {"configMapRef": {"name": "neuroshard-profile-1", "key": "manifest.json"}}
ENDED = stamp(START + timedelta(minutes=5))


@pytest.mark.parametrize(
    ("status", "namespace", "woken"),
    [
        pytest.param({}, NAMESPACE, 1, id="that nobody has looked at"),
        pytest.param({"stage": "Profiling"}, NAMESPACE, 1, id="that is profiled"),
        pytest.param({"stage": "Suspended"}, NAMESPACE, 1, id="whose profiler waits in a queue"),
        pytest.param({"stage": "Running", "profile": PROFILE}, NAMESPACE, 0, id="that has its profile, not"),
        pytest.param({"stage": "Failed", "completionTime": ENDED}, NAMESPACE, 0, id="that has ended, not"),
        pytest.param({}, "elsewhere", 0, id="of another namespace, not"),
    ],
)
def test_a_new_profile_wakes_a_job(status: dict[str, object], namespace: str, woken: int) -> None:
    """Also in an operator that has just started: what it knows of the job, it knows from the job's status alone."""
    world = World()
    world.submit("job")
    world.training_job("job")["status"] = status
    world.catch_up()

    async def wakes() -> int:
        controller = Controller(api=world, caches=Caches(world.indices()), settings=SETTINGS, metrics=Metrics())
        controller.wake_waiting_for_profile(namespace)
        return len(controller.queue)

    assert asyncio.run(wakes()) == woken
