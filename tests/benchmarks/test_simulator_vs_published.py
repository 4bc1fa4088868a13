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


def test_rates_of_collectives_that_were_held_out_are_near_the_published_ones() -> None:
    """Rings, all-reduces, and an all-to-all between nodes, within 6 %."""
    found = {each.name: each for each in BENCHMARK["figures"](with_steps=False) if each.unit == "bytes/s"}
    names = [name for name in found if name.startswith(("all-", "reduce-")) and found[name].basis == "held out"]

    assert len(names) == 4
    assert all(abs(found[name].error) < 0.06 for name in names)
