"""The simulator against published kernel times."""

import runpy
from pathlib import Path

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "simulator_vs_published.py"))


def test_simulated_times_stay_near_the_published_ones() -> None:
    """Within 15 % in the geometric mean, and none off by more than half."""
    found = list(BENCHMARK["pairs"]())

    assert len(found) == 21
    assert BENCHMARK["geomean_error"](found) < 0.15
    assert all(2 / 3 < pair.ratio < 1.5 for pair in found)
