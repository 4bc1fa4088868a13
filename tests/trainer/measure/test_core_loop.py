"""Specification of the loop that tells a core's speed in training."""

from neuroshard_trainer.measure.core_loop import EVERY_S, KEPT_LOOPS, CoreLoop


def test_the_loop_runs_seldom_and_its_median_is_that_of_the_last_runs() -> None:
    """It takes a core's time from the training."""
    now, times = [0.0], iter([9.0] * KEPT_LOOPS + [0.3, 0.4] * KEPT_LOOPS)
    loop = CoreLoop(lambda: next(times), clock=lambda: now[0])
    assert loop.median_ms is None

    for _ in range(2 * 2 * KEPT_LOOPS):
        loop.look()
        now[0] += 0.6 * EVERY_S

    assert loop.median_ms == 0.35
