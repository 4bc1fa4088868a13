"""Confidence intervals of paired rounds, and weights that are equal under every plan."""

import math

import numpy as np
import pytest
from neuroshard_trainer.comparison import geometric_mean
from scipy import stats


@pytest.mark.parametrize("count", [2, 5, 31, 200])
def test_the_interval_is_students_of_the_logarithms(count: int) -> None:
    """As scipy has it; beyond 31 rounds the normal distribution's, which is at most 5 % narrower."""
    values = np.exp(np.random.default_rng(count).normal(0.2, 0.1, count))
    logs = np.log(values)
    wanted = stats.t.interval(0.95, count - 1, loc=logs.mean(), scale=stats.sem(logs))
    mean, interval = geometric_mean(values.tolist())

    assert mean == pytest.approx(math.exp(logs.mean()))
    widths = [math.log(interval[1] / interval[0]), wanted[1] - wanted[0]]
    assert widths[0] == pytest.approx(widths[1], rel=1e-3 if count <= 31 else 0.05)
    assert math.sqrt(interval[0] * interval[1]) == pytest.approx(mean)
