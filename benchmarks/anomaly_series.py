"""Series to find anomalies in: those of production systems with labels, and losses of a training with known changes."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.drift_series import FloatArray

CATEGORIES: Final = ("realAWSCloudwatch", "realAdExchange", "realKnownCause", "realTraffic", "realTweets")
PROBATION_SHARE, PROBATION_MAX = 0.15, 750
"""Of a series, which NAB does not score: techniques learn in it."""
REPORTS: Final = 400
"""Of a generated training; the change is in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A series of the Numenta Anomaly Benchmark (MIT license, Numenta 2014 to 2024)."""

    name: str
    """Category and file."""
    values: FloatArray
    windows: tuple[tuple[int, int], ...]
    """First and last point of each labelled anomaly's window."""

    @property
    def begin(self) -> int:
        """First point that is scored."""
        return min(int(PROBATION_SHARE * len(self.values)), PROBATION_MAX)


def series_of(folder: Path) -> tuple[list[Labelled], list[Labelled]]:
    """Return development and held-out series of a clone: of each category every second file by name.

    Raises:
        FileNotFoundError: the folder is not a clone.
    """
    windows = json.loads((folder / "labels" / "combined_windows.json").read_text(encoding="utf-8"))
    halves: tuple[list[Labelled], list[Labelled]] = ([], [])
    for category in CATEGORIES:
        for number, file in enumerate(sorted((folder / "data" / category).glob("*.csv"))):
            name = f"{category}/{file.name}"
            halves[number % 2].append(_labelled(file, name, windows[name]))
    return halves


def published_scores(folder: Path, detector: str, series: Labelled) -> FloatArray:
    """Return a detector's anomaly scores of a series, as the benchmark's repository has them."""
    category, name = series.name.split("/")
    file = folder / "results" / detector / category / f"{detector}_{name}"
    with file.open(encoding="utf-8", newline="") as opened:
        return np.array([float(row["anomaly_score"]) for row in csv.DictReader(opened)])


def _labelled(file: Path, name: str, windows: list[list[str]]) -> Labelled:
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    place = {row["timestamp"]: number for number, row in enumerate(rows)}
    return Labelled(
        name=name,
        values=np.array([float(row["value"]) for row in rows]),
        windows=tuple((place[begin.split(".")[0]], place[end.split(".")[0]]) for begin, end in windows),
    )


NOISES: Final = ("normal", "normal with memory 0.5", "Student's t of 5 degrees")


def loss_series(noise: str, *, rise: float, seed: int, deviation: float = 0.01, reports: int = REPORTS) -> FloatArray:
    """Return mean losses of a training's reports.

    They fall from 0.69 to 0.45 as a power of the reports, have noise in shares of them, and rise in the middle.
    """
    rng = np.random.default_rng(seed)
    number = np.arange(reports)
    usual = 0.45 + 0.24 / np.sqrt(1 + number)
    drawn = _noise(noise, rng, reports)
    losses: FloatArray = usual * (1 + deviation * drawn) * np.where(number >= reports // 2, 1 + rise, 1.0)
    return losses


def _noise(noise: str, rng: np.random.Generator, count: int) -> FloatArray:
    """Return noise of deviation 1."""
    if noise == NOISES[0]:
        return rng.normal(size=count)
    if noise == NOISES[1]:
        return np.fromiter(_with_memory(rng, 0.5, count), dtype=np.float64, count=count)
    heavy: FloatArray = rng.standard_t(5, size=count) / np.sqrt(5 / 3)
    return heavy


def _with_memory(rng: np.random.Generator, memory: float, count: int) -> Iterator[float]:
    last = float(rng.normal())
    for drawn in rng.normal(size=count) * np.sqrt(1 - memory**2):
        last = memory * last + float(drawn)
        yield last
