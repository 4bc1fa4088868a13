"""Lower bounds on the cost of every plan of a problem under its cost model.

The compute networks map the sum x of a device's representations to a time f(x) that is non-decreasing and
quasi-convex, so that max over devices f(x_d) >= f(mean of x_d). A unit's shards add up to at least its number of
columns times the smallest representation per column over all widths, coordinate by coordinate, whatever the split:
each in the lanes that its own width needs, though a wider shard on its device would give it more.
Hence f(sum over units / devices) bounds the compute, once for forward and once for backward; evenly spread columns
bound the communication. A unit that must keep a wide shard bounds the compute by that shard alone, and the
communication by what it brings its device.

Plans are bounded by the set of families in use. Which family and which widths a unit takes, prices bound
(`price_bound`), and of small sets branch by branch (`branches`). Where the costs have no slopes, the least of all
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
from copy import copy
from functools import cache, cached_property
from itertools import combinations, repeat
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.sharding.kinds import Family, ShardingType, num_row_parts
from neuroshard_costs.shards import COLUMNS, FAMILIES, NODE_ROWS, REPLICATED, ROWS, FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective

from neuroshard_planner.bound.branches import MOST_CHOICES, Branches
from neuroshard_planner.bound.prices import Choices, price_bound
from neuroshard_planner.bound.relaxed_cost import COLLECTIVES, RelaxedCost, TrafficLimits
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.units import BoolArray, Unit

ROUNDING = 1e-5  # relative; the networks round their inputs to 2^-24
STEP = 0.05  # of a limit above what is known; small sets are bounded branch by branch as long as it is that
PRECISION = 5e-4  # of a limit
EVERYWHERE = (ROWS, REPLICATED)
"""Families whose shards are on all devices."""
COLUMN_COLLECTIVES = (Collective.POOLED_EMBEDDINGS, Collective.INDICES)

Families = tuple[int, ...]
"""Ascending positions in FAMILIES."""


class FamilyBounds:
    """Lower bounds on the cost of the plans of a problem, by the set of families that they use."""

    def __init__(self, problem: Problem, *, is_loose: bool = False) -> None:
        """``is_loose`` leaves prices out, which take most of the time and of the bounds' strength."""
        self._problem = problem
        self._is_loose = is_loose
        self._by_columns_ms = 0.0
        """Of plans by columns, as long as that is below a limit of all plans; 0: it is not."""
        self._promising: dict[float, list[Families]] = {}
        self._relaxed: dict[tuple[Families, bytes], RelaxedCost] = {}
        """By families and limits of traffic, which many limits of cost share."""

    @cached_property
    def least_ms(self) -> float:
        """A cost that no plan goes below; the cost of the only placement where there is one."""
        forced = self._problem.forced_placement()
        if forced is not None:
            return float(self._problem.total_ms([forced])[0])
        return self._least_of(self.sets)

    @cached_property
    def by_columns_ms(self) -> float:
        """A cost that no plan by columns goes below; infinite where some unit may not be by columns."""
        if (COLUMNS,) not in self.sets:
            return np.inf
        known_ms = max(self.least_ms, self._by_columns_ms)
        return known_ms if self._by_columns_ms else self._least_of([(COLUMNS,)], known_ms)

    @property
    def end_by_columns_ms(self) -> float:
        """A cost at which a search by columns ends: their bound, or 0 where some unit may not be by columns."""
        return self.by_columns_ms if np.isfinite(self.by_columns_ms) else 0.0

    @cached_property
    def sets(self) -> Sequence[Families]:
        """Sets of families that some plan may use."""
        own = list(map(_families, set(self._problem.sharding_types)))
        every = sorted(set().union(*own))
        most = min(len(every), len(self._problem.units))
        found = [used for size in range(1, most + 1) for used in combinations(every, size)]
        return [used for used in found if all(not each.isdisjoint(used) for each in own)]

    def promising(self, limit_ms: float) -> list[Families]:
        """Return the sets of families of which a plan may cost less than the limit, by bounds without branches."""
        enough_ms = limit_ms / (1 - ROUNDING)
        if limit_ms not in self._promising:
            aim = _Aim(limit_ms, enough_ms, enough_ms, by_branches=False)
            self._promising[limit_ms] = [each for each in self.sets if self._of(each, aim) < enough_ms]
        return self._promising[limit_ms]

    def of(self, families: Families, limit_ms: float) -> float:
        """Return b(c) of plans that use exactly these families, one of the sets; infinite where there is none."""
        return self._of(families, _Aim(limit_ms))

    def _of(self, families: Families, aim: "_Aim") -> float:
        options = self._by_columns if families == (COLUMNS,) else self._options
        of_lanes = map(options.with_lanes, options.lanes_of(families))
        return min(self._of_lanes(each, families, aim) for each in of_lanes)

    def _of_lanes(self, options: "_Options", families: Families, aim: "_Aim") -> float:
        least = options.least(aim.limit_ms).of(families)
        if _num_distinct(least.unit) < len(self._problem.units) or _num_distinct(least.family) < len(families):
            return np.inf
        level_ms = options.spread_ms(least)
        if not self._has_tangents or level_ms >= aim.enough_ms:
            return level_ms
        return max(level_ms, self._priced(options, families, least, aim))

    def _priced(self, options: "_Options", families: Families, least: "_Least", aim: "_Aim") -> float:
        limit_ms, enough_ms, needed_ms, by_branches = aim
        choices, limits = options.choices(least, limit_ms), options.traffic_limits(least)
        key = families, np.concatenate((*limits, least.single_ms)).tobytes()
        if key not in self._relaxed:
            self._relaxed[key] = RelaxedCost(self._problem, families, limits, least.single_ms)
        relaxed = self._relaxed[key]
        if not (by_branches and self._is_small and np.isfinite(limit_ms)):
            return price_bound(relaxed.tangent, choices, enough_ms=enough_ms, needed_ms=needed_ms)[0]
        bound_ms, mean = price_bound(relaxed.tangent, choices, enough_ms=enough_ms)
        if bound_ms >= enough_ms:
            return bound_ms
        pooled = Collective.POOLED_EMBEDDINGS
        branches = Branches(
            relaxed,
            choices,
            self._problem.step_cost.collective(pooled),
            num_devices=options.num_devices,
            least_columns=float(options.least_traffic[pooled]),
            least_peak=max(float(limits.least[pooled]), float(limits.of_some_device[pooled])),
            limit_ms=limit_ms,
        )
        return branches.bound_ms(mean=mean, known_ms=bound_ms, enough_ms=enough_ms, needed_ms=needed_ms)

    def _least_of(self, sets: Sequence[Families], known_ms: float = 0.0) -> float:
        """Return a cost that no plan of these sets goes below, and that is at least a known one."""
        free: dict[Families, float] = {}
        for families in sets:
            free[families] = self._of(families, _Aim(np.inf, min(free.values(), default=np.inf), by_branches=False))

        least_ms, step = max(known_ms, min(free.values())), STEP
        while step >= PRECISION:
            limit_ms = raised_ms = least_ms * (1 + step)
            for families in sorted(free, key=lambda families: free[families]):
                if free[families] < raised_ms:
                    aim = _Aim(limit_ms, raised_ms, by_branches=step == STEP)
                    own_ms = self._of(families, aim)
                    raised_ms = min(raised_ms, own_ms)
                    if families == (COLUMNS,) and aim.by_branches and own_ms < limit_ms:
                        self._by_columns_ms = own_ms * (1 - ROUNDING)
            least_ms = max(least_ms, raised_ms)
            step = step if raised_ms == limit_ms else step / 4
        return least_ms * (1 - ROUNDING)

    @cached_property
    def _every(self) -> tuple[IndexArray, IndexArray]:
        """Unit and kind of every shard that a plan may hold."""
        return _all_options(self._problem)

    @cached_property
    def _options(self) -> "_Options":
        return _Options(self._problem, *self._every)

    @cached_property
    def _by_columns(self) -> "_Options":
        unit, kind = self._every
        by_columns = self._problem.kinds.family[kind] == COLUMNS
        return self._options if by_columns.all() else _Options(self._problem, unit[by_columns], kind[by_columns])

    @property
    def _is_small(self) -> bool:
        return self._has_tangents and len(self._every[0]) <= MOST_CHOICES

    @cached_property
    def _has_tangents(self) -> bool:
        if self._is_loose or any(choice.kernels for choice in self._problem.host_choices):
            return False  # a table in host memory takes less of the device than any option here
        (sums,) = self._problem.least_demands(self._problem.whole[:1])
        return self._problem.tangent_ms(sums, num_calls=1) is not None


class _Aim(NamedTuple):
    """What is asked of a bound."""

    limit_ms: float
    """Of the cost of plans (c of the module)."""
    enough_ms: float = np.inf
    """A bound as high as that is not raised further."""
    needed_ms: float = 0.0
    """Nor is one that cannot be as high as that."""
    by_branches: bool = True
    """Whether small sets are bounded branch by branch, which is higher and takes longer."""


class _Least(NamedTuple):
    """The least that units bring in each family, by unit and family ascending."""

    place: IndexArray
    """[g] among all units and families."""
    unit: IndexArray
    """[g]"""
    family: IndexArray
    """[g]"""
    total: FloatArray
    """[g, q + collectives] on the mean device, coordinate by coordinate."""
    single: FloatArray
    """[g, 2] levels of some shard of the unit alone."""

    def of(self, families: Families) -> "_Least":
        """Return those of some families that there are shards of."""
        rows = np.flatnonzero(np.isin(self.family, families) & np.isfinite(self.total[:, 0]))
        return _Least(self.place[rows], self.unit[rows], self.family[rows], self.total[rows], self.single[rows])

    @property
    def starts(self) -> IndexArray:
        """[units] the first row of each."""
        return np.flatnonzero(np.diff(self.unit, prepend=-1))

    @property
    def single_ms(self) -> FloatArray:
        """[2] levels of compute that some device has at least, of the dearest unit in its cheapest family."""
        most: FloatArray = np.minimum.reduceat(self.single, self.starts, axis=0).max(axis=0)
        return most


class _Options:
    """All shards that plans may hold, n in ascending order of unit and family."""

    def __init__(self, problem: Problem, unit: IndexArray, kind: IndexArray) -> None:
        self._problem, kinds = problem, problem.kinds
        self._columns = np.array([definition.num_columns for definition in problem.units], dtype=np.float64)
        width, representation = kinds.num_columns[kind].astype(np.float64), kinds.representation[kind]
        family = kinds.family[kind]
        group = unit * len(FAMILIES) + family
        self._starts = np.flatnonzero(np.diff(group, prepend=-1))
        self._unit, self._family = unit[self._starts], family[self._starts]
        self.num_devices = problem.num_devices if problem.allowed is None else int(problem.allowed.any(axis=0).sum())
        alone = problem.pass_levels(representation)
        num_placed = np.array([_num_placed(each, problem) for each in FAMILIES])[family]
        # Some shard of each unit has at least its columns divided by the most shards.
        most_pieces = np.array([[_most_pieces(each, family) for family in FAMILIES] for each in problem.units])
        pieces = most_pieces[unit, family]
        is_narrow = (width < self._columns[unit] / pieces)[:, None]
        self._wide = np.where(is_narrow, np.inf, alone)
        self._own_traffic = np.minimum.reduceat(np.where(is_narrow, np.inf, kinds.traffic[kind]), self._starts, axis=0)
        """[g, collectives] of the device with the widest shard of the unit, at least."""
        traffic = kinds.traffic[kind] * (num_placed * self._columns[unit] / width)[:, None] / self.num_devices
        self._traffic: FloatArray = np.minimum.reduceat(traffic, self._starts, axis=0)
        """[g, collectives] of the mean device."""
        self._kind, self._share = kind, num_placed * self._columns[unit] / width / self.num_devices
        self._group = np.repeat(np.arange(len(self._starts)), np.diff(self._starts, append=len(kind)))
        self._lanes = np.where(np.isin(family, EVERYWHERE), problem.lanes(kind), 0.0)
        self._rows = self._mean_rows(0.0)
        """[n, q + collectives] what a unit in shards of one kind adds to the mean device."""
        self.least_traffic = problem.step_cost.least_traffic
        unit_starts = np.searchsorted(unit, np.arange(len(problem.units)))
        if num_placed.max() > 1:
            least = np.minimum.reduceat(traffic, unit_starts, axis=0).sum(axis=0)
            self.least_traffic = np.minimum(least, np.where(self.least_traffic > 0, self.least_traffic, np.inf))
        self._too_dear_ms = problem.step_cost.with_compute_ms(
            alone.sum(axis=1), _with_own(self.least_traffic, kinds.traffic[kind])
        )
        self._known: tuple[float, _Least] | None = None
        self._unlimited: tuple[FloatArray, ...] | None = None
        """[g, q + collectives] on the mean device and [g, 2] of some shard alone, the least without a limit."""
        self._of_lanes: dict[float, _Options] = {}

    def lanes_of(self, families: Families) -> list[float]:
        """Return the lanes that the widest shard on all devices may give the others, for plans of these families."""
        chosen = [family for family in families if family in EVERYWHERE]
        if not chosen:
            return [0.0]
        is_chosen = np.isin(self._problem.kinds.family[self._kind], chosen)
        return sorted(set(self._lanes[is_chosen].tolist()))  # np.unique would import masked arrays

    def with_lanes(self, lanes: float) -> "_Options":
        """Return the shards of plans in which the widest shard that is on all devices gives them these lanes."""
        if not lanes:
            return self
        if lanes not in self._of_lanes:
            own = copy(self)
            own._of_lanes = {}  # noqa: SLF001 - of its own class; no cycle keeps the arrays after their search
            own._known = own._unlimited = None  # noqa: SLF001 - likewise
            own._rows = self._mean_rows(lanes)  # noqa: SLF001 - likewise
            own._too_dear_ms = np.where(self._lanes > lanes, np.inf, self._too_dear_ms)  # noqa: SLF001 - likewise
            self._of_lanes[lanes] = own
        return self._of_lanes[lanes]

    def _mean_rows(self, lanes: float) -> FloatArray:
        sums = self._problem.least_demands(self._kind, lanes=lanes) * self._share[:, None]
        return np.concatenate((sums, self._traffic[self._group]), axis=1)

    def least(self, limit_ms: float) -> _Least:
        """Return the least that units bring in shards that alone cost at most the limit; infinite where none does."""
        if self._known is None or self._known[0] != limit_ms:
            usable, every = self._is_usable(limit_ms), self._is_usable(np.inf)
            values = self._rows, self._wide
            if self._unlimited is None:
                self._unlimited = tuple(_least_usable(each, every, self._starts) for each in values)
            # A limit leaves most groups all that they have.
            changed = np.logical_or.reduceat(usable != every, self._starts)
            own = changed[self._group]
            starts = np.flatnonzero(np.diff(self._group[own], prepend=-1))
            least = [each.copy() for each in self._unlimited]
            for found, of_shards in zip(least, values, strict=True):
                found[changed] = _least_usable(of_shards[own], usable[own], starts)
            self._known = limit_ms, _Least(np.arange(len(self._unit)), self._unit, self._family, *least)
        return self._known[1]

    def _is_usable(self, limit_ms: float) -> BoolArray:
        """Return [n] whether shards alone cost at most the limit, and are as wide as the lanes allow."""
        return (self._too_dear_ms <= limit_ms) & (self._too_dear_ms < np.inf)

    def spread_ms(self, least: _Least) -> float:
        """Return the least cost over all families on the mean device, coordinate by coordinate."""
        problem, step_cost = self._problem, self._problem.step_cost
        starts = least.starts
        of_unit = np.minimum.reduceat(least.total, starts, axis=0)
        average = of_unit[:, : -len(Collective)].sum(axis=0)
        spread = problem.least_ms(average[None, :])[0]
        if step_cost.joins_passes:
            # A sum of functions that are convex up to a rescaling need not be: the larger of the two always bounds it.
            spread = step_cost.passes(spread) if problem.costs.is_convex else np.array([spread.max(), 0.0])
        traffic = np.maximum(self.least_traffic, self._traffic_of_some_device(least))
        return float(step_cost.total_ms(np.concatenate((np.maximum(spread, least.single_ms), traffic))))

    def choices(self, least: _Least, limit_ms: float) -> Choices:
        """Return the shards of one kind that each unit may be in, of these families.

        A unit in shards of several widths adds a mean of what they add, each for its columns.
        """
        usable = np.flatnonzero(self._is_usable(limit_ms) & np.isin(self._group, least.place))
        group = self._group[usable]
        return Choices(
            rows=self._rows[usable],
            unit=self._unit[group],
            family=self._family[group],
            share=self._share[usable],
            columns=self._problem.kinds.traffic[self._kind[usable], Collective.POOLED_EMBEDDINGS],
            spare_ms=limit_ms - self._too_dear_ms[usable],
        )

    def traffic_limits(self, least: _Least) -> TrafficLimits:
        """Return the limits of traffic of plans that use all families of these rows, and no other."""
        traffic, starts = self._traffic[least.place], least.starts
        return TrafficLimits(
            np.minimum.reduceat(traffic, starts, axis=0).sum(axis=0),
            np.maximum.reduceat(traffic, starts, axis=0).sum(axis=0),
            self._traffic_of_some_device(least),
        )

    def _traffic_of_some_device(self, least: _Least) -> FloatArray:
        """Return [collectives] the most that a unit with one family left, or the least unit of a family, brings."""
        own = self._own_traffic[least.place]
        counts = np.diff(least.starts, append=len(own))
        is_forced = np.repeat(counts, counts) == 1
        most = np.zeros(len(Collective))
        for family in sorted(set(least.family.tolist())):
            of_family = least.family == family
            forced = own[of_family & is_forced].max(axis=0, initial=0.0)
            taking_part = list(COLLECTIVES[family])
            most[taking_part] = np.maximum(most, np.maximum(own[of_family].min(axis=0), forced))[taking_part]
        return most


def _least_usable(values: FloatArray, usable: BoolArray, starts: IndexArray) -> FloatArray:
    """Return [g, v] the least values [n, v] of the usable shards of each group; infinite where there is none."""
    least: FloatArray = np.minimum.reduceat(np.where(usable[:, None], values, np.inf), starts, axis=0)
    return least


def _num_distinct(values: IndexArray) -> int:
    return int(np.count_nonzero(np.bincount(values)))


def _with_own(least: FloatArray, traffic: FloatArray) -> FloatArray:
    """Return [k, collectives] the least traffic of plans that hold a shard of this [k, collectives] traffic.

    What a shard itself adds counts in the collectives that no shard by columns takes part in.
    """
    own = np.tile(least, (len(traffic), 1))
    further = [collective for collective in Collective if collective not in COLUMN_COLLECTIVES]
    own[:, further] = np.maximum(own[:, further], traffic[:, further])
    return own


def _most_pieces(unit: Unit, family: Family) -> int:
    """Return the maximum number of a unit's pieces by columns in a family."""
    match family:
        case Family.COLUMNS:
            return unit.max_shards
        case Family.NODE_ROWS:
            return unit.max_blocks
        case Family.ROWS | Family.REPLICATED:
            return 1


def _num_placed(family: Family, problem: Problem) -> int:
    """Return the shards that a block of columns of a unit is placed as."""
    return problem.num_devices if family is Family.REPLICATED else num_row_parts(family, problem.request.topology)


@cache
def _families(types: frozenset[ShardingType]) -> frozenset[int]:
    """Return the positions in FAMILIES of the families of some types."""
    return frozenset(FAMILIES.index(Family.of(kind)) for kind in types)


def _all_options(problem: Problem) -> tuple[IndexArray, IndexArray]:
    """Return unit [k] (ascending) and kind [k] of every shard that a plan may hold."""
    by_columns: tuple[list[int], list[ShardSize]] = ([], [])
    further: tuple[list[int], list[ShardSize]] = ([], [])
    for index, (unit, types) in enumerate(zip(problem.units, problem.sharding_types, strict=True)):
        for family in sorted(_families(types)):
            whole, most = problem.row_block(index, family, unit.num_columns), 0
            if _most_pieces(unit, FAMILIES[family]) > 1:
                most = min(unit.num_columns - unit.min_shard_width, unit.max_shard_width)
            widths = range(unit.min_shard_width, most + 1, DIM_MULTIPLE)
            found = list(map(ShardSize, repeat(whole.num_rows), widths, repeat(family)))
            if not (found and unit.must_be_cut):
                found.append(whole)
            units, sizes = by_columns if family == COLUMNS else further
            units += repeat(index, len(found))
            sizes += found
    # In a batch of their own, shards by columns have the same representations to the last bit as without other types.
    parts = [problem.kinds_of(*each) for each in (by_columns, further)]
    kinds = np.concatenate(parts)
    kinds = kinds[np.lexsort((problem.kinds.family[kinds], problem.kinds.unit[kinds]))]
    return problem.kinds.unit[kinds], kinds


def single_unit_bound_ms(problem: Problem) -> float:
    """Return a cost that no plan of any families goes below."""
    keys = [(index, size) for index in range(len(problem.units)) for size in _sizes(problem, index)]
    kinds = problem.kinds_of([index for index, _ in keys], [size for _, size in keys])
    levels = np.empty((len(kinds), NUM_LEVELS))
    levels[:, TIMES] = problem.pass_levels(problem.kinds.representation[kinds])
    levels[:, TRAFFIC] = problem.kinds.traffic[kinds]
    unit = problem.kinds.unit[kinds]
    cheapest = np.minimum.reduceat(problem.step_cost.total_ms(levels), np.searchsorted(unit, range(len(problem.units))))
    return float(cheapest.max())


def _sizes(problem: Problem, index: int) -> list[ShardSize]:
    """Return shards of a unit of which every plan has one at least."""
    unit = problem.units[index]
    if len(unit.tables) > 1:
        return [problem.row_block(index, COLUMNS, unit.num_columns)]
    widths = range(DIM_MULTIPLE, unit.num_columns + 1, DIM_MULTIPLE)
    sizes = [problem.row_block(index, family, width) for family in (COLUMNS, NODE_ROWS) for width in widths]
    return [*sizes, *(problem.row_block(index, family, unit.num_columns) for family in (ROWS, REPLICATED))]
