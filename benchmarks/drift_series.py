"""Series of step times with known changes: generated like training, recorded from it, and of packages with labels."""

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
STEP_MS: Final = 20.0
NOISE: Final = 0.03
CHANGE_STEP: Final = 2500
AFTER_STEPS: Final = 1500
QUIET_STEPS: Final = 10_000
DRIFT_STEPS: Final = 2000
BURST_STEPS: Final = 30
HEAVY_SHARE: Final = 0.002
STRAGGLER_STEPS: Final = 600
AEON: Final = Path(".cache/aeon-1.6.0/aeon/datasets/data")
"""Where `.ci/fetch-wheel .venv aeon==1.6.0 .cache/aeon-1.6.0` unpacks the package."""


@dataclass(frozen=True, slots=True)
class Series:
    """Times of steps, and the steps from one change's begin to before its end."""

    name: str
    values: FloatArray
    changes: tuple[tuple[int, int], ...]


def stationary(rng: np.random.Generator, num_steps: int) -> FloatArray:
    """Return times with independent normal noise of 3 %."""
    return STEP_MS * (1 + NOISE * rng.normal(size=num_steps))


def realistic(rng: np.random.Generator, num_steps: int) -> FloatArray:
    """Return times with what training adds to noise.

    3 % noise with memory (autocorrelation 0.5), heavy single steps, collection pauses (x1.25 each 100), checkpoints (x3
    each 500), load of +-1.5 % over 5,000 steps, and a slow wander of 0.5 %.
    """
    steps = np.arange(num_steps)
    log = _with_memory(rng, num_steps, 0.5, NOISE) + _with_memory(rng, num_steps, 0.998, 0.005)
    load = 1 + 0.015 * np.sin(2 * np.pi * (steps / 5000 + rng.random()))
    heavy = np.where(rng.random(num_steps) < HEAVY_SHARE, rng.uniform(1.5, 3, num_steps), 1)
    pauses = np.where(steps % 100 == rng.integers(100), 1.25, 1)
    checkpoints = np.where(steps % 500 == rng.integers(500), 3, 1)
    values: FloatArray = STEP_MS * np.exp(log) * load * heavy * pauses * checkpoints
    return values


Noise = Callable[[np.random.Generator, int], FloatArray]
NOISES: Final[dict[str, Noise]] = {"stationary": stationary, "realistic": realistic}
KINDS: Final = ("x1.05", "x1.10", "x1.30", "drift", "straggler", "burst")
"""Lasting factors; +10 % over 2,000 steps; x1.30 for 600 steps; and x2 for 30 steps, which is not a change."""


def quiet(noise: str, seed: int) -> Series:
    """Return a series without a change."""
    return Series("quiet", NOISES[noise](np.random.default_rng(seed), QUIET_STEPS), ())


def changed(noise: str, kind: str, seed: int) -> Series:
    """Return a series with one change, or one burst, of a kind of ``KINDS``."""
    after = DRIFT_STEPS + AFTER_STEPS if kind == "drift" else AFTER_STEPS
    values = NOISES[noise](np.random.default_rng(seed), CHANGE_STEP + after)
    if kind == "drift":
        values[CHANGE_STEP:] *= 1 + 0.1 * np.minimum(1, np.arange(after) / DRIFT_STEPS)
        return Series(kind, values, ((CHANGE_STEP, len(values)),))
    lasts = {"burst": BURST_STEPS, "straggler": STRAGGLER_STEPS}.get(kind, after)
    values[CHANGE_STEP : CHANGE_STEP + lasts] *= {"burst": 2.0, "straggler": 1.3}.get(kind) or float(kind[1:])
    return Series(kind, values, () if kind == "burst" else ((CHANGE_STEP, CHANGE_STEP + lasts),))


RECORDED: Final = Path(__file__).parent / "data" / "recorded_step_times.json.gz"
"""What `record_step_times` wrote."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Steps of this project's trainer."""

    series: Series
    load: tuple[float, float]
    """Load averages of the machine at begin and end."""


def recorded(file: Path = RECORDED) -> list[Recorded]:
    """Return the recorded series. A lasting change goes from its step to the end."""
    found = json.loads(gzip.decompress(file.read_bytes()))
    return [
        Recorded(
            Series(
                each["name"],
                np.array(each["step_ms"], dtype=np.float64),
                ((each["begins"], len(each["step_ms"])),) if each["is_change"] else (),
            ),
            tuple(each["load"]),
        )
        for each in found["series"]
    ]


def labelled(folder: Path = AEON) -> list[Series]:
    """Return the labelled real series of aeon's wheel, shifted to be above 0. Raises FileNotFoundError."""
    found = (
        ("UCR 135", folder / "KDD-TSAD_135" / "135_UCR_Anomaly_InternalBleeding16_TEST.csv", "value"),
        ("Daphnet S06R02E0", folder / "Daphnet_S06R02E0" / "S06R02E0.csv", "trunk_vert"),
    )
    return [_labelled(name, path, column) for name, path, column in found]


def _labelled(name: str, path: Path, column: str) -> Series:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values = np.array([float(row[column]) for row in rows])
    values += max(0.0, 1.0 - float(values.min()))
    return Series(name, values, _segments([row["is_anomaly"] == "1" for row in rows]))


def _segments(marked: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.array(marked, dtype=np.int8), [0]))))
    return tuple((int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True))


def _with_memory(rng: np.random.Generator, num_steps: int, memory: float, deviation: float) -> FloatArray:
    """Return first-order autoregressive noise of a given standard deviation."""
    drawn = rng.normal(size=num_steps) * deviation * np.sqrt(1 - memory**2)
    values = np.empty(num_steps)
    last = rng.normal() * deviation
    for step in range(num_steps):
        last = memory * last + drawn[step]
        values[step] = last
    return values
