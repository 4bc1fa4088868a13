"""Events about a job: what `kubectl describe` shows of its life."""

import asyncio

from neuroshard_operator.cluster.api import ApiError
from support.operator.operator_process import OperatorProcess
from support.operator.operator_world import World


def test_news_are_told_though_a_write_is_refused() -> None:
    """The status has them already, so no later look would tell them."""
    world = World()
    key = world.submit("shop")
    operator = OperatorProcess(world)

    async def lived() -> None:
        for _ in range(20):
            world.watches.catch_up()
            await operator.look(key)
            world.run_job_controller()
            for pod in world.of_kind("Pod"):
                if pod["status"].get("phase") == "Pending":
                    world.work(pod)
            if world.of_kind("Pod", "planner"):
                world.refuse["Service"] = ApiError(403, "Forbidden", "quota")

    asyncio.run(lived())

    assert world.status("shop")["reason"] == "ChildRefused"
    assert [event["reason"] for event in world.events] == ["Profiled", "Planned"]
