"""A lower bound on plans whose devices hold whole shards, above that of the mean device, which holds fractions.

Every shard is worth a part of its unit's price, and costs its device what it adds to the plan. All devices together
gain no more than each gaining as much as one can (Lagrange). No device has more columns than the peak, nor more shards
by columns than the device with most of them, so that few mixtures fit: a knapsack says what the best gains.

A pass takes as long as on the mean device, and as on these, next to what is on every device:

- The device with most shards has as many of the cheapest.
- A device of the dearest unit has a shard of it, and as many columns, or shards, as the others have no room for.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from neuroshard_costs.arithmetic import ordered_product, weighted_sum
from neuroshard_costs.shards import REPLICATED, ROWS, FloatArray, IndexArray
from numpy.typing import ArrayLike

from neuroshard_planner.bound.prices import Choices
from neuroshard_planner.bound.relaxed_cost import RelaxedCost

WEIGHTS = 0.0, 1.0, 0.5
"""Of the time of some device next to that of the mean one, in prices that are tried."""
COLUMN_RATES = 0.0, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 16.0
"""Prices of columns that are tried, over what they take in the all-to-all."""
SHARD_RATES = 0.0, 0.5, 8.0
"""Prices of shards that are tried, over what a unit takes on its device."""
RATES = np.array(list(product(COLUMN_RATES, SHARD_RATES)))
MORE_SHARDS = 6  # of the device with most than of the mean device; larger numbers are bounded together
MOST_TRIED = 3  # pairs of devices


class DeviceBounds:
    """Bounds of plans by the prices at one mean device.

    Milliseconds that are linear in the choices are one row: without any, by the shards and the columns of the device
    with most [counts * peaks], and then what each choice adds [n].
    """

    def __init__(
        self,
        relaxed: RelaxedCost,
        choices: Choices,
        peaks: FloatArray,
        *,
        step: int,
        num_devices: int,
        mean: FloatArray,
        chosen: IndexArray,
        column_ms: float,
    ) -> None:
        """Prepare the bounds.

        Args:
            relaxed: the cost of compute.
            choices: of all units; some are by columns.
            peaks: [peaks] columns of the device with most, ascending.
            step: of columns.
            num_devices: that may hold shards.
            mean: [q] demands of the mean device whose prices are tried.
            chosen: [units] choices that are cheap there; other devices are priced next to those on every device.
            column_ms: that a column of the mean device takes in the all-to-all.
        """
        self._relaxed, self._choices, self._num_devices, self._chosen = relaxed, choices, num_devices, chosen
        self._demands, self._column_ms = choices.rows[:, : len(mean)], column_ms * step
        self._is_everywhere = np.isin(choices.family, (ROWS, REPLICATED))
        self._columns, self._peaks = (np.rint(each / step).astype(np.int64) for each in (choices.columns, peaks))
        self._by_columns = np.flatnonzero(self._columns)
        self._order = np.argsort(self._columns[self._by_columns], kind="stable")
        sizes = self._columns[self._by_columns[self._order]]
        self._first = np.flatnonzero(np.diff(sizes, prepend=-1))
        self._sizes: list[int] = sizes[self._first].tolist()
        self._most_fitting = int(self._peaks[-1]) // self._sizes[0]
        mean_count = int(choices.share[chosen[self._columns[chosen] > 0]].sum())
        self._counts = np.arange(1, min(mean_count + 1 + MORE_SHARDS, self._most_fitting) + 1)
        """Shards of the device with most; the last is for all higher numbers, too."""
        times, self._slopes = relaxed.tangent_of_passes(mean)
        constant, prices = times - weighted_sum(self._slopes, mean), ordered_product(self._demands, self._slopes.T)
        self._of_mean = [self._row(constant[each], prices[:, each]) for each in (0, 1)]
        self._of_others = [np.array(list(self._others(each))) for each in (0, 1)]

    def at_peaks(self, fixed_ms: float, prices: FloatArray, enough_ms: FloatArray) -> FloatArray:
        """Return [peaks] milliseconds that no choices cost less than, the all-to-all of columns left out.

        Args:
            fixed_ms: of all but compute, without any choice.
            prices: [n] what choices add to that.
            enough_ms: [peaks] bounds as high as that are not raised further.
        """
        fixed, enough = self._row(fixed_ms, prices), np.tile(enough_ms, len(self._counts))
        best = self._least(fixed + self._of_mean[0] + self._of_mean[1])
        tried = set[tuple[int, ...]]()
        while len(tried) < MOST_TRIED:
            place = int((best - enough).argmin())
            values = [self._values(rows, place) for rows in self._of_others]
            highest = tuple(int(each.argmax()) for each in values)
            if best[place] >= enough[place] or highest in tried:
                break
            tried.add(highest)
            others = [rows[row] for rows, row in zip(self._of_others, highest, strict=True)]
            means = [float(self._values(row[None], place)[0]) for row in self._of_mean]
            weights = [WEIGHTS if each.max() > mean else WEIGHTS[:1] for each, mean in zip(values, means, strict=True)]
            for pair in list(product(*weights))[1:]:
                passes = zip(self._of_mean, others, pair, strict=True)
                best = np.maximum(best, self._least(sum((m + w * (o - m) for m, o, w in passes), fixed)))
                if best[place] >= enough[place]:
                    break
        least: FloatArray = best.reshape(len(self._counts), -1).min(axis=0)
        return least

    def _row(self, ms: ArrayLike, prices: FloatArray) -> FloatArray:
        shape = len(self._counts), len(self._peaks)
        return np.concatenate((np.broadcast_to(ms, shape).ravel(), prices))

    def _values(self, rows: FloatArray, place: int) -> FloatArray:
        """Return [m] milliseconds of the chosen by rows [m], for one number of shards and one peak."""
        values: FloatArray = rows[:, place] + rows[:, self._chosen - len(self._demands)].sum(axis=1)
        return values

    def _others(self, level: int) -> Iterator[FloatArray]:
        """Yield the times of a pass on some devices of a plan, one row for each (see the module)."""
        choices, by_columns, counts, num_others = self._choices, self._by_columns, self._counts, self._num_devices - 1
        everywhere = self._demands[self._chosen[self._is_everywhere[self._chosen]]].sum(axis=0)
        alone = weighted_sum(self._demands, self._slopes[level]) / choices.share

        row = int(by_columns[alone[by_columns].argmin()])
        typical = counts[max(len(counts) - MORE_SHARDS - 1, 0)] * self._demands[row] / choices.share[row]
        ms, prices, own = self._tangent(level, everywhere + typical)
        yield self._row(ms + counts[:, None] * float(own[by_columns].min()), prices)

        dearest = choices.starts[np.minimum.reduceat(alone, choices.starts).argmax()]
        of_dearest = np.flatnonzero(choices.unit == choices.unit[dearest])
        row = int(of_dearest[alone[of_dearest].argmin()])
        added = 0.0 if self._is_everywhere[row] else self._demands[row] / choices.share[row]
        ms, prices, own = self._tangent(level, everywhere + added)
        prices[of_dearest] = own[of_dearest]
        yield self._row(ms, prices)
        most = np.append(counts[:-1], self._most_fitting)[:, None]
        for size, room in ((self._columns, self._peaks), (np.sign(self._columns), most)):
            rate = float((own[by_columns] / size[by_columns]).min())
            further = rate * size * choices.share * self._num_devices
            further[of_dearest] -= rate * size[of_dearest]
            yield self._row(ms - rate * num_others * room, prices + further)

    def _tangent(self, level: int, sums: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return a pass without shards, prices [n] of those on every device, and of each on its own device."""
        times, slopes = self._relaxed.tangent_of_passes(sums)
        own = weighted_sum(self._demands, slopes[level]) / self._choices.share
        ms = float(times[level] - weighted_sum(slopes[level], sums))
        return ms, np.where(self._is_everywhere, own, 0.0), own

    def _least(self, cost: FloatArray) -> FloatArray:
        """Return [counts * peaks] the least of choices with no more shards and columns on any device, by a row."""
        choices, by_columns = self._choices, self._by_columns
        ms, prices = np.split(cost, [len(cost) - len(self._demands)])
        unit_ms = float(np.minimum.reduceat(prices, choices.starts).sum()) / len(choices.starts)
        rates = RATES * np.array([self._column_ms, self._num_devices * unit_ms])
        share, own = choices.share[by_columns, None], prices[by_columns, None]
        priced = np.full((len(prices), len(rates)), np.inf)
        priced[by_columns] = own + share * (self._columns[by_columns, None] * rates[:, 0] + rates[:, 1])
        worth = np.minimum.reduceat(priced, choices.starts)
        counts = np.diff(choices.starts, append=len(prices))
        gains = (np.repeat(worth, counts, axis=0)[by_columns] - own) / share
        otherwise = prices.copy()
        otherwise[by_columns] = np.inf
        least = np.minimum(worth, np.minimum.reduceat(otherwise, choices.starts)[:, None]).sum(axis=0)
        gained = self._most_gained(np.maximum.reduceat(gains[self._order], self._first, axis=0))
        found: FloatArray = ms + (least - gained[:, self._peaks]).max(axis=2).ravel()
        return found

    def _most_gained(self, gains: FloatArray) -> FloatArray:
        """Return [counts, columns, k] what a device gains at most, by the gains [sizes, k] of shards.

        It has up to as many columns, and up to 1, 2, 3, and so on shards, in the last row any number.
        """
        top = int(self._peaks[-1])
        useful = [(size, own) for size, own in zip(self._sizes, gains, strict=True) if size <= top and own.max() > 0]
        found = np.zeros((len(self._counts) + 1, top + 1, gains.shape[1]))
        for row in range(1, len(self._counts)):
            found[row] = found[row - 1]
            for size, own in useful:
                np.maximum(found[row, size:], found[row - 1, : top + 1 - size] + own, out=found[row, size:])
        last = found[-1]
        for columns in range(1, top + 1):
            last[columns] = last[columns - 1]
            for size, own in useful:
                if size <= columns:
                    np.maximum(last[columns], last[columns - size] + own, out=last[columns])
        return found[1:]
