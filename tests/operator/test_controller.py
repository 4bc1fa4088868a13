"""Which jobs an event wakes."""

import asyncio
from datetime import timedelta

import neuroshard_operator.controller as controller_module
import pytest
from neuroshard_decisions.observed.objects import Observed
from neuroshard_operator.cluster import resync
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.cluster import Cluster, StaleError
from neuroshard_operator.controller import Controller
from neuroshard_operator.process.metrics import OperatorMetrics
from neuroshard_operator.writes import Writes
from support.operator.operator_process import SETTINGS
from support.operator.operator_world import NAMESPACE, START, World, stamp

ENDED = stamp(START + timedelta(minutes=5))


def conditions(**status: str) -> dict[str, object]:
    """Return a status with conditions by type."""
    return {"conditions": [{"type": kind, "status": holds} for kind, holds in status.items()]}


@pytest.mark.parametrize(
    ("status", "namespace", "woken"),
    [
        pytest.param({}, NAMESPACE, 1, id="that nobody has looked at"),
        pytest.param(conditions(Profiled="False"), NAMESPACE, 1, id="that is profiled"),
        pytest.param(conditions(Profiled="True", Planned="False"), NAMESPACE, 1, id="whose planner reads the profile"),
        pytest.param(conditions(Profiled="False", Planned="True"), NAMESPACE, 1, id="that has lost profile and plan"),
        pytest.param(conditions(Profiled="True", Planned="True"), NAMESPACE, 0, id="that has its plan, not"),
        pytest.param(conditions(Planned="True"), NAMESPACE, 0, id="that was given its plan, not"),
        pytest.param({"completionTime": ENDED}, NAMESPACE, 0, id="that has ended, not"),
        pytest.param({}, "elsewhere", 0, id="of another namespace, not"),
    ],
)
def test_a_profile_that_comes_or_goes_wakes_a_job(status: dict[str, object], namespace: str, woken: int) -> None:
    """Also in an operator that has just started: what it knows of the job, it knows from the job's status alone."""
    world = World()
    world.submit("job")
    world.training_job("job")["status"] = status
    world.watches.catch_up()

    async def wakes() -> int:
        controller = Controller(
            api=world, caches=Caches(world.watches.brought), settings=SETTINGS, metrics=OperatorMetrics()
        )
        controller.wake_for_profile(namespace)
        return len(controller.queue)

    assert asyncio.run(wakes()) == woken


def test_a_view_that_stays_outdated_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a job that another controller changes all the time: once, and with the object."""
    monkeypatch.setattr(controller_module, "STALE_S", 0)
    monkeypatch.setattr(controller_module, "REST_S", 0)
    world = World()
    world.submit("job")
    world.watches.catch_up()
    passes, enough = 0, asyncio.Event()

    async def changed(_cluster: Cluster, _observed: Observed, _writes: Writes) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 8:
            enough.set()
        raise StaleError("job has changed since it was observed")

    monkeypatch.setattr(Cluster, "apply", changed)

    async def story() -> None:
        caches = Caches(world.watches.brought)
        controller = Controller(api=world, caches=caches, settings=SETTINGS, metrics=OperatorMetrics())
        controller.wake((NAMESPACE, "job"))
        work = asyncio.create_task(controller.run())
        await enough.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(story())
    [event] = world.events

    assert (event["reason"], event["type"]) == ("ViewOutdated", "Warning")
    assert event["message"].startswith("job has changed since it was observed, 5 times in a row; ")


def test_no_job_is_reconciled_before_the_watches_have_brought_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that saw the job and not its children would make them a second time."""
    monkeypatch.setattr(resync, "FILL_S", 0)
    monkeypatch.setattr(controller_module, "FILL_AGAIN_S", 0)
    world = World()
    world.submit("early")
    world.watches.catch_up()
    world.submit("late")

    async def story() -> None:
        caches = Caches(world.watches.brought)
        controller = Controller(api=world, caches=caches, settings=SETTINGS, metrics=OperatorMetrics())
        controller.wake((NAMESPACE, "early"))
        work = asyncio.create_task(controller.run())
        for _ in range(1000):  # dozens of lists and passes
            await asyncio.sleep(0)
        assert not controller.is_ready
        assert not world.writes

        world.watches.catch_up()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert world.writes
        assert controller.is_ready
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(story())
