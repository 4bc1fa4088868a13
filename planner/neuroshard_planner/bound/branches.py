"""Bounds of plans branch by branch, which say what no convex function of the mean device does; the least counts.

- Reductions take less time per byte the more there is to send. Pieces of their times are straight, nearly: a plan is
  in one piece of each, and the line of that piece holds everywhere as a price.
- Widths are multiples of a step, and so are the columns of the device that has most. With a peak the time of the
  all-to-all is known, and no shard is wider than the peak.
- Devices hold whole shards (`devices`).
"""

from functools import partial
from itertools import islice, product

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.step_cost import Collective

from neuroshard_planner.bound.choices import Choices
from neuroshard_planner.bound.devices import COLUMN_RATES, device_bound
from neuroshard_planner.bound.prices import price_bound
from neuroshard_planner.bound.relaxed_cost import RelaxedCost, Straight

MOST_ROUNDS = 6
STRAIGHT = 0.01  # share of a plan's cost by which a line may be below a reduction's time
MOST_PIECES = 64
MOST_PEAKS = 128  # further ones are bounded together
FINE = 64  # steps of columns from which on a mean is about as good as a peak
POOLED = Collective.POOLED_EMBEDDINGS
PLACE = POOLED - len(Collective)  # in a mean device


class Branches:
    """Bounds of plans in one piece of each reduction, and with one peak of columns."""

    def __init__(self, relaxed: RelaxedCost, choices: Choices, *, num_devices: int, limit_ms: float) -> None:
        """Find the branches.

        Args:
            relaxed: the cost.
            choices: of every unit, under a limit of cost.
            num_devices: that may hold shards.
            limit_ms: of the cost of a plan.
        """
        self._relaxed, self._choices, self._num_devices = relaxed, choices, num_devices
        self._step, self._peaks, self._peaks_ms = 0, np.empty(0), np.empty(0)
        columns = choices.columns[choices.columns > 0]
        if len(columns) and (columns == np.rint(columns)).all():
            self._step = int(np.gcd.reduce(columns.astype(np.int64)))
            first = max(np.ceil(relaxed.least_peaks[POOLED] / self._step * (1 - 1e-6)), 1)
            if first <= FINE:
                self._peaks = self._step * (first + np.arange(MOST_PEAKS, dtype=np.float64))
                self._peaks_ms = relaxed.curve(POOLED).total_ms(self._peaks)
        known = {Collective.INDICES, POOLED} if len(self._peaks) else {Collective.INDICES}
        used = [each for each in relaxed.collectives if each not in known]
        lines = [relaxed.lines(each, most_ms=limit_ms, tolerance_ms=STRAIGHT * limit_ms) for each in used]
        self._pieces: list[tuple[float, Straight]] = [
            (sum(ms for ms, _ in of_each), dict(zip(used, (rate for _, rate in of_each), strict=True)))
            for of_each in islice(product(*lines), MOST_PIECES + 1)
        ]
        """Lines below the times of collectives, of all together: milliseconds without traffic, and their rates."""

    def bound_ms(self, mean: FloatArray, known_ms: float, enough_ms: float) -> float:
        """Return a bound of all of them that is at least as high as a known one.

        Args:
            mean: a mean device whose prices are tried first.
            known_ms: the known bound.
            enough_ms: a bound as high as that is not raised further.
        """
        if len(self._pieces) > MOST_PIECES or max(len(self._pieces), len(self._peaks)) == 1:
            return known_ms
        least_ms = enough_ms
        for ms, rates in self._pieces:
            own_ms, own_mean = self._priced(self._choices, rates, mean, enough_ms=least_ms - ms)
            own_ms += ms
            if own_ms < least_ms and len(self._peaks):
                own_ms = max(own_ms, self._at_peaks(ms, rates, own_mean, least_ms))
            least_ms = min(least_ms, own_ms)
            if least_ms <= known_ms:
                return known_ms
        return least_ms

    def _priced(
        self, choices: Choices, rates: Straight, mean: FloatArray, *, enough_ms: float = np.inf
    ) -> tuple[float, FloatArray]:
        """Return a bound with lines in the place of some collectives, and the mean device whose prices say so."""
        tangent = partial(self._relaxed.tangent, straight=rates)
        return price_bound(tangent, choices, enough_ms=enough_ms, begin=mean, most_rounds=MOST_ROUNDS)

    def _at_peaks(self, ms: float, rates: Straight, mean: FloatArray, enough_ms: float) -> float:
        """Return a bound of plans in a piece, by the prices at a mean device, and at those that low peaks lead to."""
        near = max(float(mean[PLACE]), float(self._peaks[0]))
        of_columns = float(self._relaxed.curve(POOLED).total_ms(np.array(near))) / near * np.array(COLUMN_RATES)
        value_ms, slopes = self._relaxed.tangent(mean, {**rates, POOLED: 0.0})
        prices, columns = weighted_sum(self._choices.rows, slopes), self._choices.rows[:, PLACE]
        by_rate = np.array([self._choices.least(prices + rate * columns)[0] for rate in of_columns.tolist()])
        by_rate += ms + value_ms - float(weighted_sum(slopes, mean))
        at_rates = by_rate - self._peaks[:, None] * of_columns
        found = at_rates.max(axis=1) + self._peaks_ms
        least_ms = min(enough_ms, float(self._peaks_ms[-1] + by_rate[0]))  # of all further peaks
        for place in np.argsort(found, kind="stable").tolist():
            if found[place] >= least_ms:
                break
            straight = {**rates, POOLED: float(of_columns[at_rates[place].argmax()])}
            own_ms = (
                float(self._peaks_ms[place]) + ms + self._at_peak(int(self._peaks[place]), straight, mean, of_columns)
            )
            least_ms = min(least_ms, max(float(found[place]), own_ms))
        return least_ms

    def _at_peak(self, peak: int, rates: Straight, mean: FloatArray, of_columns: FloatArray) -> float:
        """Return a bound of plans with a peak, without the all-to-all of columns; infinite where no plan has it."""
        choices = self._choices.at(self._choices.columns <= peak)
        if choices is None:
            return np.inf
        _, mean = self._priced(choices, rates, mean)
        beyond_ms, beyond = self._relaxed.tangent_beyond_compute(mean, {**rates, POOLED: 0.0})
        fixed = np.append(beyond_ms - float(weighted_sum(beyond, mean)), weighted_sum(choices.rows, beyond))
        _, chosen = choices.least(weighted_sum(choices.rows, self._relaxed.tangent(mean, rates)[1]))
        return device_bound(
            self._relaxed,
            choices,
            peak,
            step=self._step,
            num_devices=self._num_devices,
            mean=mean[: -len(Collective)],
            chosen=chosen,
            fixed=fixed,
            of_columns=of_columns,
        )
