"""What the drift watch costs rank 0: processor time of its part in reports of 100 steps.

OMP_NUM_THREADS=1 nice python -m benchmarks.drift_watch_cost

Calls the trainer's own watch, on one thread and without training: the spread of whole steps, which `reporter_overhead`
compares, is above this cost.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from neuroshard_api.step_report import RankTimes
from neuroshard_trainer.drift.watch import TIMES, DriftWatch, ReferenceTimes
from neuroshard_trainer.run_identity import RunIdentity
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.results_file import write_result

STEPS = 100
REPORTS, WARM_UP_REPORTS = 30, 4
CASES = ((2, 14, 1024, 6.5), (8, 26, 8192, 8.0), (128, 26, 8192, 8.0), (8, 1000, 1024, 1.5))
"""Ranks, features, samples of a batch, and mean lookups per feature and sample; the first is `reporter_overhead`'s."""
COLUMNS = (
    *("ranks", "features", "samples", "lookups", "us per step"),
    *("steps of this many ms or more: below 0.2 %", "kB of files"),
)
WORK = "detection, one batch counted, documents and state written"
ROWS = 1_000_000
SHARE = 0.002
"""Aim: of the time of a step."""


def batch(features: int, samples: int, pooling: float, rng: np.random.Generator) -> KeyedJaggedTensor:
    """Return lookups of rows with a square-law skew."""
    lengths = rng.poisson(pooling, features * samples)
    rows = (ROWS * rng.random(int(lengths.sum())) ** 2).astype(np.int64)
    keys = [f"t{index}" for index in range(features)]
    return KeyedJaggedTensor(
        keys=keys, values=torch.from_numpy(rows), lengths=torch.from_numpy(lengths.astype(np.int32))
    )


def microseconds_per_step(ranks: int, features: int, samples: int, pooling: float, folder: Path) -> list[float]:
    """Return the processor time of each report, per step of it."""
    rng = np.random.default_rng(0)
    run = RunIdentity(source="cpu:benchmark", plan_sha256="0" * 64)
    watch = DriftWatch(folder, run=run, plan_file=folder / "none", world_size=ranks, local_world_size=ranks)
    own, others = ReferenceTimes(), dict.fromkeys(TIMES, 1.0)
    lookups = batch(features, samples, pooling, rng)
    recent = [RankTimes(rank=rank, **others) for rank in range(ranks)]
    found = []
    for report in range(WARM_UP_REPORTS + REPORTS):
        times = [(20 * (1 + 0.03 * rng.normal(size=STEPS))).astype(np.float32) for _ in range(ranks)]
        begun = time.process_time()
        for step, ms in enumerate(times[0].tolist(), start=report * STEPS):
            own.add({**others, "step_ms": ms})
            watch.inputs.offer(step, lookups)
        watch.add_steps(report * STEPS, times)
        known = None if own.medians is None else others
        watch.report((report + 1) * STEPS - 1, recent, [own.medians, *[known] * (ranks - 1)], num_recent=STEPS)
        found.append(1e6 * (time.process_time() - begun) / STEPS)
    return found[WARM_UP_REPORTS:]


def main() -> None:
    """Measure all cases and write the result."""
    torch.set_num_threads(1)
    rows = []
    for ranks, features, samples, pooling in CASES:
        with tempfile.TemporaryDirectory() as folder:
            us = microseconds_per_step(ranks, features, samples, pooling, Path(folder))
            kilobytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1000
        low, _, high = quantiles(us, n=4)
        spread = f"{median(us):.0f} ({low:.0f} to {high:.0f})"
        cells = [str(ranks), str(features), f"{samples:,}", str(pooling), spread]
        rows.append(f"| {' | '.join(cells)} | {median(us) / 1000 / SHARE:.0f} | {kilobytes:.0f} |")
    lines = [
        "# Cost of the drift watch",
        "",
        f"Load average of the last minute at the end: {os.getloadavg()[0]:.1f}. Processor time of rank 0, per step, in",
        f"{REPORTS} reports of {STEPS} steps each: {WORK}; medians and",
        "quartiles. Not in it: medians and collecting, which the step report needs as well. On two cores that other",
        "programs use, processor times are up to twice those of a machine at rest.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    print(write_result("drift-watch-cost", lines, packages=("numpy", "torch", "torchrec")))


if __name__ == "__main__":
    main()
