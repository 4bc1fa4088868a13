"""Lower bounds on the cost of every plan of a problem under its cost model.

The compute networks map the sum x of a device's representations to a time f(x) that is non-decreasing and
quasi-convex, so that max over devices f(x_d) >= f(mean of x_d). A unit's shards add up to at least its number of
columns times the smallest representation per column over all widths, coordinate by coordinate, whatever the split:
each in the lanes that its own width needs, though a wider shard on its device would give it more.
Hence f(sum over units / devices) bounds the compute, once for forward and once for backward; evenly spread columns
bound the communication. A unit that must keep a wide shard bounds the compute by that shard alone, and the
communication by what it brings its device.

Plans are bounded by the set of families in use. Which family and which widths a unit takes, prices bound
(`prices`), and of small sets branch by branch (`branches`). Where the costs have no slopes, the least of all
families and widths counts, coordinate by coordinate.

Tables by rows and copies are on all devices, whole in width: the widest of them gives every shard of the plan its
lanes. So plans with such tables are bounded once for each number of lanes, and the least of these bounds counts.

A plan of cost c holds no shard that alone costs more than c. Restricting the widths to such shards gives a bound b(c)
of plans of at most c, so that no plan costs less than both; c rises in steps, smaller ones where b(c) is below c. It
sees what splits cost: a table that must be cut fine to reach c brings the larger representation of its fine shards.

A bound of plans of any families, also of those that the constraints do not name, is what some one shard of the dearest
unit costs alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS, FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective

from neuroshard_planner.bound.branches import Branches
from neuroshard_planner.bound.choices import Choices, Families, every_choice, families_of, mean_rows, shard_levels
from neuroshard_planner.bound.prices import price_bound
from neuroshard_planner.bound.relaxed_cost import RelaxedCost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize

ROUNDING = 1e-5  # relative; the networks round their inputs to 2^-24
STEP = 0.05  # of a limit above what is known; small sets are bounded branch by branch as long as it is that
PRECISION = 5e-4  # of a limit
MOST_CHOICES = 10_000  # that are bounded branch by branch; more are of large sets, and take long
EVERYWHERE = (ROWS, REPLICATED)
"""Families whose shards are on all devices."""


class FamilyBounds:
    """Lower bounds on the cost of the plans of a problem, by the set of families that they use."""

    def __init__(self, problem: Problem, *, is_loose: bool = False) -> None:
        """``is_loose`` leaves prices out, which take most of the time and of the bounds' strength."""
        self._problem = problem
        self._is_loose = is_loose
        self._promising: dict[float, list[Families]] = {}
        self._known_lanes: dict[float, Choices] = {}
        self._known_limits: dict[Families, tuple[FloatArray, FloatArray, FloatArray]] = {}
        self._known_costs: dict[tuple[Families, bytes], RelaxedCost] = {}
        """By families and levels of some device, which many limits of cost share."""

    @cached_property
    def least_ms(self) -> float:
        """A cost that no plan goes below; the cost of the only placement where there is one."""
        forced = self._problem.forced_placement()
        if forced is not None:
            return float(self._problem.total_ms([forced])[0])
        return self._least_of(self.sets)

    @cached_property
    def by_columns_ms(self) -> float:
        """A cost that no plan by columns goes below; 0 where some unit may not be by columns."""
        return self._least_of([(COLUMNS,)], self.least_ms) if (COLUMNS,) in self.sets else 0.0

    @cached_property
    def sets(self) -> Sequence[Families]:
        """Sets of families that some plan may use."""
        own = list(map(families_of, set(self._problem.sharding_types)))
        every = sorted(set().union(*own))
        most = min(len(every), len(self._problem.units))
        found = [used for size in range(1, most + 1) for used in combinations(every, size)]
        return [used for used in found if all(not each.isdisjoint(used) for each in own)]

    def promising(self, limit_ms: float) -> list[Families]:
        """Return the sets of families of which a plan may cost less than the limit, by bounds without branches."""
        if limit_ms not in self._promising:
            enough_ms = limit_ms / (1 - ROUNDING)
            found = [each for each in self.sets if self.of(each, limit_ms, enough_ms, by_branches=False) < enough_ms]
            self._promising[limit_ms] = found
        return self._promising[limit_ms]

    def of(self, families: Families, limit_ms: float, enough_ms: float = np.inf, *, by_branches: bool = True) -> float:
        """Return b(c) of plans that use exactly these families, one of the sets; infinite where there is none.

        Args:
            families: of the plans.
            limit_ms: of the cost of the plans, c.
            enough_ms: a bound as high as that is not raised further.
            by_branches: whether small sets are bounded branch by branch, which is higher and takes longer.
        """
        is_usable = self._limits(families)[0] <= min(limit_ms, np.finfo(np.float64).max)
        least_ms = np.inf
        for lanes in sorted(set(self._lanes[is_usable].tolist())):  # np.unique would import masked arrays
            choices = self._of_lanes(lanes).at(is_usable & (self._lanes <= lanes), families)
            if choices is not None:
                own_ms = self._of_choices(choices, families, limit_ms, enough_ms, by_branches=by_branches)
                least_ms = min(least_ms, own_ms)
        return least_ms

    def _of_choices(
        self, choices: Choices, families: Families, limit_ms: float, enough_ms: float, *, by_branches: bool
    ) -> float:
        of_some_device = choices.levels_of_some_device
        if np.isinf(of_some_device).any():
            return np.inf
        spread_ms = self._spread_ms(choices, of_some_device)
        if spread_ms >= enough_ms or not self._has_tangents:
            return spread_ms
        relaxed = self._relaxed(families, of_some_device)
        priced_ms, mean = price_bound(relaxed.tangent, choices, enough_ms=enough_ms)
        bound_ms = max(spread_ms, priced_ms)
        if bound_ms >= enough_ms or not by_branches or len(self._lanes) > MOST_CHOICES:
            return bound_ms
        branches = Branches(relaxed, choices, num_devices=self._problem.num_usable_devices, limit_ms=limit_ms)
        return branches.bound_ms(mean, bound_ms, enough_ms)

    def _spread_ms(self, choices: Choices, of_some_device: FloatArray) -> float:
        """Return the least cost over all choices on the mean device, coordinate by coordinate."""
        problem, step_cost = self._problem, self._problem.step_cost
        of_unit = np.minimum.reduceat(choices.rows[:, : -len(Collective)], choices.starts, axis=0)
        spread = problem.least_ms(of_unit.sum(axis=0)[None, :])[0]
        if step_cost.joins_passes:
            # A sum of functions that are convex up to a rescaling need not be: the larger of the two always bounds it.
            spread = step_cost.passes(spread) if problem.costs.is_convex else np.array([spread.max(), 0.0])
        return float(
            step_cost.total_ms(np.maximum(np.append(spread, choices.mean_traffic(np.minimum)), of_some_device))
        )

    def _least_of(self, sets: Sequence[Families], known_ms: float = 0.0) -> float:
        """Return a cost that no plan of these sets goes below, and that is at least a known one."""
        free: dict[Families, float] = {}
        for families in sets:
            free[families] = self.of(families, np.inf, min(free.values(), default=np.inf), by_branches=False)

        least_ms, step = max(known_ms, min(free.values())), STEP
        while step >= PRECISION:
            limit_ms = raised_ms = least_ms * (1 + step)
            for families in sorted(free, key=lambda families: free[families]):
                if free[families] < raised_ms:
                    own_ms = self.of(families, limit_ms, raised_ms, by_branches=step == STEP)
                    raised_ms = min(raised_ms, own_ms)
            least_ms = max(least_ms, raised_ms)
            step = step if raised_ms == limit_ms else step / 4
        return max(known_ms, least_ms * (1 - ROUNDING))

    @cached_property
    def _every(self) -> tuple[Choices, IndexArray]:
        """All choices, and their kinds [n]."""
        return every_choice(self._problem)

    @cached_property
    def _lanes(self) -> FloatArray:
        """[n] that a choice gives all shards of a plan; 0: none."""
        choices, kind = self._every
        return np.where(np.isin(choices.family, EVERYWHERE), self._problem.lanes(kind), 0.0)

    def _of_lanes(self, lanes: float) -> Choices:
        """Return all choices in plans in which the widest shard that is on all devices gives them these lanes."""
        choices, kind = self._every
        if not lanes:
            return choices
        if lanes not in self._known_lanes:
            rows = mean_rows(self._problem, kind, choices.share, lanes=lanes)
            self._known_lanes[lanes] = replace(choices, rows=rows)
        return self._known_lanes[lanes]

    def _relaxed(self, families: Families, of_some_device: FloatArray) -> RelaxedCost:
        key = families, of_some_device.tobytes()
        if key not in self._known_costs:
            _, least, most = self._limits(families)
            self._known_costs[key] = RelaxedCost(self._problem, families, least, most, of_some_device)
        return self._known_costs[key]

    def _limits(self, families: Families) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return [n] what plans of these families with a choice cost at least, infinite where none has it.

        And the traffic [collectives] of their mean device, at least and at most; empty where there are no such plans.
        """
        if families not in self._known_limits:
            choices, step_cost = self._every[0], self._problem.step_cost
            is_usable = np.isin(choices.family, families)
            alone_ms, least, most = np.full(len(is_usable), np.inf), np.zeros(0), np.zeros(0)
            if (own := choices.at(is_usable, families)) is not None:
                least, most = own.mean_traffic(np.minimum), own.mean_traffic(np.maximum)
                alone_ms[is_usable] = step_cost.total_ms(np.maximum(own.levels, np.append(np.zeros(2), least)))
            self._known_limits[families] = alone_ms, least, most
        return self._known_limits[families]

    @cached_property
    def _has_tangents(self) -> bool:
        if self._is_loose or any(choice.kernels for choice in self._problem.host_choices):
            return False  # a table in host memory takes less of the device than any option here
        (sums,) = self._problem.least_demands(self._problem.whole[:1])
        return self._problem.tangent_ms(sums, num_calls=1) is not None


def single_unit_bound_ms(problem: Problem) -> float:
    """Return a cost that no plan of any families goes below."""
    keys = [(index, size) for index in range(len(problem.units)) for size in _sizes(problem, index)]
    kinds = problem.kinds_of([index for index, _ in keys], [size for _, size in keys])
    unit = problem.kinds.unit[kinds]
    cheapest = np.minimum.reduceat(
        problem.step_cost.total_ms(shard_levels(problem, kinds)), np.searchsorted(unit, range(len(problem.units)))
    )
    return float(cheapest.max())


def _sizes(problem: Problem, index: int) -> list[ShardSize]:
    """Return shards of a unit of which every plan has one at least."""
    unit = problem.units[index]
    if len(unit.tables) > 1:
        return [problem.row_block(index, COLUMNS, unit.num_columns)]
    widths = range(DIM_MULTIPLE, unit.num_columns + 1, DIM_MULTIPLE)
    sizes = [problem.row_block(index, family, width) for family in (COLUMNS, NODE_ROWS) for width in widths]
    return [*sizes, *(problem.row_block(index, family, unit.num_columns) for family in (ROWS, REPLICATED))]
