"""The measurement of the event loop's turns: processor time of this process, and nobody else's."""

import asyncio
import time

from neuroshard_operator.process.turns import turns_observed


def longest_turn_s(work: object) -> float:
    """Return the longest turn of a loop in which a function runs once."""
    seen: list[float] = []

    async def story() -> None:
        async with turns_observed(seen.append, every_s=0.01):
            await asyncio.sleep(0.02)
            assert callable(work)
            work()
            await asyncio.sleep(0.02)

    asyncio.run(story())
    return max(seen)


def compute(seconds: float) -> None:
    """Use the processor for some time."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_work_that_blocks_the_loop_shows() -> None:
    """All events wait for that long."""
    assert longest_turn_s(lambda: compute(0.3)) >= 0.3


def test_a_loop_that_does_not_get_the_processor_shows_nothing() -> None:
    """A busy machine is not a fault of the operator."""
    assert longest_turn_s(lambda: time.sleep(0.3)) < 0.15
