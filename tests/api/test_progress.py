"""The curves in a training's progress."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.progress import MAX_POINTS, ProgressPoint, with_point


@given(st.integers(1, 5 * MAX_POINTS))
def test_a_curve_of_any_length_is_few_points_up_to_the_last_one(count: int) -> None:
    """In order, from near its begin to its end."""
    points: tuple[ProgressPoint, ...] = ()
    for step in range(count):
        point = ProgressPoint(step=step, samples=step, time=datetime.now(UTC), metrics={})
        points = with_point(points, point)

    steps = [each.step for each in points]
    assert len(points) <= MAX_POINTS
    assert steps == sorted(set(steps))
    assert steps[-1] == count - 1
    assert steps[0] <= count / MAX_POINTS + 8
