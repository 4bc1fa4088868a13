"""The queue: no wake-up is lost, and no key has two workers."""

import asyncio
from collections.abc import Awaitable, Callable

from neuroshard_operator.queue import KeyedQueue


def run(story: Callable[["KeyedQueue[str]"], Awaitable[None]], *, rest_s: float = 0.0) -> None:
    """Tell a story to a queue without jitter."""

    async def told() -> None:
        queue: KeyedQueue[str] = KeyedQueue(rest_s=rest_s, spread=lambda: 0.0)
        await story(queue)
        queue.close()

    asyncio.run(told())


def test_a_key_waits_once_however_often_it_is_woken() -> None:
    """Ten events about a job are one look."""

    async def story(queue: KeyedQueue[str]) -> None:
        for _ in range(10):
            queue.wake("a")
        assert len(queue) == 1
        assert (await queue.take())[0] == "a"
        assert len(queue) == 0

    run(story)


def test_a_key_that_is_woken_during_its_look_comes_back() -> None:
    """What happened after the look began may not have been seen by it."""

    async def story(queue: KeyedQueue[str]) -> None:
        queue.wake("a")
        await queue.take()
        queue.wake("a")
        assert len(queue) == 0  # no second worker
        queue.done("a")
        assert len(queue) == 1

    run(story)


def test_what_wakes_a_key_that_rests_is_one_look_after_the_rest() -> None:
    """The wait counts from the first wake-up; other keys do not rest with it."""

    async def story(queue: KeyedQueue[str]) -> None:
        queue.wake("a")
        await queue.take()
        queue.done("a")
        for _ in range(3):
            queue.wake("a")
        assert len(queue) == 0
        queue.wake("b")
        assert (await queue.take())[0] == "b"
        key, waited_s = await queue.take()
        assert (key, len(queue)) == ("a", 0)
        assert waited_s > 0.01

    run(story, rest_s=0.02)


def test_keys_come_in_the_order_of_their_wake_ups() -> None:
    """Nobody is overtaken."""

    async def story(queue: KeyedQueue[str]) -> None:
        for key in ("a", "b", "c", "a"):
            queue.wake(key)
        assert [(await queue.take())[0] for _ in range(3)] == ["a", "b", "c"]

    run(story)


def test_of_several_delays_the_earliest_counts() -> None:
    """A later alarm does not put off an earlier one."""

    async def story(queue: KeyedQueue[str]) -> None:
        queue.wake_after("a", 0.01)
        queue.wake_after("a", 60.0)
        assert (await asyncio.wait_for(queue.take(), 5))[0] == "a"

    run(story)


def test_a_wake_up_replaces_an_alarm() -> None:
    """The look that follows asks for the next alarm itself."""

    async def story(queue: KeyedQueue[str]) -> None:
        queue.wake_after("a", 0.01)
        queue.wake("a")
        await queue.take()
        queue.done("a")
        await asyncio.sleep(0.03)
        assert len(queue) == 0

    run(story)


def test_pauses_double_with_each_failure_in_a_row() -> None:
    """1, 2, 4 s and so on up to five minutes, and 1 s again after a success."""

    async def story(queue: KeyedQueue[str]) -> None:
        pauses = [queue.failed("a") for _ in range(12)]
        queue.succeeded("a")
        assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
        assert pauses[-1] == 300.0
        assert queue.failed("a") == 1.0

    run(story)


def test_a_key_that_is_gone_leaves_nothing() -> None:
    """No alarm rings for a job that was deleted."""

    async def story(queue: KeyedQueue[str]) -> None:
        queue.wake_after("a", 0.01)
        queue.forget("a")
        await asyncio.sleep(0.03)
        assert len(queue) == 0

    run(story)
