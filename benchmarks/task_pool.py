"""Shows how near the task distribution's pool comes to the published sums, and fits its free numbers.

    python -m benchmarks.task_pool          writes benchmarks/results/task-pool_any_<date>.md
    python -m benchmarks.task_pool --fit    prints the best of a random search; takes some minutes

The error of a shape is the absolute logarithm of the ratio of distinct rows, plus the total variation distance of the
shares of rows by hits, plus that of the shares of lookups by hits of their row. The sums do not fix the rows of rarely
read tables: the fit keeps the mean above a million and the spread of the lookups at a factor of e or more.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.reuse.shard_arrays import zipf_counts
from neuroshard_costs.shards import FloatArray

from benchmarks.results_file import write_result
from benchmarks.tasks import GLOBAL_BATCH_SIZE, LOOKUPS, NUM_POOL_TABLES, Pool, PoolShape, draw_pool

DATA = Path(__file__).parent / "data" / "dlrm_datasets_locality.json"
TRACE = "fbgemm_t856_bs65536.pt"
MOST_TOTAL_ERROR = 0.02
"""Relative error of the lookups and of the distinct rows that the pool may have."""
MOST_ROWS_DISTANCE = 0.05
MOST_INDEX_DISTANCE = 0.11
NUM_TRIES = 10_000
LEAST_MEAN_ROWS = 1e6
LEAST_LOOKUPS_SPREAD = 1.0


class Match(NamedTuple):
    """A pool next to the published sums."""

    lookups: float
    unique_rows: float
    rows_share: FloatArray
    """[17] of the distinct rows, by hits."""
    index_share: FloatArray
    """[17] of the lookups, by hits of their row."""
    unique_error: float
    rows_distance: float
    index_distance: float

    @property
    def error(self) -> float:
        """What the fit lowers."""
        return self.unique_error + self.rows_distance + self.index_distance


def published() -> tuple[float, FloatArray, FloatArray]:
    """Return distinct rows, their shares by hits, and the shares of the lookups."""
    trace = json.loads(DATA.read_text(encoding="utf-8"))["files"][TRACE]
    return float(trace["unique_rows"]), np.array(trace["rows_share"]), np.array(trace["index_share"])


def match(pool: Pool) -> Match:
    """Hold a pool against the published sums; one of fewer tables stands for all 856."""
    unique_rows, rows_share, index_share = published()
    lookups = pool.pooling_factor * GLOBAL_BATCH_SIZE
    scale = NUM_POOL_TABLES / len(lookups)
    counts = scale * zipf_counts(pool.num_rows, lookups=lookups, exponents=pool.exponent).sum(axis=0)
    rows, indices = counts / counts.sum(), counts * MEAN_HITS / (counts @ MEAN_HITS)
    return Match(
        lookups=scale * float(lookups.sum()),
        unique_rows=float(counts.sum()),
        rows_share=rows,
        index_share=indices,
        unique_error=abs(float(np.log(counts.sum() / unique_rows))),
        rows_distance=float(np.abs(rows - rows_share).sum() / 2),
        index_distance=float(np.abs(indices - index_share).sum() / 2),
    )


def fit() -> tuple[float, PoolShape]:
    """Return the best shape of a random search that half explores and half refines its five best."""
    generator = np.random.default_rng(0)
    low = np.array([5.0, 0.2, LEAST_LOOKUPS_SPREAD, 0.5, 0.0, 0.0])
    high = np.array([6.5, 1.5, 1.8, 1.2, 0.5, 0.4])
    best: list[tuple[float, tuple[float, ...]]] = []
    for trial in range(NUM_TRIES):
        numbers = generator.uniform(low, high)
        if trial % 2 and best:
            centre = np.array(best[int(generator.integers(min(5, len(best))))][1])
            numbers = centre + generator.normal(size=len(low)) * (high - low) * generator.choice([0.01, 0.05])
        numbers = np.clip(numbers, low, high)
        pool = draw_pool(PoolShape(**dict(zip(asdict(PoolShape()), numbers.tolist(), strict=True))))
        too_small = max(0.0, float(np.log(LEAST_MEAN_ROWS / pool.num_rows.mean())))
        best = sorted([*best, (match(pool).error + 0.3 * too_small, tuple(numbers.tolist()))])[:5]
    error, numbers_found = best[0]
    return error, PoolShape(**dict(zip(asdict(PoolShape()), numbers_found, strict=True)))


def report() -> list[str]:
    """Return the comparison as lines of Markdown."""
    pool = draw_pool()
    unique_rows, rows_share, index_share = published()
    found = match(pool)
    bins = [f"{2**power}" for power in range(16)] + ["more"]
    return [
        "# The pool of the task distribution next to the published sums",
        "",
        "How the tables' rows and lookups spread is assumed (benchmarks/tasks.py); the published sums do not fix it.",
        "Plans of these tasks say what the search does on such tables, not on the original ones.",
        "",
        "| sum over 856 tables | published | pool | tolerance |",
        "|---|---|---|---|",
        f"| lookups in a batch | {LOOKUPS:,} | {found.lookups:,.0f} | {MOST_TOTAL_ERROR:.0%} |",
        f"| distinct rows in a batch | {unique_rows:,.0f} | {found.unique_rows:,.0f} | {MOST_TOTAL_ERROR:.0%} |",
        f"| distance of the row shares | 0 | {found.rows_distance:.3f} | {MOST_ROWS_DISTANCE} |",
        f"| distance of the lookup shares | 0 | {found.index_distance:.3f} | {MOST_INDEX_DISTANCE} |",
        "",
        "Distance: total variation, half the sum of absolute differences.",
        "",
        "| hits of a row, at most | rows published | rows pool | lookups published | lookups pool |",
        "|---|---|---|---|---|",
        *(
            f"| {label} | {row:.3f} | {pool_row:.3f} | {index:.3f} | {pool_index:.3f} |"
            for label, row, pool_row, index, pool_index in zip(
                bins, rows_share, found.rows_share, index_share, found.index_share, strict=True
            )
        ),
        "",
        "| assumed spread | least | quartile | median | quartile | most | mean |",
        "|---|---|---|---|---|---|---|",
        _spread("rows", pool.num_rows, ",.0f"),
        _spread("lookups per sample", pool.pooling_factor, ".2f"),
        _spread("Zipf exponent", pool.exponent, ".2f"),
    ]


def _spread(name: str, values: FloatArray, form: str) -> str:
    quartiles = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0])
    return f"| {name} | " + " | ".join(format(float(each), form) for each in [*quartiles, values.mean()]) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="print the best shape of a random search instead")
    if parser.parse_args().fit:
        print(*fit())
    else:
        print(write_result("task-pool", report(), hardware="any"))
