"""Specification of the gauge of a core's speed."""

from itertools import chain, repeat

from neuroshard_profiler.devices.core_gauge import OTHER_WORK, CoreGauge


def test_a_core_that_loses_half_of_itself_is_not_at_full_speed() -> None:
    """The loop then takes 1.8 times as long; 10 % more is within what undisturbed loops differ by."""
    loops = chain(repeat(1.0, 30), [1.8, 1.1, 1.0])
    gauge = CoreGauge(lambda: next(loops))

    assert [gauge.slowed_by() for _ in range(3)] == [OTHER_WORK, None, None]
    assert gauge.full_speed_ms == 1.05


def test_full_speed_is_that_of_the_fastest_loop_so_far() -> None:
    """A gauge that was made on a slowed core finds the core's speed later."""
    loops = chain(repeat(1.8, 30), [1.0, 1.8])
    gauge = CoreGauge(lambda: next(loops))

    assert [gauge.slowed_by() for _ in range(2)] == [None, OTHER_WORK]
