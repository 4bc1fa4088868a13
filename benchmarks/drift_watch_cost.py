"""What the drift watch costs rank 0: processor time of its part of a training, by the length of a step.

OMP_NUM_THREADS=1 nice python -m benchmarks.drift_watch_cost

Calls the trainer's own watch, on one thread and without training: the spread of whole steps, which `reporter_overhead`
compares, is above this cost.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from neuroshard_api.documents.step_report import RankTimes
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.drift.watch import TIMES, DriftWatch, ReferenceTimes
from neuroshard_trainer.drift.work_budget import WorkBudget
from neuroshard_trainer.ranks.run_identity import RunIdentity
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.results_file import write_result

STEPS = 100
WARM_UP_REPORTS, BLOCK_REPORTS, BLOCKS = 20, 60, 5
CASES = ((2, 14, 1024, 6.5), (8, 26, 8192, 8.0), (128, 26, 8192, 8.0), (8, 1000, 1024, 1.5))
"""Ranks, features, samples of a batch, and mean lookups per feature and sample; the first is `reporter_overhead`'s."""
STEP_MS = (1.0, 2.0, 5.0, 10.0, 25.0)
COLUMNS = (
    *("ranks", "features", "samples", "lookups", "step, ms"),
    *(
        "us per step",
        "of the step",
        "by the clock",
        "s between files",
        "us per step and report without files",
        "ms per report with",
    ),
)
ROWS = 1_000_000
COLUMNS_OF_DATA = DataColumns(dense=tuple(f"d{index}" for index in range(13)), fills=(0.0,) * 13)
LABEL_RATE = 0.03
SHARE = 0.002
"""Aim: of the time of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a watch took."""

    blocks_us: list[float]
    """Per step, of blocks of reports."""
    kept_us: float
    """Per step, of reports that write nothing."""
    clock_us: float
    """Per step, by the clock."""
    written_ms: float
    """Of a report that writes."""
    share_written: float
    """Of all reports."""


def batch_of(features: int, samples: int, pooling: float, rng: np.random.Generator) -> Batch:
    """Return lookups of rows with a square-law skew, and dense columns."""
    lengths = rng.poisson(pooling, features * samples)
    rows = (ROWS * rng.random(int(lengths.sum())) ** 2).astype(np.int64)
    keys = [f"t{index}" for index in range(features)]
    lookups = KeyedJaggedTensor(
        keys=keys, values=torch.from_numpy(rows), lengths=torch.from_numpy(lengths.astype(np.int32))
    )
    dense = torch.from_numpy(rng.normal(size=(samples, len(COLUMNS_OF_DATA.dense))).astype(np.float32))
    labels = torch.from_numpy((rng.random(samples) < LABEL_RATE).astype(np.float32))
    return Batch(dense=dense, lookups=lookups, labels=labels, num_real=samples, num_positive=int(labels.sum()))


def cost(ranks: int, batch: Batch, step_ms: float, folder: Path) -> Cost:
    """Return the processor time of a watch of steps with 3 % of noise, once its work is paid for by the steps."""
    rng = np.random.default_rng(0)
    run = RunIdentity(source="cpu:benchmark", plan_sha256="0" * 64)
    watch = DriftWatch(
        folder,
        run=run,
        plan_file=folder / "none",
        world_size=ranks,
        local_world_size=ranks,
        budget=WorkBudget(ahead_ms=0.0),
        columns=COLUMNS_OF_DATA,
    )
    own, others = ReferenceTimes(), dict.fromkeys(TIMES, 1.0)
    recent = [RankTimes.model_validate({"rank": rank, **others}) for rank in range(ranks)]
    spent_ms, clock_ms, is_written = [], [], []
    for report in range(WARM_UP_REPORTS + BLOCKS * BLOCK_REPORTS):
        times = [(step_ms * (1 + 0.03 * rng.normal(size=STEPS))).astype(np.float32) for _ in range(ranks)]
        each_ms = times[0].tolist()
        begun, begun_clock = time.process_time(), time.perf_counter()
        for step, ms in enumerate(each_ms, start=report * STEPS):
            if own.medians is None:
                own.add(ms, {**others, "step_ms": ms})
            watch.offer(step, batch)
        watch.data.add_report(
            (report + 1) * STEPS - 1, 0.5 + 0.001 * rng.normal(), num_positive=15 * STEPS, num_samples=512 * STEPS
        )
        watch.add_steps(report * STEPS, times)
        known = None if own.medians is None else others
        found = watch.report((report + 1) * STEPS - 1, recent, [own.medians, *[known] * (ranks - 1)], num_recent=STEPS)
        spent_ms.append(1000 * (time.process_time() - begun))
        clock_ms.append(1000 * (time.perf_counter() - begun_clock))
        is_written.append(found is not None)
    spent, written = np.array(spent_ms[WARM_UP_REPORTS:]), np.array(is_written[WARM_UP_REPORTS:])
    return Cost(
        blocks_us=(1000 * spent.reshape(BLOCKS, -1).mean(axis=1) / STEPS).tolist(),
        kept_us=1000 * float(np.median(spent[~written])) / STEPS if not written.all() else float("nan"),
        clock_us=1000 * float(np.mean(clock_ms[WARM_UP_REPORTS:])) / STEPS,
        written_ms=float(np.median(spent[written])) if written.any() else float("nan"),
        share_written=float(written.mean()),
    )


def main() -> None:
    """Measure all cases and write the result."""
    torch.set_num_threads(1)
    rows = []
    for ranks, features, samples, pooling in CASES:
        batch = batch_of(features, samples, pooling, np.random.default_rng(0))
        for step_ms in STEP_MS:
            with tempfile.TemporaryDirectory() as folder:
                found = cost(ranks, batch, step_ms, Path(folder))
            us = median(found.blocks_us)
            apart_s = STEPS * step_ms / 1000 / found.share_written if found.share_written else float("inf")
            cells = [str(ranks), str(features), f"{samples:,}", str(pooling), f"{step_ms:g}"]
            cells += [f"{us:.1f} ({min(found.blocks_us):.1f} to {max(found.blocks_us):.1f})"]
            cells += [f"{us / step_ms / 1000:.2%}{' (above)' if us / step_ms / 1000 > SHARE else ''}"]
            cells += [
                f"{found.clock_us / step_ms / 1000:.2%}",
                f"{apart_s:.1f}",
                f"{found.kept_us:.1f}",
                f"{found.written_ms:.1f}",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    lines = [
        "# Cost of the drift watch",
        "",
        f"Load average of the last minute at the end: {os.getloadavg()[0]:.1f}. Processor time of rank 0, per step,",
        f"over {BLOCKS} blocks of {BLOCK_REPORTS} reports of {STEPS} steps: median and range of the blocks' means.",
        "Detection at each report, that of loss and labels too; a batch counted, its 13 dense columns too, documents",
        "and state written as often as the work budget allows, without work done ahead. The aim is",
        f"{SHARE:.1%} of a step; rows above it say so. By the clock, the disk is",
        "in it too. Not in it: medians and collecting, which the step report needs as well. A nan: all or none of the",
        "reports wrote files.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *rows,
    ]
    print(write_result("drift-watch-cost", lines, packages=("numpy", "torch", "torchrec")))


if __name__ == "__main__":
    main()
