"""A lower bound on the cost of every plan of a problem under its cost model.

The compute networks map the sum x of a device's representations to a time f(x) that is non-decreasing and
quasi-convex, so that max over devices f(x_d) >= f(mean of x_d). A unit's shards add up to at least its number of
columns times the smallest representation per column over all widths, coordinate by coordinate, whatever the split.
Hence f(sum over units / devices) bounds the compute, once for forward and once for backward; evenly spread columns
bound the communication. A unit that must keep a wide shard bounds the compute by that shard alone.

A plan of cost c holds no shard that alone costs more than c. Restricting the widths to such shards gives a bound b(c)
that does not grow with c; no plan costs a c with b(c) > c, so the largest such c is the bound. It sees what splits
cost: a table that must be cut fine to reach c brings the larger representation of its fine shards.
"""

from collections.abc import Callable

import numpy as np
from neuroshard_api.tables import DIM_MULTIPLE
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import Float32Array, Problem, ShardSize

ROUNDING = 1e-5  # relative; the networks run in single precision
PRECISION = 1e-3  # of the largest c with b(c) > c


def lower_bound_ms(problem: Problem) -> float:
    """Return a cost that no plan can go below; the cost of the only placement where there is one."""
    forced = problem.forced_placement()
    if forced is not None:
        return float(problem.total_ms([forced])[0])
    unit, width, representation = _all_widths(problem)
    columns = np.array([definition.num_columns for definition in problem.units], dtype=np.float64)
    starts = np.searchsorted(unit, np.arange(len(problem.units)))
    devices = problem.num_devices if problem.allowed is None else int(problem.allowed.any(axis=0).sum())
    step_cost = problem.step_cost
    alone = problem.pass_levels(representation)
    density = representation / width[:, None].astype(np.float32)
    # Some shard of each unit has at least its columns divided by the most shards.
    wide = np.where((width < (columns / problem.max_shards)[unit])[:, None], np.inf, alone)
    least_traffic = step_cost.least_traffic
    too_dear = step_cost.with_compute_ms(alone.sum(axis=1), least_traffic)

    def bound(limit_ms: float) -> float:
        """Return b(c)."""
        too_slow = too_dear > limit_ms
        least = np.minimum.reduceat(np.where(too_slow[:, None], np.float32(np.inf), density), starts, axis=0)
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


def _all_widths(problem: Problem) -> tuple[IndexArray, FloatArray, Float32Array]:
    """Return unit [k] (ascending), width [k] and representation [k, r] of every shard that a plan may hold."""
    pairs = []
    for index, unit in enumerate(problem.units):
        if unit.max_shards > 1:
            widths = range(unit.min_shard_width, unit.num_columns - unit.min_shard_width + 1, DIM_MULTIPLE)
            pairs += [(index, ShardSize(unit.num_rows, columns)) for columns in widths]
        pairs.append((index, ShardSize(unit.num_rows, unit.num_columns)))
    kinds = problem.kinds_of([index for index, _ in pairs], [size for _, size in pairs])
    return (
        problem.kinds.unit[kinds],
        problem.kinds.num_columns[kinds].astype(np.float64),
        problem.kinds.representation[kinds],
    )
