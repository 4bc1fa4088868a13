"""Hits per row in one batch, sorted into the bins of a reuse histogram. Knows rates and counts, not tables."""

import math
from functools import lru_cache

import numpy as np
from neuroshard_api.documents.tables import REUSE_BINS

from neuroshard_costs.shards import FloatArray, IndexArray

BIN_EDGES: IndexArray = 2 ** np.arange(REUSE_BINS - 1, dtype=np.int64)
"""[16] largest number of hits of every bin but the last, which is open."""

_COUNTS_PER_BIN = 8
_EXACT_RATE_LIMIT = 512.0  # above it a Poisson count is normal to better than 1 % at every bin edge
_LOG_RATE_STEP = 0.05
_LOG_RATES = np.arange(math.log(1e-4), math.log(1e6), _LOG_RATE_STEP)


def _members(index: int) -> tuple[FloatArray, FloatArray]:
    """Return hit counts of a bin and their weights, uniform in the logarithm: all counts, or 8 of them.

    The open bin is read as one more octave.
    """
    high = 2**index
    low = high // 2 + 1
    if high - low < _COUNTS_PER_BIN:
        counts: FloatArray = np.arange(low, high + 1, dtype=np.float64)
        weights: FloatArray = 1.0 / counts
    else:
        counts = np.geomspace(low, high, 2 * _COUNTS_PER_BIN + 1)[1::2].round()
        weights = np.ones_like(counts)
    weights /= weights.sum()
    return counts, weights


_MEMBERS = tuple(_members(index) for index in range(REUSE_BINS))
MEAN_HITS: FloatArray = np.array([weights @ counts for counts, weights in _MEMBERS])
"""[17] mean hits of a row in each bin: 1, 2, 3.43, 6.3, then about 0.74 of the bin's upper edge.

The published traces (benchmarks/data/dlrm_datasets_locality.json) have 3.4, 6.2, 0.73 and 0.70 of the edge.
"""


def poisson_bins(rates: FloatArray, *, offset: int = 0) -> FloatArray:
    """Return [..., 17]: the chance that ``offset`` plus a Poisson count of this rate falls into each bin.

    What is missing to 1 is the chance of no hit at all. Bins are interpolated in the logarithm of the rate, and scaled
    so that with offset 0 the chance of a hit is exactly 1 - exp(-rate).
    """
    table = _poisson_table(offset)
    low, share = _grid_position(rates)
    share = share[..., None]
    bins: FloatArray = table[low] * (1 - share) + table[low + 1] * share
    return bins if offset else bins * -np.expm1(-rates)[..., None]


def mix_poisson_bins(rates: FloatArray, rows: FloatArray) -> FloatArray:
    """Return [n, 17]: expected rows in each bin when rows[n, g] rows have the rate rates[n, g]."""
    touched = rows * -np.expm1(-rates)
    low, share = _grid_position(rates)
    size = len(_LOG_RATES)
    cell = low + size * np.arange(len(rates))[:, None]
    by_rate = np.bincount(cell.ravel(), weights=(touched * (1 - share)).ravel(), minlength=size * len(rates))
    by_rate += np.bincount(cell.ravel() + 1, weights=(touched * share).ravel(), minlength=size * len(rates))
    return by_rate.reshape(len(rates), size) @ _poisson_table(0)


@lru_cache(maxsize=64)
def rescaled_bins(ratio: float) -> FloatArray:
    """Return [17, 17]: where a row of each bin goes when the batch becomes ``ratio`` times as large.

    A smaller batch keeps each hit with probability ``ratio`` (binomial thinning; what is missing to 1 is no longer
    touched). A larger one adds to k hits a Poisson count of mean k * (ratio - 1).
    """
    bins = np.zeros((REUSE_BINS, REUSE_BINS))
    for index, (counts, weights) in enumerate(_MEMBERS):
        for count, weight in zip(counts.astype(int), weights, strict=True):
            if ratio < 1:
                chances = _binomial_chances(int(count), ratio)
                none, at_most = chances[0], np.cumsum(chances)[np.minimum(BIN_EDGES, count)]
            else:
                none, at_most = 0.0, _poisson_cumulative(count * (ratio - 1), BIN_EDGES - count)
            bins[index] += weight * np.maximum(np.diff(at_most, prepend=none, append=1.0), 0.0)
    bins.flags.writeable = False
    return bins


@lru_cache(maxsize=256)
def divided_bins(factor: float) -> FloatArray:
    """Return [17, 17]: where a row of each bin goes when its hits are divided by a factor, rounded, and at least 1."""
    bins = np.zeros((REUSE_BINS, REUSE_BINS))
    for index, (counts, weights) in enumerate(_MEMBERS):
        hits = np.maximum(np.rint(counts / factor), 1.0)
        np.add.at(bins[index], np.searchsorted(BIN_EDGES, hits), weights)
    bins.flags.writeable = False
    return bins


def _binomial_chances(count: int, chance: float) -> FloatArray:
    """Return the chances of 0, 1, ..., ``count`` successes."""
    successes = np.arange(count + 1)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(successes[1:]))))
    log_ways = log_factorials[count] - log_factorials - log_factorials[::-1]
    chances: FloatArray = np.exp(log_ways + successes * math.log(chance) + successes[::-1] * math.log1p(-chance))
    return chances


def _grid_position(rates: FloatArray) -> tuple[IndexArray, FloatArray]:
    """Return the grid rate below each rate and how far the rate is towards the next; beyond the grid, its ends."""
    log_rates = np.log(np.maximum(rates, 1e-300))
    position = np.clip((log_rates - _LOG_RATES[0]) / _LOG_RATE_STEP, 0, len(_LOG_RATES) - 1.001)
    low = position.astype(np.int64)
    return low, position - low


@lru_cache(maxsize=2)
def _poisson_table(offset: int) -> FloatArray:
    """Return [rates, 17]: bins of offset + Poisson; with offset 0 given that there is a hit."""
    rows = []
    for rate in np.exp(_LOG_RATES):
        none = math.exp(-rate) if offset == 0 else 0.0
        cumulative = _poisson_cumulative(float(rate), BIN_EDGES - offset)
        rows.append(np.maximum(np.diff(cumulative, prepend=none, append=1.0), 0.0))
    table: FloatArray = np.array(rows)
    table /= table.sum(axis=1, keepdims=True)
    return table


def _poisson_cumulative(rate: float, counts: IndexArray) -> FloatArray:
    """Return the chance of at most these counts: summed for small rates, normal for large ones."""
    if rate <= 0:
        return (counts >= 0).astype(np.float64)
    if rate < _EXACT_RATE_LIMIT:
        highest = int(rate + 12 * math.sqrt(rate) + 20)
        terms = np.arange(1, highest + 1)
        chances = np.exp(np.concatenate(([0.0], np.cumsum(math.log(rate) - np.log(terms)))) - rate)
        cumulative = np.concatenate(([0.0], np.cumsum(chances)))
        at_most: FloatArray = cumulative[np.clip(counts, -1, highest) + 1]
        return np.minimum(at_most, 1.0)
    scaled = (counts + 0.5 - rate) / math.sqrt(2 * rate)
    return np.array([0.5 * (1 + math.erf(value)) for value in scaled])
