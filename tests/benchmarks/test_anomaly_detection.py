"""The measures of the benchmark of anomalies, and the series that it reads."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.anomaly_detection import best_level, found_in, scores_of
from benchmarks.anomaly_series import CATEGORIES, Labelled, published_scores, series_of
from benchmarks.anomaly_techniques import DifferenceTail, LargestBefore, ShippedRise


def series(*windows: tuple[int, int]) -> Labelled:
    """Return a series of 1,000 points, of which the first 150 are not scored."""
    values = np.random.default_rng(0).normal(loc=20, size=1000)
    return Labelled(name="category/name.csv", values=values, windows=windows)


def scores(*points: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return scores that are 1 at some points."""
    found = np.zeros(1000)
    found[list(points)] = 1.0
    return found


@pytest.mark.parametrize(
    ("alarms", "f1", "delays"),
    [((420,), 1.0, (20,)), ((100, 420), 1.0, (20,)), ((300, 420), 2 / 3, (20,)), ((600,), 0.0, ()), ((), 0.0, ())],
    ids=["hit", "before the scored ones", "false before", "false after", "missed"],
)
def test_a_window_is_hit_by_an_alarm_within_it(alarms: tuple[int, ...], f1: float, delays: tuple[int, ...]) -> None:
    """And its delay is from its first point; alarms elsewhere are false."""
    found = found_in([series((400, 450))], [scores(*alarms)], 1.0)

    assert found.f1 == pytest.approx(f1)
    assert found.delays == delays


def test_the_level_is_that_of_the_highest_f1() -> None:
    """A lower one would have a false alarm, a higher one would miss."""
    own = scores(420)
    own[700] = 0.5

    assert 0.5 < best_level([series((400, 450))], [own]) <= 1.0


def test_what_the_trainer_uses_sees_rises_and_falls() -> None:
    """The mirrored series has the falls; noise has no alarm."""
    each = series()
    assert not scores_of(ShippedRise, each).max() > 0
    for factor in (1.5, 0.5):
        each.values[500:] = factor * series().values[500:]
        found = scores_of(ShippedRise, each)
        assert 500 <= int(np.argmax(found)) <= 502


def test_the_tail_of_differences_is_a_probability() -> None:
    """Of differences that are drawn, one in a hundred has a score of 2, and one in a thousand of 3."""
    watching = DifferenceTail(np.random.default_rng(1).exponential(size=2000))
    scores = np.array([watching.score(value) for value in np.random.default_rng(2).exponential(size=20_000).tolist()])

    assert float((scores >= 2).mean()) == pytest.approx(0.01, rel=0.2)
    assert float((scores >= 3).mean()) == pytest.approx(0.001, rel=0.5)


def test_a_difference_is_compared_with_the_third_largest_before() -> None:
    """Of blocks of 20; there is none before three blocks."""
    values = np.full(80, 5.0)
    values[[5, 25, 45]] = 6.0, 7.0, 8.0
    watching = LargestBefore(values)
    assert watching.score(7.0) == pytest.approx(2.0)
    assert not LargestBefore(values[:59]).score(7.0) > 0


def test_a_clone_is_read_in_two_halves(tmp_path: Path) -> None:
    """Every second file of each category is held out; windows are points, and published scores belong to their file."""
    windows = {}
    for category in CATEGORIES:
        (tmp_path / "data" / category).mkdir(parents=True)
        for name in ("a", "b", "c"):
            rows = "".join(f"2014-01-01 00:0{minute}:00,{minute}\n" for minute in range(8))
            (tmp_path / "data" / category / f"{name}.csv").write_text(f"timestamp,value\n{rows}")
            windows[f"{category}/{name}.csv"] = [["2014-01-01 00:02:00.000000", "2014-01-01 00:04:00.000000"]]
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "combined_windows.json").write_text(json.dumps(windows))
    scored = tmp_path / "results" / "numenta" / CATEGORIES[0]
    scored.mkdir(parents=True)
    (scored / "numenta_b.csv").write_text("timestamp,value,anomaly_score\nt,0,0.25\n")

    development, held_out = series_of(tmp_path)

    assert [each.name.split("/")[1] for each in development] == 5 * ["a.csv", "c.csv"]
    assert [each.name.split("/")[1] for each in held_out] == 5 * ["b.csv"]
    assert held_out[0].windows == ((2, 4),)
    assert held_out[0].values.tolist() == list(range(8))
    assert published_scores(tmp_path, "numenta", held_out[0]).tolist() == [0.25]
