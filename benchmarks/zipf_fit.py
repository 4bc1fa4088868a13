"""Fits the default Zipf exponent to the aggregate reuse of published traces.

    python -m benchmarks.zipf_fit

The traces are known as sums over all tables only. A model of such a sum is 64 tables of equal rows and exponent whose
lookups are spread log-normally about the trace's mean. Exponent, rows and spread are searched on a grid; the error is
the absolute logarithm of the ratio of unique rows, plus the total variation distance of the shares of rows by hits,
plus that of the shares of lookups by hits of their row.
"""

import json
from itertools import product
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, NamedTuple

import numpy as np
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.reuse.shard_arrays import zipf_counts
from neuroshard_costs.shards import FloatArray

from benchmarks.results_file import write_result

DATA = Path(__file__).parent / "data" / "dlrm_datasets_locality.json"
NUM_TABLES = 64
EXPONENTS = np.arange(0.5, 1.51, 0.05)
LOG_ROWS = np.arange(4.5, 8.01, 0.25)
SPREADS = (0.0, 1.0, 2.0)


class Fit(NamedTuple):
    """The best grid point of one trace."""

    error: float
    exponent: float
    log_rows: float
    spread: float


def fit(trace: dict[str, Any], spreads: tuple[float, ...] = SPREADS) -> Fit:
    """Return the grid point of least error."""
    quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / NUM_TABLES) for index in range(NUM_TABLES)])
    rows_share, index_share = np.array(trace["rows_share"]), np.array(trace["index_share"])
    unique_rows = trace["unique_rows"] / trace["num_tables"]
    fits = []
    for spread, exponent, log_rows in product(spreads, EXPONENTS, LOG_ROWS):
        weights = np.exp(spread * quantiles)
        counts = zipf_counts(
            np.full(NUM_TABLES, np.round(10**log_rows)),
            lookups=trace["lookups"] / trace["num_tables"] * weights / weights.mean(),
            exponents=np.full(NUM_TABLES, exponent),
        ).mean(axis=0)
        error = abs(np.log(counts.sum() / unique_rows))
        error += _distance(counts, rows_share) + _distance(counts * MEAN_HITS, index_share)
        fits.append(Fit(float(error), float(exponent), float(log_rows), spread))
    return min(fits)


def _distance(counts: FloatArray, shares: FloatArray) -> float:
    return float(np.abs(counts / counts.sum() - shares).sum() / 2)


def report() -> list[str]:
    """Return the fits of all traces as a page in Markdown."""
    traces = json.loads(DATA.read_text(encoding="utf-8"))["files"]
    lines = [
        "# Zipf exponent of published traces",
        "",
        "The traces are those of benchmarks/data/dlrm_datasets_locality.json.",
        "",
        "| trace | spread of lookups | exponent | rows per table | error |",
        "|---|---|---|---|---|",
    ]
    best = []
    for name, trace in traces.items():
        fits = [fit(trace, (spread,)) for spread in SPREADS]
        best.append(min(fits))
        lines += [
            f"| {name} | {found.spread:g} | {found.exponent:.2f} | {10**found.log_rows:,.0f} | {found.error:.3f} |"
            for found in fits
        ]
    lines += ["", f"Median exponent of the best fit of each trace: {median(found.exponent for found in best):.2f}"]
    return lines


if __name__ == "__main__":
    print(write_result("zipf-fit", report(), hardware="any", packages=("numpy",)))
