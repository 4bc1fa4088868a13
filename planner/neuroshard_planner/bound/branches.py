"""Bounds of plans branch by branch, which say what no convex function of the mean device does; the least counts.

- Reductions take less time per byte the more there is to send. Pieces of their times are straight, nearly: a plan is
  in one piece of each, and the line of that piece holds everywhere as a price.
- Widths are multiples of a step, and so are the columns of the device that has most. With a peak the time of the
  all-to-all is known, and no shard is wider than the peak.
- Devices hold whole shards (`device_bound`).
"""

from functools import partial
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective, CollectiveCurve

from neuroshard_planner.bound.devices import COLUMN_RATES, DeviceBounds
from neuroshard_planner.bound.prices import Choices, price_bound
from neuroshard_planner.bound.relaxed_cost import RelaxedCost, Straight
from neuroshard_planner.problem.units import BoolArray

MOST_CHOICES = 10_000  # that are bounded branch by branch; more are of large sets, and take long
MOST_ROUNDS = 6
STRAIGHT = 0.01  # share of a plan's cost by which a line may be below a reduction's time
MOST_PIECES = 64
MOST_PEAKS = 128  # further ones are bounded together
FINE = 64  # steps of columns from which on a mean is about as good as a peak
MOST_GAIN = 1.02  # by whole shards, where one is needed
POOLED = Collective.POOLED_EMBEDDINGS


class _Piece(NamedTuple):
    """Lines that the times of some collectives of a plan are not below."""

    ms: float
    """Without traffic."""
    rates: Straight


class Branches:
    """Bounds of plans in one piece of each reduction, and with one peak of columns."""

    def __init__(
        self,
        relaxed: RelaxedCost,
        choices: Choices,
        exchange: CollectiveCurve,
        *,
        num_devices: int,
        least_columns: float,
        least_peak: float,
        limit_ms: float,
    ) -> None:
        """Find the branches.

        Args:
            relaxed: the cost.
            choices: of every unit, under a limit of cost.
            exchange: the all-to-all of columns.
            num_devices: that may hold shards.
            least_columns: that some device of every plan has: the choices' spare time is left with them.
            least_peak: that some device of a plan of these choices has.
            limit_ms: of the cost of a plan.
        """
        self._relaxed, self._choices, self._exchange = relaxed, choices, exchange
        self._num_devices, self._least_columns = num_devices, least_columns
        self._step, self._peaks = 0, np.empty(0)
        columns = choices.columns[choices.columns > 0]
        if len(columns) and (columns == np.rint(columns)).all():
            self._step = int(np.gcd.reduce(columns.astype(np.int64)))
            if least_peak <= FINE * self._step:
                first = max(np.ceil(least_peak / self._step * (1 - 1e-6)), 1)
                self._peaks = self._step * (first + np.arange(MOST_PEAKS, dtype=np.float64))
        self._peaks_ms = exchange.total_ms(self._peaks)
        known = {Collective.INDICES, POOLED} if len(self._peaks) else {Collective.INDICES}
        used = [each for each in relaxed.collectives if each not in known]
        lines = [relaxed.lines(each, most_ms=limit_ms, tolerance_ms=STRAIGHT * limit_ms) for each in used]
        self._pieces = [
            _Piece(sum(ms for ms, _ in of_each), dict(zip(used, (rate for _, rate in of_each), strict=True)))
            for of_each in islice(product(*lines), MOST_PIECES + 1)
        ]

    def bound_ms(self, *, mean: FloatArray, known_ms: float, enough_ms: float, needed_ms: float) -> float:
        """Return a bound of all of them that is at least as high as a known one.

        Args:
            mean: a mean device whose prices are tried first.
            known_ms: the known bound.
            enough_ms: a bound as high as that is not raised further.
            needed_ms: none is sought further where that of a branch is below it.
        """
        if len(self._pieces) > MOST_PIECES or max(len(self._pieces), len(self._peaks)) == 1:
            return known_ms
        least_ms = enough_ms
        for piece in self._pieces:
            own_ms, own_mean = self._best(self._choices, piece.rates, mean, enough_ms=least_ms - piece.ms)
            own_ms += piece.ms
            if own_ms < least_ms and len(self._peaks):
                own_ms = max(own_ms, self._at_peaks(piece, own_mean, least_ms, needed_ms))
            least_ms = min(least_ms, own_ms)
            if least_ms < needed_ms:
                return known_ms
        return max(known_ms, least_ms)

    def _best(
        self, choices: Choices, rates: Straight, mean: FloatArray, *, enough_ms: float = np.inf
    ) -> tuple[float, FloatArray]:
        """Return a bound with lines in the place of some collectives, and the mean device whose prices say so."""
        tangent = partial(self._relaxed.tangent, straight=rates)
        return price_bound(tangent, choices, enough_ms=enough_ms, begin=mean, most_rounds=MOST_ROUNDS)

    def _at_peaks(self, piece: _Piece, mean: FloatArray, enough_ms: float, needed_ms: float) -> float:
        """Return a bound of plans in a piece, by the prices at a mean device, and at those that peaks lead to."""
        rows, columns = self._choices.rows, self._choices.rows[:, POOLED - len(Collective)]
        near = max(float(mean[POOLED - len(Collective)]), float(self._peaks[0]))
        column_ms = float(self._exchange.total_ms(np.array(near))) / near
        rates = column_ms * np.array(COLUMN_RATES)
        value_ms, slopes = self._relaxed.tangent(mean, {**piece.rates, POOLED: 0.0})
        by_rate = self._choices.least_of(weighted_sum(rows, slopes)[:, None] + columns[:, None] * rates)
        by_rate += piece.ms + value_ms - float(weighted_sum(slopes, mean))
        at_rates = by_rate - self._peaks[:, None] * rates
        found = at_rates.max(axis=1) + self._peaks_ms
        least_ms = min(enough_ms, float(self._peaks_ms[-1] + by_rate[0]))  # of all further peaks
        if min(least_ms, float(found.min())) * MOST_GAIN < needed_ms:
            return min(least_ms, float(found.min()))
        low = np.flatnonzero(found < least_ms)
        if len(low):
            found[low] = np.maximum(found[low], self._at(piece, low, mean, column_ms, least_ms))
        for place in np.argsort(found, kind="stable").tolist():
            if found[place] >= least_ms or least_ms < needed_ms:
                break
            own_ms = np.inf
            if (usable := self._choices.at(self._usable(self._peaks[[place]]))) is not None:
                straight = {**piece.rates, POOLED: float(rates[at_rates[place].argmax()])}
                _, own_mean = self._best(usable, straight, mean)
                (own_ms,) = self._at(piece, np.array([place]), own_mean, column_ms, least_ms).tolist()
            least_ms = min(least_ms, max(float(found[place]), own_ms))
        return least_ms

    def _at(
        self, piece: _Piece, places: IndexArray, mean: FloatArray, column_ms: float, enough_ms: float
    ) -> FloatArray:
        """Return [places] bounds of peaks by the prices at a mean device, infinite where no plan has one of them."""
        usable = self._choices.at(self._usable(self._peaks[places]))
        if usable is None:
            return np.full(len(places), np.inf)
        _, slopes = self._relaxed.tangent(mean, {**piece.rates, POOLED: column_ms})
        beyond_ms, beyond = self._relaxed.tangent_beyond_compute(mean, {**piece.rates, POOLED: 0.0})
        bounds = DeviceBounds(
            self._relaxed,
            usable,
            self._peaks[places],
            step=self._step,
            num_devices=self._num_devices,
            mean=mean[: -len(Collective)],
            chosen=usable.least(weighted_sum(usable.rows, slopes))[1],
            column_ms=column_ms,
        )
        fixed_ms = piece.ms + beyond_ms - float(weighted_sum(beyond, mean))
        peaks_ms = self._peaks_ms[places]
        return peaks_ms + bounds.at_peaks(fixed_ms, weighted_sum(usable.rows, beyond), enough_ms - peaks_ms)

    def _usable(self, peaks: FloatArray) -> BoolArray:
        """Return [n] whether a plan with one of these ascending peaks of columns may have shards of a choice."""
        least_ms, ms = self._exchange.total_ms(np.array([self._least_columns, peaks[0]])).tolist()
        usable: BoolArray = (self._choices.columns <= peaks[-1]) & (ms - least_ms <= self._choices.spare_ms)
        return usable
