"""Specification of timers and repeats."""

import os
import time

import numpy as np
import pytest
from neuroshard_profiler.devices.timing import ThreadTimer, median_times, pinned_core, relative_spread
from neuroshard_profiler.times import Repeats


def test_the_median_of_the_repeats_counts() -> None:
    """One disturbed call in five changes nothing; the warm-up counts nowhere."""
    times = [(99.0, 99.0), (1.0, 2.0), (1.0, 2.0), (50.0, 2.0), (1.0, 3.0), (1.0, 2.0)]
    result = median_times(lambda number: times[number], Repeats(warm_up=1, least=5, most=5))

    assert (result.forward_ms, result.backward_ms, result.num_repeats) == (1.0, 2.0, 5)


@pytest.mark.parametrize(("call_ms", "expected"), [(0.1, 21), (4.0, 10), (100.0, 5)], ids=["short", "middle", "long"])
def test_short_calls_are_repeated_more(call_ms: float, expected: int) -> None:
    """Their spread is larger and their repeats cost nothing."""
    repeats = Repeats(warm_up=0, least=5, most=21, enough_ms=40.0)

    assert median_times(lambda _: (call_ms / 2, call_ms / 2), repeats).num_repeats == expected


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    """A share, so that long and short calls compare."""
    assert relative_spread(np.array([8.0, 9.0, 10.0, 11.0, 12.0])) == pytest.approx(0.2)
    assert relative_spread(np.zeros(3)) == 0.0


def test_a_thread_timer_counts_work_and_not_waiting() -> None:
    """What others take of the core must not count."""

    def work() -> None:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass

    worked_ms, nothing_ms = ThreadTimer().time_ms(work, lambda _: os.sched_yield())

    assert worked_ms >= 10.0
    assert nothing_ms < 1.0


def test_a_thread_timer_does_not_count_writing_over_the_cache() -> None:
    """The caches are made cold before each call, outside the intervals."""
    calls = ThreadTimer(flushed_bytes=2**25).time_ms(lambda: None, lambda _: None)

    assert max(calls) < 1.0


def test_a_warm_up_lasts_its_time() -> None:
    """Clocks rise by time, not by calls: four calls of 30 ms fill 100 ms."""
    calls: list[int] = []
    repeats = Repeats(warm_up=2, warm_up_ms=100.0, least=3, most=3)

    def call(number: int) -> tuple[float, float]:
        calls.append(number)
        return 1.0, 1.0

    median_times(call, repeats, clock=lambda: 0.03 * len(calls))

    assert calls == list(range(len(calls)))
    assert len(calls) - 3 == 4


def test_calls_on_a_slowed_core_are_repeated() -> None:
    """A call counts if the core ran at full speed before and after it; the record says how many did not."""
    times = iter([(9.0, 9.0), (9.0, 9.0), (1.0, 2.0), (1.0, 2.0), (9.0, 9.0), (9.0, 9.0), (1.0, 2.0)])
    slowed_by = iter([None, "heat", None, None, None, "heat", None, None])
    result = median_times(
        lambda _: next(times),
        Repeats(warm_up=0, least=3, most=9, enough_ms=0.0),
        slowed_by=lambda: next(slowed_by),
    )

    assert (result.forward_ms, result.backward_ms, result.num_repeats) == (1.0, 2.0, 3)
    assert (result.conditions, result.disturbance) == ({"slowed_calls": "4 of 7"}, None)


def test_a_device_that_is_always_slowed_is_measured_and_its_times_say_so() -> None:
    """Where full speed does not come within three times the fewest calls, the slowed ones count, with every reason."""
    repeats = Repeats(warm_up=0, least=3, most=5)
    reasons = iter(["power_cap"] * 4 + ["heat"] * 9)
    result = median_times(lambda _: (1.0, 2.0), repeats, slowed_by=lambda: next(reasons))

    assert (result.num_repeats, result.conditions) == (9, {"slowed_calls": "9 of 9"})
    assert result.disturbance == "slowed by power_cap; heat"


def test_a_process_is_pinned_to_one_core_and_freed_again() -> None:
    """It runs nowhere else while it measures."""
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned_core(core):
        assert os.sched_getaffinity(0) == {core}

    assert os.sched_getaffinity(0) == before
