"""A lower bound by prices on the cost of choices of a family and a width for each unit.

The slopes of a convex cost at any mean device z are prices: a choice with mean device x costs at least
cost(z) + slopes (x - z), which is least where every unit takes its cheapest shards by price. Steps from z towards that
choice raise the bound (Frank-Wolfe).

Two things no convex function of the mean device says, so that plans are bounded branch by branch, and the least counts:

- Widths are multiples of a step, and so are the columns of the device that has most. With a peak the time of the
  all-to-all is known, no shard is wider than the peak, and the mean device has no more columns; a price for these
  columns says what that costs.
- Reductions take less time per byte the more there is to send. Pieces of their times are straight, nearly: a plan is
  in one piece of each, and the line of that piece holds everywhere as a price.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import NamedTuple, Protocol

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective, CollectiveCurve

from neuroshard_planner.problem.relaxed_cost import RelaxedCost
from neuroshard_planner.problem.units import BoolArray

MOST_ROUNDS = 24
MOST_BRANCH_ROUNDS = 6
MOST_PRICED = 3
LINE_STEPS = 7  # halvings of a step
CLOSE_ENOUGH = 0.002  # share by which the bound may be below the cost of the best mixture
STRAIGHT = 0.01  # share of a plan's cost by which a line may be below a reduction's time
MOST_PEAKS = 64  # further ones are bounded together
FINE = 32  # steps of columns from which on a mean is about as good as a peak
MOST_ROWS = 10_000  # choices that are bounded branch by branch; more are of large sets, and take long
MOST_PIECES = 64
RATES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Prices of columns that are tried, over what a column costs in the all-to-all."""
FLOORS = (1.0, 0.5, 0.0)
"""Shares of the dearest shard's time, next to the mean device's, in prices that are tried."""
POOLED = Collective.POOLED_EMBEDDINGS


class Convex(Protocol):
    """A convex function of a mean device."""

    def tangent(self, mean: FloatArray) -> tuple[float, FloatArray]:
        """Return milliseconds at a mean device and the slopes there; the function is nowhere below."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What the units of a problem may be, unit by unit."""

    rows: FloatArray
    """[n, q + collectives] what a choice adds to the mean device."""
    unit: IndexArray
    """[n] ascending."""
    family: IndexArray
    """[n]"""

    @cached_property
    def _starts(self) -> IndexArray:
        return np.flatnonzero(np.diff(self.unit, prepend=-1))

    @cached_property
    def _counts(self) -> IndexArray:
        return np.diff(self._starts, append=len(self.unit))

    @cached_property
    def _of_family(self) -> list[tuple[IndexArray, IndexArray]]:
        """By family: its rows, and the position of the unit of each."""
        position = np.repeat(np.arange(len(self._starts)), self._counts)
        rows = [np.flatnonzero(self.family == family) for family in sorted(set(self.family.tolist()))]
        return [(own, position[own]) for own in rows]

    @property
    def middle(self) -> FloatArray:
        """The mean device where every unit is in all of its choices alike."""
        middle: FloatArray = (self.rows / np.repeat(self._counts, self._counts)[:, None]).sum(axis=0)
        return middle

    def at(self, usable: BoolArray) -> "Choices | None":
        """Return the choices for which ``usable`` [n] is true. None: some unit or family has none."""
        if usable.all():
            return self
        if np.add.reduceat(usable, self._starts, dtype=np.int64).min() == 0:
            return None
        if any(not usable[own].any() for own, _ in self._of_family):
            return None
        return Choices(self.rows[usable], self.unit[usable], self.family[usable])

    def least(self, prices: FloatArray) -> tuple[float, IndexArray]:
        """Return the least price of one choice [units] for each unit, by prices [n], if all families are in use.

        A family that no unit has by price takes the unit that loses least; several may take one, which costs no more.
        """
        chosen = first_least(prices, self._starts)
        least = prices[chosen]
        total = float(least.sum())
        if len(self._of_family) > 1:
            for own, of_unit in self._of_family:
                lost = prices[own] - least[of_unit]
                row = int(lost.argmin())
                if lost[row] > 0:
                    total += float(lost[row])
                    chosen[of_unit[row]] = own[row]
        return total, chosen

    def least_of(self, prices: FloatArray) -> FloatArray:
        """Return [k] the same totals for prices [n, k]."""
        least = np.minimum.reduceat(prices, self._starts, axis=0)
        total: FloatArray = least.sum(axis=0)
        if len(self._of_family) > 1:
            for own, of_unit in self._of_family:
                total += (prices[own] - least[of_unit]).min(axis=0)
        return total


def price_bound(
    cost: Convex,
    choices: Choices,
    *,
    enough_ms: float = np.inf,
    needed_ms: float = 0.0,
    begin: FloatArray | None = None,
    most_rounds: int = MOST_ROUNDS,
) -> tuple[float, FloatArray]:
    """Return milliseconds that no choice of one row for each unit costs less than, if all families are in use.

    The mean device whose prices say so is the second.

    Args:
        cost: of a mean device.
        choices: of every unit.
        enough_ms: a bound as high as that is not raised further.
        needed_ms: no bound is sought further where some cost is less.
        begin: the mean device of the first prices; if unset: all choices alike.
        most_rounds: prices that are tried.
    """
    rows, mean = choices.rows, choices.middle if begin is None else begin
    best_ms, best = 0.0, mean
    for _ in range(most_rounds):
        value_ms, slopes = cost.tangent(mean)
        least, chosen = choices.least(weighted_sum(rows, slopes))
        bound_ms = value_ms + least - float(weighted_sum(slopes, mean))
        if bound_ms > best_ms:
            best_ms, best = bound_ms, mean
        if best_ms >= min(enough_ms, value_ms * (1 - CLOSE_ENOUGH)) or value_ms < needed_ms:
            break
        mean = _along(cost, mean, rows[chosen].sum(axis=0))
    return best_ms, best


class Shards(NamedTuple):
    """The shards that choices consist of, under a limit of cost."""

    columns: FloatArray
    """[n] in the all-to-all, of a shard by columns; 0 of others."""
    spare_ms: FloatArray
    """[n] what is left of the limit beyond the cost of a shard alone, in a plan with the least traffic."""
    exchange: CollectiveCurve
    """The all-to-all."""
    least_columns: float
    """That some device of every plan has at least: with them `spare_ms` is left."""
    least_peak: float
    """The same of plans of these families."""
    limit_ms: float
    """Of the cost of a plan."""

    @property
    def step(self) -> int:
        """What all columns are multiples of; 0: nothing."""
        columns = self.columns[self.columns > 0]
        if not len(columns) or (columns != np.rint(columns)).any():
            return 0
        return int(np.gcd.reduce(columns.astype(np.int64)))

    def peaks(self) -> FloatArray:
        """Return [p] ascending peaks of columns that a plan may have; empty where their steps say nothing."""
        step = self.step
        if not step or self.least_peak > FINE * step:
            return np.empty(0)
        first = max(np.ceil(self.least_peak / step * (1 - 1e-6)), 1)
        peaks: FloatArray = step * (first + np.arange(MOST_PEAKS, dtype=np.float64))
        return peaks

    def usable(self, peak: float) -> BoolArray:
        """Return [n] whether a plan with this peak of columns may have a shard."""
        least_ms, ms = self.exchange.total_ms(np.array([self.least_columns, peak])).tolist()
        usable: BoolArray = (self.columns <= peak) & (ms - least_ms <= self.spare_ms)
        return usable


class _Piece(NamedTuple):
    """Lines that the times of all collectives of a plan are not below, but that of indices."""

    ms: float
    """Without traffic."""
    rates: FloatArray
    """[collectives] milliseconds per unit of traffic."""


@dataclass(frozen=True, slots=True)
class _OfPiece:
    """The cost of a mean device, with lines in the place of collectives."""

    relaxed: RelaxedCost
    rates: FloatArray
    """[collectives]"""
    floor: float

    def tangent(self, mean: FloatArray) -> tuple[float, FloatArray]:
        """Return milliseconds and slopes."""
        total, slopes = self.relaxed.tangent_of_compute(mean, floor=self.floor)
        slopes[-len(Collective) :] += self.rates
        return total + float(weighted_sum(self.rates, mean[-len(Collective) :])), slopes


class Branches:
    """Bounds of plans in one piece of each reduction, and with one peak of columns."""

    def __init__(self, relaxed: RelaxedCost, choices: Choices, shards: Shards, *, about_ms: float) -> None:
        """``about_ms`` is of the order of the bound; lines are below the times of reductions by a share of it."""
        self._relaxed, self._choices, self._shards = relaxed, choices, shards
        self._peaks = shards.peaks() if POOLED in relaxed.collectives else np.empty(0)
        used = [each for each in relaxed.collectives if each is not Collective.INDICES]
        used = [each for each in used if each is not POOLED or not len(self._peaks)]
        lines = [relaxed.lines(each, most_ms=shards.limit_ms, tolerance_ms=STRAIGHT * about_ms) for each in used]
        self._pieces = list(islice(_pieces(used, lines), MOST_PIECES + 1))
        self._peaks_ms = shards.exchange.total_ms(self._peaks)
        self._rates = np.zeros(1)
        """Prices of columns that are tried."""

    @property
    def are_of_use(self) -> bool:
        """Whether there are several, and few enough."""
        return max(len(self._pieces), len(self._peaks)) > 1 and len(self._pieces) <= MOST_PIECES

    def bound_ms(self, *, mean: FloatArray, known_ms: float, enough_ms: float) -> float:
        """Return a bound of all of them that is at least as high as a known one.

        Args:
            mean: a mean device whose prices are tried first.
            known_ms: the known bound.
            enough_ms: a bound as high as that is not raised further, and none is sought where a branch is below it.
        """
        needed_ms = enough_ms if np.isfinite(enough_ms) else known_ms
        if len(self._peaks):
            near = np.array(max(float(mean[POOLED - len(Collective)]), float(self._peaks[0])))
            self._rates = np.array(RATES) * float(self._shards.exchange.total_ms(near) / near)
        estimates, least_ms = self._estimates(mean)
        for branch in np.argsort(estimates, axis=None, kind="stable").tolist():
            row, place = divmod(branch, len(self._pieces))
            bound_ms = float(estimates[row, place])
            limit_ms = min(least_ms, enough_ms)
            if bound_ms < limit_ms:
                bound_ms = max(bound_ms, self._refined(row, place, mean, enough_ms=limit_ms, needed_ms=needed_ms))
            least_ms = min(least_ms, bound_ms)
            if estimates[row, place] >= limit_ms or least_ms < needed_ms:
                break
        return max(known_ms, least_ms) if least_ms >= needed_ms else known_ms

    def _estimates(self, mean: FloatArray) -> tuple[FloatArray, float]:
        """Return bounds [peaks, pieces] by the prices at a mean device, and that of all higher peaks."""
        by_floor = self._by_floor(self._choices, mean)
        by_rate = np.stack([self._by_rate(self._choices, piece, by_floor)[0] for piece in self._pieces], axis=1)
        if not len(self._peaks):
            return by_rate, np.inf
        columns_ms = self._rates[:, None] * self._peaks
        found = (by_rate[:, None] - columns_ms[:, :, None]).max(axis=0) + self._peaks_ms[:, None]
        return found, float(self._peaks_ms[-1] + by_rate[0].min())

    def _refined(self, row: int, place: int, mean: FloatArray, *, enough_ms: float, needed_ms: float) -> float:
        """Return a bound of one branch, infinite where no plan is in it.

        It is not raised further where it is enough, or cannot be as high as is needed.
        """
        piece, own, peak, fixed_ms = self._pieces[place], self._choices, 0.0, 0.0
        if len(self._peaks):
            peak, fixed_ms = float(self._peaks[row]), float(self._peaks_ms[row])
            usable = self._choices.at(self._shards.usable(peak))
            if usable is None:
                return np.inf
            own = usable
        best_ms, begin = 0.0, None
        for _ in range(MOST_PRICED):
            before_ms = best_ms
            by_rate, floors = self._by_rate(own, piece, self._by_floor(own, mean))
            bounds = by_rate - self._rates * peak + fixed_ms
            chosen = int(bounds.argmax())
            best_ms = max(best_ms, float(bounds[chosen]))
            if best_ms >= enough_ms:
                break
            rates = piece.rates.copy()
            rates[POOLED] += self._rates[chosen]
            added_ms = piece.ms + fixed_ms - float(self._rates[chosen]) * peak
            found_ms, mean = price_bound(
                _OfPiece(self._relaxed, rates, float(floors[chosen])),
                own,
                enough_ms=enough_ms - added_ms,
                needed_ms=needed_ms - added_ms,
                begin=begin,
                most_rounds=MOST_BRANCH_ROUNDS,
            )
            begin, best_ms = mean, max(best_ms, found_ms + added_ms)
            if best_ms >= enough_ms or best_ms <= before_ms * (1 + CLOSE_ENOUGH):
                break
        return best_ms

    def _by_floor(self, choices: Choices, mean: FloatArray) -> list[tuple[float, FloatArray]]:
        """Return for each floor a bound without any choice by the prices at a mean device, and the prices [n]."""
        found: dict[float, tuple[float, FloatArray]] = {}
        for floor in FLOORS:
            value_ms, slopes = self._relaxed.tangent_of_compute(mean, floor=floor)
            if value_ms in found:
                break  # the dearest shard alone takes no longer than the mean device
            found[value_ms] = value_ms - float(weighted_sum(slopes, mean)), weighted_sum(choices.rows, slopes)
        return list(found.values())

    def _by_rate(
        self, choices: Choices, piece: _Piece, by_floor: Sequence[tuple[float, FloatArray]]
    ) -> tuple[FloatArray, FloatArray]:
        """Return bounds without a peak's all-to-all, and their floors, each [rates]; see `_by_floor`."""
        traffic = choices.rows[:, -len(Collective) :]
        linear = weighted_sum(traffic, piece.rates)
        columns = traffic[:, POOLED, None] * self._rates
        bounds = np.stack(
            [ms + piece.ms + choices.least_of((prices + linear)[:, None] + columns) for ms, prices in by_floor]
        )
        return bounds.max(axis=0), np.array(FLOORS)[bounds.argmax(axis=0)]


def _pieces(collectives: Sequence[Collective], lines: Sequence[Sequence[tuple[float, float]]]) -> Iterator[_Piece]:
    """Yield all choices of one line of each collective."""
    for of_each in product(*lines):
        rates = np.zeros(len(Collective))
        for collective, (_, rate) in zip(collectives, of_each, strict=True):
            rates[collective] = rate
        yield _Piece(sum(ms for ms, _ in of_each), rates)


def first_least(values: FloatArray, starts: IndexArray) -> IndexArray:
    """Return [groups] the row of the least of the values [n] of each group, the first of equals.

    ``starts`` [groups] are the first rows of the groups, which follow each other.
    """
    least = np.minimum.reduceat(values, starts)
    is_least = np.flatnonzero(values <= np.repeat(least, np.diff(starts, append=len(values))))
    rows: IndexArray = is_least[np.searchsorted(is_least, starts)]
    return rows


def _along(cost: Convex, begin: FloatArray, end: FloatArray) -> FloatArray:
    """Return the cheapest point on a line along which the cost falls at first."""
    direction = end - begin
    low, high = 0.0, 1.0
    if weighted_sum(cost.tangent(end)[1], direction) <= 0:
        return end
    for _ in range(LINE_STEPS):
        middle = (low + high) / 2
        slope = weighted_sum(cost.tangent(begin + middle * direction)[1], direction)
        low, high = (middle, high) if slope < 0 else (low, middle)
    return begin + (low + high) / 2 * direction
