"""Log lines: what a person or a program finds in them about a job."""

import asyncio
import json
import logging
from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.cluster.api import ApiError
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.controller import Controller
from neuroshard_operator.logs import JsonFormatter
from neuroshard_operator.process.metrics import OperatorMetrics
from support.operator.operator_process import JOB, KEY, ONE_NODE, SETTINGS, Story
from support.operator.operator_world import NAMESPACE


class FirstLine(logging.Handler):
    """Keeps the first line as it is written."""

    def __init__(self) -> None:
        """Wait for it."""
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.line: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        """Take it."""
        if not self.line.done():
            self.line.set_result(json.loads(self.format(record)))


def line_of_a_look(story: Story) -> dict[str, Any]:
    """Return the first log line of a controller that looks at the job."""
    logger = logging.getLogger("neuroshard_operator")

    async def look() -> dict[str, Any]:
        handler = FirstLine()
        logger.addHandler(handler)
        caches = Caches(story.world.watches.brought)
        controller = Controller(api=story.world, caches=caches, settings=SETTINGS, metrics=OperatorMetrics())
        working = asyncio.create_task(controller.run())
        controller.wake(KEY)
        try:
            return await asyncio.wait_for(handler.line, timeout=10)
        finally:
            logger.removeHandler(handler)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    return asyncio.run(look())


def test_a_change_is_told_with_job_stage_reason_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """Programs select by these fields."""
    caplog.set_level(logging.INFO, "neuroshard_operator")
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.world.run_job_controller()
    story.world.watches.catch_up()
    line = line_of_a_look(story)

    assert (line["severity"], line["namespace"], line["job"]) == ("INFO", NAMESPACE, JOB)
    assert (line["stage"], line["reason"], line["attempt"]) == ("Launching", "Restarting", 1)
    assert "137" in line["message"]


def test_a_look_that_fails_says_where_the_job_is() -> None:
    """Stage and attempt are those of its status."""
    story = Story(trainer=ONE_NODE)
    story.world.refuse["ConfigMap"] = ApiError(503, "ServiceUnavailable", "overloaded")
    [pod] = story.pods(names.PROFILER)
    story.world.work(pod)
    story.world.run_job_controller()
    story.world.watches.catch_up()
    line = line_of_a_look(story)

    assert (line["severity"], line["namespace"], line["job"]) == ("WARNING", NAMESPACE, JOB)
    assert (line["stage"], line["attempt"]) == ("Profiling", 0)
    assert "overloaded" in line["message"]
