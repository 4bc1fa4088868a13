"""A lower bound on the cost of every plan of a problem under its cost model.

The compute networks map the sum x of a device's representations to a time f(x) that is non-decreasing and
quasi-convex, so that max over devices f(x_d) >= f(mean of x_d). A unit's shards add up to at least its number of
columns times the smallest representation per column over all widths, coordinate by coordinate, whatever the split.
Hence f(sum over units / devices) bounds the compute, once for forward and once for backward; evenly spread columns
bound the communication. A unit that must keep a wide shard bounds the compute by that shard alone. Blocks of rows and
copies are options like widths: their shards on all devices together bring so much, and the least of all options counts,
for each collective too.

A plan of cost c holds no shard that alone costs more than c. Restricting the widths to such shards gives a bound b(c)
that does not grow with c; no plan costs a c with b(c) > c, so the largest such c is the bound. It sees what splits
cost: a table that must be cut fine to reach c brings the larger representation of its fine shards.
"""

from collections.abc import Callable

import numpy as np
from neuroshard_api.sharding import Family, num_row_parts
from neuroshard_api.tables import DIM_MULTIPLE
from neuroshard_costs.shards import COLUMNS, FAMILIES, FloatArray, IndexArray

from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.step_cost import Collective
from neuroshard_planner.problem.units import Unit

ROUNDING = 1e-5  # relative; the networks run in single precision
PRECISION = 1e-3  # of the largest c with b(c) > c
COLUMN_COLLECTIVES = (Collective.POOLED_EMBEDDINGS, Collective.INDICES)


def lower_bound_ms(problem: Problem) -> float:
    """Return a cost that no plan can go below; the cost of the only placement where there is one."""
    forced = problem.forced_placement()
    if forced is not None:
        return float(problem.total_ms([forced])[0])
    unit, kind = _all_options(problem)
    kinds = problem.kinds
    columns = np.array([definition.num_columns for definition in problem.units], dtype=np.float64)
    width, representation = kinds.num_columns[kind].astype(np.float64), kinds.representation[kind]
    starts = np.searchsorted(unit, np.arange(len(problem.units)))
    devices = problem.num_devices if problem.allowed is None else int(problem.allowed.any(axis=0).sum())
    step_cost = problem.step_cost
    alone = problem.pass_levels(representation)
    # What shards of one width bring over all devices, if they make up the whole unit.
    num_placed = np.array([_num_placed(family, problem) for family in FAMILIES])[kinds.family[kind]]
    total = representation / width[:, None].astype(np.float32)
    if num_placed.max() > 1:
        total *= num_placed[:, None].astype(np.float32)
    # Some shard of each unit has at least its columns divided by the most shards.
    pieces = np.array(
        [
            _most_pieces(problem.units[row], FAMILIES[family])
            for row, family in zip(unit.tolist(), kinds.family[kind].tolist(), strict=True)
        ]
    )
    wide = np.where((width < columns[unit] / pieces)[:, None], np.inf, alone)
    least_traffic = step_cost.least_traffic
    if num_placed.max() > 1:
        times = num_placed * columns[unit] / width
        traffic = np.minimum.reduceat(kinds.traffic[kind] * times[:, None], starts, axis=0).sum(axis=0) / devices
        least_traffic = np.minimum(traffic, np.where(least_traffic > 0, least_traffic, np.inf))
    too_dear = step_cost.with_compute_ms(alone.sum(axis=1), _with_own(least_traffic, kinds.traffic[kind]))

    def bound(limit_ms: float) -> float:
        """Return b(c)."""
        too_slow = too_dear > limit_ms
        least = np.minimum.reduceat(np.where(too_slow[:, None], np.float32(np.inf), total), starts, axis=0)
        if np.isinf(least).any():
            return np.inf
        average = (least * columns[:, None]).sum(axis=0) / devices
        spread = problem.least_ms(average[None, :].astype(np.float32))[0].astype(np.float64)
        if step_cost.joins_passes:
            # A sum of functions that are convex up to a rescaling need not be: the larger of the two always bounds it.
            spread = step_cost.passes(spread) if problem.costs.is_convex else np.array([spread.max(), 0.0])
        single = np.minimum.reduceat(np.where(too_slow[:, None], np.inf, wide), starts, axis=0).max(axis=0)
        return float(step_cost.total_ms(np.concatenate((np.maximum(spread, single), least_traffic))))

    return _largest_below(bound) * (1 - ROUNDING)


def _largest_below(bound: Callable[[float], float]) -> float:
    """Return the largest c with b(c) > c, to PRECISION, for a b that does not grow with c."""
    low = bound(np.inf)
    high = low * (1 + PRECISION)
    while bound(high) > high:
        low, high = high, 2 * high
    while high > low * (1 + PRECISION):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > middle else (low, middle)
    return low


def _with_own(least: FloatArray, traffic: FloatArray) -> FloatArray:
    """Return [k, collectives] the least traffic of plans that hold a shard of this [k, collectives] traffic.

    What a shard itself adds counts in the collectives that no shard by columns takes part in.
    """
    own = np.tile(least, (len(traffic), 1))
    further = [collective for collective in Collective if collective not in COLUMN_COLLECTIVES]
    own[:, further] = np.maximum(own[:, further], traffic[:, further])
    return own


def _most_pieces(unit: Unit, family: Family) -> int:
    """Return how many pieces by columns a unit may have in a family."""
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


def _all_options(problem: Problem) -> tuple[IndexArray, IndexArray]:
    """Return unit [k] (ascending) and kind [k] of every shard that a plan may hold."""
    pairs = []
    for index, (unit, types) in enumerate(zip(problem.units, problem.sharding_types, strict=True)):
        for family in sorted({FAMILIES.index(Family.of(kind)) for kind in types}):
            if _most_pieces(unit, FAMILIES[family]) > 1:
                widths = range(unit.min_shard_width, unit.num_columns - unit.min_shard_width + 1, DIM_MULTIPLE)
                pairs += [(index, problem.row_block(index, family, columns)) for columns in widths]
            pairs.append((index, problem.row_block(index, family, unit.num_columns)))
    # In a batch of their own, shards by columns have the same representations to the last bit as without other types.
    for chosen in ([pair for pair in pairs if pair[1].family == COLUMNS], pairs):
        kinds = problem.kinds_of([index for index, _ in chosen], [size for _, size in chosen])
    return problem.kinds.unit[kinds], kinds
