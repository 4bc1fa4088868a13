"""A lower bound on plans whose devices hold whole shards, above that of the mean device, which holds fractions.

Every unit is worth its least price, and a shard gains what its unit's price is below that. All devices together gain no
more than each gaining as much as one can (Lagrange). No device has more columns than the peak, so that few mixtures
fit: a knapsack says what the best gains.

A pass takes as long as on the mean device, and as on these, next to what is on every device:

- The device with most columns has as many as the peak.
- A device of the dearest unit has a shard of it, and as many columns as the others have no room for.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import REPLICATED, ROWS, FloatArray, IndexArray

from neuroshard_planner.bound.choices import Choices
from neuroshard_planner.bound.relaxed_cost import RelaxedCost

COLUMN_RATES = 0.0, 1 / 4, 1 / 2, 1.0, 4.0
"""Prices of columns that are tried, over what they take in the all-to-all."""


def device_bound(
    relaxed: RelaxedCost,
    choices: Choices,
    peak: int,
    *,
    step: int,
    num_devices: int,
    mean: FloatArray,
    chosen: IndexArray,
    fixed: FloatArray,
    of_columns: FloatArray,
) -> float:
    """Return milliseconds that no choices cost less than, by the prices at one mean device.

    Milliseconds that are linear in the choices are one row: without any, and then what each choice adds [n].

    Args:
        relaxed: the cost of compute.
        choices: of all units; some are by columns.
        peak: columns of the device with most.
        step: of columns.
        num_devices: that may hold shards.
        mean: [q] demands of the mean device.
        chosen: [units] choices that are cheap there; the device of the dearest unit is priced next to those on all.
        fixed: [1 + n] all but compute.
        of_columns: [r] prices of columns that are tried.
    """
    passes = [
        list(_passes(relaxed, choices, level, mean, chosen, peak=peak, num_devices=num_devices)) for level in (0, 1)
    ]
    costs = np.stack([fixed + sum(each) for each in product(*passes)], axis=-1)
    prices, columns, share = costs[1:, :, None], choices.columns, choices.share
    of_shards = (share * columns)[:, None, None] * of_columns
    worth = np.minimum.reduceat(prices + of_shards, choices.starts, axis=0)
    rows = np.flatnonzero(columns)
    rows = rows[np.argsort(columns[rows], kind="stable")]
    sizes = np.rint(columns[rows] / step).astype(np.int64)
    first = np.flatnonzero(np.diff(sizes, prepend=0))
    gains = (worth[choices.position[rows]] - prices[rows]) / share[rows, None, None]
    gained = _most_gained(np.maximum.reduceat(gains, first, axis=0), sizes[first], peak // step)
    return float((costs[0][:, None] + worth.sum(axis=0) - gained).max())


def _passes(
    relaxed: RelaxedCost,
    choices: Choices,
    level: int,
    mean: FloatArray,
    chosen: IndexArray,
    *,
    peak: int,
    num_devices: int,
) -> Iterator[FloatArray]:
    """Yield rows that a pass takes no less than: those of the mean device and of some devices of a plan."""
    demands, share, columns = choices.rows[:, : len(mean)], choices.share, choices.columns
    times, slopes = relaxed.tangent_of_passes(mean)
    added = weighted_sum(demands, slopes[level])
    yield np.append(times[level] - weighted_sum(slopes[level], mean), added)

    is_cut = columns > 0
    is_everywhere = np.isin(choices.family, (ROWS, REPLICATED))
    everywhere = demands[chosen[is_everywhere[chosen]]].sum(axis=0)
    alone = added / share

    def on_device(row: int, count: float) -> tuple[FloatArray, FloatArray]:
        """Return the row of what is on every device, and [n] the time of shards, next to this many of a choice."""
        sums = everywhere + (0.0 if is_everywhere[row] else count * demands[row] / share[row])
        times, slopes = relaxed.tangent_of_passes(sums)
        own = weighted_sum(demands, slopes[level]) / share
        return np.append(times[level] - weighted_sum(slopes[level], sums), np.where(is_everywhere, own, 0.0)), own

    row = int(np.where(is_cut, alone / np.maximum(columns, 1), np.inf).argmin())
    device, own = on_device(row, peak / columns[row])
    device[0] += peak * float((own[is_cut] / columns[is_cut]).min())
    yield device

    of_dearest = choices.position == np.minimum.reduceat(alone, choices.starts).argmax()
    device, own = on_device(int(np.where(of_dearest, alone, np.inf).argmin()), 1.0)
    device[1:][of_dearest] = own[of_dearest]
    yield device
    rate = float((own[is_cut] / columns[is_cut]).min())  # of a column at least
    further = columns * (num_devices * share - np.where(of_dearest, 1.0, 0.0))
    yield device + rate * np.append(-(num_devices - 1) * peak, further)


def _most_gained(gains: FloatArray, sizes: IndexArray, most: int) -> FloatArray:
    """Return [...] what up to ``most`` columns gain at most, by the gains [s, ...] of shards of ascending sizes."""
    found = np.zeros((most + 1, *gains.shape[1:]))
    for columns in range(1, most + 1):
        count = int(np.searchsorted(sizes, columns, side="right"))
        with_shard = found[columns - sizes[:count]] + gains[:count]
        found[columns] = np.maximum(found[columns - 1], with_shard.max(axis=0, initial=0.0))
    gained: FloatArray = found[most]
    return gained
