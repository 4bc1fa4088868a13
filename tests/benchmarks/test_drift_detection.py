"""The measures of the benchmark of detectors."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from neuroshard_trainer.drift.detector import ShiftDetector

from benchmarks.drift_detection import alarms, f1_score, tuned
from benchmarks.drift_series import CHANGE_STEP, Series, changed, quiet, recorded
from benchmarks.drift_techniques import FixedHeldRatio, HeldRatio, RatioOfMedians, Shipped, scores_of


def series(*changes: tuple[int, int]) -> Series:
    """Return a series with known changes."""
    return Series("test", np.ones(1000), changes)


def test_an_alarm_that_goes_on_is_one_alarm() -> None:
    """Until the score was low for 100 steps."""
    scores = np.zeros(500)
    scores[[10, 11, 60, 300]] = 1.0

    assert alarms(scores, 1.0) == [10, 300]


@pytest.mark.parametrize(
    ("found", "expected"),
    [([105], 1.0), ([160], 0.0), ([], 0.0), ([105, 180], 1.0), ([105, 600], 2 / 3), ([50, 105], 2 / 3)],
    ids=["in time", "late", "missed", "goes on", "false after", "false before"],
)
def test_f1_counts_alarms_soon_after_a_change(found: list[int], expected: float) -> None:
    """A change of steps 100 to 200, with a tolerance of 50."""
    assert f1_score([series((100, 200))], [found], 50) == pytest.approx(expected)


def test_a_threshold_keeps_the_rate_on_its_series() -> None:
    """At most 0.2 false alarms per 10,000 steps; fixed ones stay."""
    scores = [scores_of(RatioOfMedians, quiet("realistic", seed).values) for seed in (1, 2)]
    threshold = tuned(RatioOfMedians, scores)

    assert sum(len(alarms(each, threshold)) for each in scores) == 0
    assert sum(len(alarms(each, threshold * 0.97)) for each in scores) > 0
    assert tuned(FixedHeldRatio, scores) == 1.05


def test_the_least_ratio_is_held_as_long_as_the_detectors() -> None:
    """A ratio above the threshold for 150 steps in a row, and no shorter one."""
    values = changed("realistic", "x1.10", 3).values
    ratios = scores_of(RatioOfMedians, values)
    held = np.array([np.min(ratios[max(0, step - 149) : step + 1]) for step in range(len(ratios))])

    found = scores_of(HeldRatio, values)

    assert ((found >= 1.05) == (held >= 1.05)).all()
    assert (found >= 1.05).any()


def test_recorded_series_have_their_labels(tmp_path: Path) -> None:
    """Of a change from its step to the end; others have none."""
    file = tmp_path / "recorded.json.gz"
    some = [
        {"name": "a", "begins": 2, "is_change": True, "load": [1.0, 2.0], "step_ms": [1.0, 1.0, 2.0]},
        {"name": "b", "begins": 0, "is_change": False, "load": [1.0, 2.0], "step_ms": [1.0, 1.0, 2.0]},
    ]
    file.write_bytes(gzip.compress(json.dumps({"series": some}).encode()))

    found = recorded(file)

    assert [(each.series.name, each.series.changes, each.load) for each in found] == [
        ("a", ((2, 3),), (1.0, 2.0)),
        ("b", (), (1.0, 2.0)),
    ]
    assert found[0].series.values.tolist() == [1.0, 1.0, 2.0]


def test_the_shipped_technique_is_the_trainers_detector() -> None:
    """With its warm-up and its reference; alarms are at the same steps."""
    values = changed("realistic", "x1.30", 3).values
    detector = ShiftDetector()
    expected = [step for step, value in enumerate(values.tolist(), 1) if detector.add(step, value) is not None]

    found = alarms(scores_of(Shipped, values), 0.5)

    assert [step + 1 for step in found] == expected
    assert expected[0] > CHANGE_STEP
