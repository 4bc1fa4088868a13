"""Techniques that could notice anomalies of a loss or of data, on labelled series of production systems.

    git clone --depth 1 https://github.com/numenta/NAB .cache/NAB
    .cache/bootstrap/bin/uv pip install --python .venv/bin/python river==0.26.1
    OMP_NUM_THREADS=1 nice -n 19 python -m benchmarks.anomaly_detection [--nab .cache/NAB]

The one free level of each technique is that of the highest F1 on the development half of the series, the same rule for
all; all numbers are of the other half. What the trainer uses has its own numbers. Writes
benchmarks/results/anomaly-detection_*.md.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
from neuroshard_trainer.drift.columns import DEVIATIONS, MIN_MOVED, MIN_NULLS, DenseColumns, shares_moved
from neuroshard_trainer.drift.detector import WARM_UP_STEPS
from neuroshard_trainer.drift.input_statistics import FeatureCounts, InputDrift, counts_of, statistics_of
from neuroshard_trainer.drift.input_watch import REFERENCE_SAMPLES
from neuroshard_trainer.drift.labels import REFERENCE_INTERVALS, LabelWatch
from neuroshard_trainer.drift.rise import BLOCK_VALUES, LARGER, RECORD, RECORD_BLOCKS, RISE_DEVIATIONS, RiseDetector
from neuroshard_trainer.ranks.run_identity import RunIdentity
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.anomaly_series import NOISES, REPORTS, Labelled, loss_series, published_scores, series_of
from benchmarks.anomaly_techniques import (
    Differences,
    DifferenceTail,
    LargestBefore,
    LevelTail,
    SeasonalLargestBefore,
    ShippedRise,
    level_deviations,
    rise_times,
)
from benchmarks.drift_detection import alarms
from benchmarks.drift_series import FloatArray
from benchmarks.drift_techniques import (
    NOT_FOUND,
    Adwin,
    BayesianChangePoint,
    Cusum,
    Ewma,
    HalfSpaceTrees,
    Holt,
    PageHinkley,
    PointsBeyond,
    RatioOfMedians,
    Shipped,
    Technique,
)
from benchmarks.results_file import write_result

TOPIC: Final = "anomaly-detection"
PUBLISHED: Final = (
    "numenta",
    "numentaTM",
    "ARTime",
    "contextOSE",
    "knncad",
    "relativeEntropy",
    "windowedGaussian",
    "twitterADVec",
    "skyline",
    "earthgeckoSkyline",
    "bayesChangePt",
    "expose",
    "randomCutForest",
    "random",
)
"""Detectors whose scores the benchmark's repository has."""
LEVELS: Final = 60
INF: Final = float("inf")
SEED: Final = 40_000
FACTORS: Final = ((0.0, INF), (1.5, INF), (2.0, INF), (3.0, INF), (2.0, 2.0), (2.0, 1.5), (2.0, 1.25))
"""Of the third largest rise before, and of the largest one."""
RISES: Final = (0.02, 0.05, 0.1, 0.3)
NUM_QUIET, NUM_CHANGED = 100, 60
LONG_REPORTS, NUM_LONG, SINGLE_AT = 4000, 20, 3000
"""Of a long training: its reports, quiet series, and the report that is too high."""
SINGLE_RISES: Final = (0.04, 0.05, 0.06, 0.1, 0.2)
NEW_REFERENCE: Final = 20
"""Sampled batches that are compared with one reference."""
POOLING: Final = (0.5, 1.0, 1.0, 2.0, 5.0)
"""Mean lookups per list of features."""
ROWS: Final = 100_000
RUN: Final = RunIdentity(source="cpu:benchmark", plan_sha256="0" * 64)


TECHNIQUES: Final[tuple[type[Technique], ...]] = (
    ShippedRise,
    rise_times(LARGER),
    rise_times(0.0),
    LargestBefore,
    SeasonalLargestBefore,
    DifferenceTail,
    LevelTail,
    *(level_deviations(window, held) for window, held in ((20, 1), (20, 2))),
    Differences,
    Shipped,
    RatioOfMedians,
    Cusum,
    Ewma,
    Holt,
    PointsBeyond,
    BayesianChangePoint,
    Adwin,
    PageHinkley,
    HalfSpaceTrees,
)
BOTH_WAYS: Final = (Differences, DifferenceTail, BayesianChangePoint, Adwin, HalfSpaceTrees)
"""Techniques that see falls as well as rises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a technique found in some series."""

    hits: int
    missed: int
    false: int
    delays: tuple[int, ...]
    """Points from the begin of each window that was hit to its first alarm."""
    shares: tuple[float, ...]
    """The same as shares of the windows."""

    @property
    def f1(self) -> float:
        """F1 of windows and alarms."""
        return 2 * self.hits / max(1, 2 * self.hits + self.false + self.missed)


def found_in(series: Sequence[Labelled], scores: Sequence[FloatArray], threshold: float) -> Found:
    """Return the windows and false alarms at a threshold: an alarm outside of any window is false."""
    hits = missed = false = 0
    delays: list[int] = []
    shares: list[float] = []
    for each, own in zip(series, scores, strict=True):
        steps = [step for step in alarms(own, threshold) if step >= each.begin]
        for begin, end in each.windows:
            first = next((step for step in steps if begin <= step <= end), None)
            hits, missed = hits + (first is not None), missed + (first is None)
            if first is not None:
                delays.append(first - begin)
                shares.append((first - begin) / (end - begin))
        false += sum(not any(begin <= step <= end for begin, end in each.windows) for step in steps)
    return Found(hits=hits, missed=missed, false=false, delays=tuple(delays), shares=tuple(shares))


def best_level(series: Sequence[Labelled], scores: Sequence[FloatArray]) -> float:
    """Return the threshold with the highest F1, the higher of equal ones."""
    finite = np.concatenate([own[each.begin :] for each, own in zip(series, scores, strict=True)])
    finite = finite[np.isfinite(finite)]
    levels = sorted({float(np.quantile(finite, 1 - share)) for share in np.geomspace(0.3, 1e-5, LEVELS)})
    return max(levels, key=lambda level: (found_in(series, scores, level).f1, level))


def scores_of(technique: type[Technique], series: Labelled) -> FloatArray:
    """Return the scores of a series' points: of rises and falls the higher one; none before the scored ones."""
    values = series.values - series.values.min() + max(1.0, float(np.ptp(series.values)))  # shares need values above 0
    mirrored = values.max() + values.min() - values
    scores = []
    for each in [values] if technique in BOTH_WAYS else [values, mirrored]:
        watching = technique(each[: max(series.begin, WARM_UP_STEPS + 2)])
        scores.append([watching.score(value) for value in each[series.begin :].tolist()])
    return np.concatenate((np.full(series.begin, NOT_FOUND), np.max(scores, axis=0)))


def production_lines(folder: Path) -> tuple[list[str], dict[str, float]]:
    """Return the lines on the labelled series, and the level of each technique."""
    development, held_out = series_of(folder)
    rows: list[tuple[float, str]] = []
    levels: dict[str, float] = {}

    def add(name: str, scored: Callable[[Labelled], FloatArray], threshold: float | None, *, is_timed: bool) -> None:
        level = best_level(development, [scored(each) for each in development]) if threshold is None else threshold
        levels[name] = level
        begun = time.process_time()
        found = found_in(held_out, [scored(each) for each in held_out], level)
        us = 1e6 * (time.process_time() - begun) / sum(len(each.values) - each.begin for each in held_out)
        precision = found.hits / max(1, found.hits + found.false)
        recall = found.hits / (found.hits + found.missed)
        delay = f"{median(found.delays):.0f} | {median(found.shares):.0%}" if found.delays else "- | -"
        cells = f"{found.f1:.2f} | {precision:.2f} | {recall:.2f} | {delay} | {found.false}"
        rows.append((found.f1, f"| {name} | {level:.4g} | {cells} | {f'{us:.1f}' if is_timed else '-'} |"))

    for technique in TECHNIQUES:
        add(technique.name, lambda each, used=technique: scores_of(used, each), technique.threshold, is_timed=True)  # type: ignore[misc]
    for detector in PUBLISHED:
        add(
            f"{detector} (NAB's scores)",
            lambda each, used=detector: published_scores(folder, used, each),  # type: ignore[misc]
            None,
            is_timed=False,
        )
    num_windows = sum(len(each.windows) for each in held_out)
    points = sum(len(each.values) - each.begin for each in held_out)
    lines = [
        "## Series of production systems",
        "",
        "Numenta Anomaly Benchmark (https://github.com/numenta/NAB, MIT license): its real series, that is CloudWatch",
        "metrics, advertising prices, sensors and services with known causes, traffic, and counts of tweets. Of each",
        f"category every second file by name is held out: {len(held_out)} of {len(development) + len(held_out)},",
        f"{points:,} scored points, {num_windows} labelled windows. A window is found by an alarm within it; other",
        "alarms are false. Delay: from the begin of the window, which is some time before the labelled moment. The",
        "level is that of the highest F1 on the development series; the shipped ones have the trainer's. The",
        "benchmark's own detectors, of which its repository has the scores, are under the same rule. Rises and falls",
        "count; techniques that see rises alone run on the mirrored series as well, and their time is of both.",
        "",
        "| technique | level | F1 | precision | recall | delay, points | of the window | false alarms | us per point |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for _, row in sorted(rows, key=lambda each: -each[0])),
    ]
    return lines, levels


def choice_lines(folder: Path) -> list[str]:
    """Return the lines on how much larger than those before a rise must be, on the series that it was chosen on."""
    development, _ = series_of(folder)
    rows = []
    for larger, record in FACTORS:
        scores = [scores_of(rise_times(larger, record), each) for each in development]
        found = found_in(development, scores, 0.5)
        precision = found.hits / max(1, found.hits + found.false)
        recall = found.hits / (found.hits + found.missed)
        over = "-" if record == INF else f"{record:g}"
        cells = f"{found.f1:.2f} | {precision:.2f} | {recall:.2f} | {found.false}"
        rows.append(f"| {larger:g} | {over} | {cells} |")
    return [
        "## The rise detector's factors",
        "",
        f"On the {len(development)} development series: how many times the third largest rise before a rise must be;",
        f"and, from {RECORD_BLOCKS} blocks of {BLOCK_VALUES} values on, how many times the largest one makes a single",
        f"value a rise whatever its deviations. The trainer has {LARGER:g} and {RECORD:g}.",
        "",
        "| times the third largest | times the largest | F1 | precision | recall | false alarms |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def rise_lines(levels: Mapping[str, float]) -> list[str]:
    """Return the lines on losses with known rises; ``levels`` are those of the labelled series, by name."""
    windows = [level_deviations(20, held) for held in (1, 2)]
    tried = (rise_times(LARGER), rise_times(0.0), LargestBefore, DifferenceTail, LevelTail)
    techniques: list[type[Technique]] = [ShippedRise, *tried, *windows, Differences, Ewma, Holt, Shipped]
    lines = [
        "## Losses of a training",
        "",
        f"Generated mean losses of {REPORTS} reports, which fall as those of a training do, with noise of 1 %. The",
        f"level of the windows is {RISE_DEVIATIONS:g} deviations, the trainer's; others have theirs from above. False",
        f"alarms per 10,000 reports, on {NUM_QUIET} quiet series of each noise; median reports from a lasting rise to",
        f"the alarm with (found/series) where not all were found, {NUM_CHANGED} series of normal noise each.",
        "",
        f"| technique | {' | '.join([f'false, {noise}' for noise in NOISES] + [f'+{rise:.0%}' for rise in RISES])} |",
        f"|---|{'---|' * (len(NOISES) + len(RISES))}",
    ]
    for technique in techniques:
        level = RISE_DEVIATIONS if technique in windows else levels[technique.name]
        cells = []
        for noise in NOISES:
            quiet = [loss_series(noise, rise=0.0, seed=SEED + seed) for seed in range(NUM_QUIET)]
            count = sum(len(_rise_alarms(technique, each, level)) for each in quiet)
            cells.append(f"{10_000 * count / (NUM_QUIET * REPORTS):.2f}")
        for rise in RISES:
            delays = []
            for seed in range(NUM_CHANGED):
                found = _rise_alarms(technique, loss_series(NOISES[0], rise=rise, seed=SEED + 1000 + seed), level)
                delays += [next((at - REPORTS // 2 for at in found if at >= REPORTS // 2), None)]
            known = [each for each in delays if each is not None]
            share = "" if len(known) == len(delays) else f" ({len(known)}/{len(delays)})"
            cells.append(f"{median(known):.0f}{share}" if known else f"-{share}")
        lines.append(f"| {technique.name} | {' | '.join(cells)} |")
    return lines


def long_lines() -> list[str]:
    """Return the lines on trainings that are long enough for the rises before to tell the noise."""
    rows = []
    for technique in (ShippedRise, rise_times(LARGER)):
        cells = []
        for noise in NOISES:
            quiet = [loss_series(noise, rise=0.0, seed=SEED + each, reports=LONG_REPORTS) for each in range(NUM_LONG)]
            count = sum(len(_rise_alarms(technique, each, technique.threshold)) for each in quiet)
            cells.append(f"{10_000 * count / (NUM_LONG * LONG_REPORTS):.2f}")
        found = dict.fromkeys(SINGLE_RISES, 0)
        for seed in range(NUM_CHANGED):
            values = loss_series(NOISES[0], rise=0.0, seed=SEED + 2000 + seed, reports=LONG_REPORTS).tolist()
            watching = RiseDetector(larger=technique.larger, record=technique.record)
            for value in values[:SINGLE_AT]:
                watching.add(value)
            for rise in SINGLE_RISES:
                one = RiseDetector(watching.state, larger=technique.larger, record=technique.record)
                found[rise] += one.add(values[SINGLE_AT] * (1 + rise)) is not None
        rows.append(f"| {technique.name} | {' | '.join([*cells, *map(str, found.values())])} |")
    columns = [*(f"false, {noise}" for noise in NOISES), *(f"+{rise:.0%}" for rise in SINGLE_RISES)]
    return [
        "## Long trainings",
        "",
        f"Losses as above of {LONG_REPORTS:,} reports. False alarms per 10,000 reports, on {NUM_LONG} quiet series of",
        f"each noise. Of {NUM_CHANGED} series of normal noise, those in which one report that alone is too high is",
        f"found, the {SINGLE_AT:,}th.",
        "",
        f"| technique | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *rows,
    ]


def _rise_alarms(technique: type[Technique], values: FloatArray, level: float) -> list[int]:
    """Return the reports at which a technique begins to see a rise."""
    learned = WARM_UP_STEPS + 2
    watching = technique(values[:learned])
    above = [watching.score(value) >= level for value in values[learned:].tolist()]
    return [learned + at for at, is_above in enumerate(above) if is_above and not (at and above[at - 1])]


def _lookups(rng: np.random.Generator, lists: int) -> dict[str, FeatureCounts]:
    """Return the counts of a batch whose lists have as many lookups as a Poisson number, of skewed rows."""
    lengths = rng.poisson(np.repeat(POOLING, lists)).astype(np.int32)
    rows = (ROWS * rng.random(int(lengths.sum())) ** 4).astype(np.int64)
    keys = [f"f{number}" for number in range(len(POOLING))]
    return counts_of(KeyedJaggedTensor(keys=keys, values=torch.from_numpy(rows), lengths=torch.from_numpy(lengths)))


def _label_rows(rng: np.random.Generator) -> list[str]:
    """Return the rows on labels."""
    rows = []
    for rate in (0.001, 0.03, 0.5):
        watch, found, runs = LabelWatch(), 0, 200_000
        positives = rng.binomial(64, rate, size=runs)
        for step, count in enumerate(positives.tolist()):
            watch.add(step, count, 64)
            found += int(watch.constant is not None)
        rows.append(f"| labels constant, rate {rate:.1%} | steps of 64 samples | {runs:,} | {found} |")
    for rate in (0.001, 0.03, 0.5):
        found = 0
        for _ in range(2000):
            watch = LabelWatch()
            counts = rng.binomial(25_600, rate, size=100 + REFERENCE_INTERVALS).tolist()
            found += sum(watch.moved_rate(count, 25_600) is not None for count in counts)
        rows.append(f"| label rate, rate {rate:.1%} | reports of 25,600 samples | 200,000 | {found} |")
    return rows


def fidelity_lines() -> list[str]:
    """Return the lines on false alarms of labels and columns."""
    rng = np.random.default_rng(SEED)
    rows = _label_rows(rng)
    for samples in (128, 1024, 8192):
        num, before = 1_000_000, np.repeat([0.0, 0.01, 0.2, 0.5], 250_000)
        known = rng.binomial(3 * samples, before) / (3 * samples)
        now = rng.binomial(samples, before) / samples
        moved = shares_moved(known, now, num_before=3 * samples, num_now=samples, excess=1.0, least=MIN_NULLS)
        nulls = int((moved & (now > known)).sum())
        rows.append(f"| missing values | columns of {samples:,} samples | {num:,} | {nulls} |")
    for samples in (128, 1024, 8192):
        num = found = 0
        for number in range(max(2, 400_000 // samples)):
            if number % NEW_REFERENCE == 0:
                columns = DenseColumns.of(list(rng.normal(size=(3, samples, 50))), np.full(50, np.nan))
            found += len(columns.moved(rng.normal(size=(samples, 50)).astype(np.float32)))
            num += 50
        rows.append(f"| distribution | columns of {samples:,} samples | {num:,} | {found} |")
    for lists, batches in ((64, 10_000), (900, 2000), (4096, 6000)):
        num = found = 0
        for number in range(batches // NEW_REFERENCE):
            first = [_lookups(rng, lists) for _ in range(REFERENCE_SAMPLES)]
            watching = InputDrift(statistics_of(first, run=RUN, first_step=0, last_step=number))
            found += sum(len(watching.add(_lookups(rng, lists))) for _ in range(NEW_REFERENCE))
            num += NEW_REFERENCE * len(POOLING)
        rows.append(f"| lookups, rows, lists | features of {lists:,} lists | {num:,} | {found} |")
    return [
        "## False alarms on data that does not change",
        "",
        f"Independent samples. Shares have moved from {DEVIATIONS:g} deviations on, and from {MIN_NULLS:.0%} (missing)",
        f"or {MIN_MOVED:.0%} (distribution) on. One reference of columns or lookups serves {NEW_REFERENCE} batches,",
        "one of label rates 100 reports.",
        "",
        "| finding | one trial | trials | false alarms |",
        "|---|---|---|---|",
        *rows,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nab", type=Path, default=Path(".cache/NAB"), help="clone of the benchmark's repository")
    options = parser.parse_args(arguments)
    begun = time.process_time()
    production, levels = production_lines(options.nab)
    lines = [
        "# Techniques that notice anomalies of a loss and of data",
        "",
        *production,
        "",
        *choice_lines(options.nab),
        "",
        *rise_lines(levels),
        "",
        *long_lines(),
        "",
        *fidelity_lines(),
        "",
        "## The published comparison",
        "",
        "Choudhary, Kejariwal, and Orsini (2017, arXiv 1710.04735) compare techniques of many fields by run time and",
        "efficacy on production series, to choose by need, and name data fidelity as a use next to detection. The",
        "abstract has no figure. This comparison is of that form: F1, delay, and time per point, on public series.",
        "",
        f"Processor time of the whole benchmark: {time.process_time() - begun:.0f} s.",
    ]
    print(write_result(TOPIC, lines, packages=("numpy", "river")))


if __name__ == "__main__":
    main()
