"""Hits per row in one batch, sorted into the bins of a reuse histogram. Knows rates and counts, not tables."""

import math
from functools import lru_cache

import numpy as np
from neuroshard_api.documents.tables import REUSE_BINS

from neuroshard_costs.arithmetic import (
    exp,
    expm1,
    geometric,
    log,
    log1p,
    normal_cumulative,
    ordered_product,
    weighted_sum,
)
from neuroshard_costs.shards import FloatArray, IndexArray

BIN_EDGES: IndexArray = 2 ** np.arange(REUSE_BINS - 1, dtype=np.int64)
"""[16] largest number of hits of every bin but the last, which is open."""

_COUNTS_PER_BIN = 8
_EXACT_RATE_LIMIT = 512.0  # above it a Poisson count is normal to better than 1 % at every bin edge
_LEAST_LOG_CHANCE = -690.0
_LOG_RATE_STEP = 0.05
_FIRST_LOG_RATE = float(log(1e-4))
_NUM_RATES = 461  # up to a million
_RATES: FloatArray = exp(_FIRST_LOG_RATE + _LOG_RATE_STEP * np.arange(_NUM_RATES))


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
        counts = geometric(low, high, 2 * _COUNTS_PER_BIN + 1)[1::2].round()
        weights = np.ones_like(counts)
    weights /= weights.sum()
    return counts, weights


_MEMBERS = tuple(_members(index) for index in range(REUSE_BINS))
MEAN_HITS: FloatArray = np.array([weighted_sum(counts, weights) for counts, weights in _MEMBERS])
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
    return bins if offset else bins * -expm1(-rates)[..., None]


def mix_poisson_bins(rates: FloatArray, rows: FloatArray) -> FloatArray:
    """Return [n, 17]: expected rows in each bin when rows[n, g] rows have the rate rates[n, g]."""
    touched = rows * -expm1(-rates)
    low, share = _grid_position(rates)
    size = _NUM_RATES
    cell = low + size * np.arange(len(rates))[:, None]
    by_rate: FloatArray = np.zeros(size * len(rates))
    for cells, weights in ((cell, touched * (1 - share)), (cell + 1, touched * share)):
        by_rate += np.bincount(cells.ravel(), weights=weights.ravel(), minlength=len(by_rate))
    return ordered_product(by_rate.reshape(len(rates), size), _poisson_table(0))


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
                none, at_most = 0.0, _poisson_cumulative(float(count * (ratio - 1)), BIN_EDGES - count)
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
    log_factorials = _log_factorials()[: count + 1]
    log_ways = log_factorials[count] - log_factorials - log_factorials[::-1]
    logs = log_ways + successes * log(chance) + successes[::-1] * log1p(-chance)
    chances: FloatArray = np.where(logs > _LEAST_LOG_CHANCE, exp(np.maximum(logs, _LEAST_LOG_CHANCE)), 0.0)
    return chances


def _grid_position(rates: FloatArray) -> tuple[IndexArray, FloatArray]:
    """Return the grid rate below each rate and how far the rate is towards the next; beyond the grid, its ends."""
    log_rates = log(np.maximum(rates, 1e-300))
    position = np.clip((log_rates - _FIRST_LOG_RATE) / _LOG_RATE_STEP, 0, _NUM_RATES - 1.001)
    low = position.astype(np.int64)
    return low, position - low


@lru_cache(maxsize=1)
def _log_factorials() -> FloatArray:
    """Return the logarithms of the factorials of 0 to the most hits of a bin's members."""
    return np.concatenate(([0.0], np.cumsum(log(np.arange(1, int(BIN_EDGES[-1]) * 2 + 1)))))


@lru_cache(maxsize=2)
def _poisson_table(offset: int) -> FloatArray:
    """Return [rates, 17]: bins of offset + Poisson; with offset 0 given that there is a hit."""
    is_small = _RATES < _EXACT_RATE_LIMIT
    none = np.where(is_small, exp(-np.minimum(_RATES, _EXACT_RATE_LIMIT)), 0.0)
    counts = BIN_EDGES - offset
    at_most = np.concatenate(
        (
            [_summed_cumulative(*each, counts) for each in zip(_RATES[is_small], none[is_small], strict=True)],
            _normal_cumulative(_RATES[~is_small, None], counts),
        )
    )
    prepended = none[:, None] if offset == 0 else np.zeros((_NUM_RATES, 1))
    table: FloatArray = np.maximum(np.diff(at_most, axis=1, prepend=prepended, append=1.0), 0.0)
    table /= table.sum(axis=1, keepdims=True)
    return table


def _poisson_cumulative(rate: float, counts: IndexArray) -> FloatArray:
    """Return the chance of at most these counts: summed for small rates, normal for large ones."""
    if rate < _EXACT_RATE_LIMIT:
        return _summed_cumulative(rate, float(exp(-rate)), counts)
    return _normal_cumulative(rate, counts)


def _summed_cumulative(rate: float, none: float, counts: IndexArray) -> FloatArray:
    """Return the chance of at most these counts at a rate; ``none`` is that of 0."""
    highest = int(rate + 12 * math.sqrt(rate) + 20)
    chances = none * np.concatenate(([1.0], np.cumprod(rate / np.arange(1, highest + 1))))
    cumulative = np.concatenate(([0.0], np.cumsum(chances)))
    at_most: FloatArray = cumulative[np.clip(counts, -1, highest) + 1]
    return np.minimum(at_most, 1.0)


def _normal_cumulative(rates: FloatArray | float, counts: IndexArray) -> FloatArray:
    """Return [...] the chance of at most these counts at large rates, which broadcast."""
    return normal_cumulative((counts + 0.5 - rates) / np.sqrt(rates))
