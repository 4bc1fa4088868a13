"""The curves in a training's progress."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.progress import (
    DIVERGED,
    MAX_NUMBERS,
    MAX_POINTS,
    ProgressPoint,
    TrainingProgress,
    by_variant,
    of_model,
    with_point,
)


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


def test_variants_are_listed_best_first_and_diverged_ones_last() -> None:
    """By normalized entropy, of numbers and of a status's texts alike; the model's own metrics have no variant."""
    metrics = {"loss": 0.1, "a/normalized_entropy": 0.9, "b/normalized_entropy": 0.8, "b/auc": 0.7}
    progress = TrainingProgress(step=9, metrics=metrics, diverged={"c": 5})

    assert of_model(metrics) == {"loss": 0.1}
    assert by_variant(progress.numbers) == {
        "b": {"normalized_entropy": 0.8, "auc": 0.7}, "a": {"normalized_entropy": 0.9}, "c": {DIVERGED: 5.0},
    }  # fmt: skip
    texts = {name: f"{value:.6g}" for name, value in progress.numbers.items()} | {"d/loss": "unknown"}
    assert list(by_variant(texts)) == ["b", "a", "c", "d"]


def test_curves_of_many_variants_have_fewer_points() -> None:
    """The document travels in a ConfigMap, whatever the number of variants is."""
    metrics = {f"variant-{number}/auc": 0.5 for number in range(100)}
    points: tuple[ProgressPoint, ...] = ()
    for step in range(1, 200):
        point = ProgressPoint(step=step, samples=step, time=datetime(2026, 1, 1, tzinfo=UTC), metrics=metrics)
        points = with_point(points, point)

    assert points[-1].step == 199
    assert 10 < len(points) <= MAX_NUMBERS // 100
