"""A lower bound on the cost of every plan of a problem under its cost model.

The compute networks map the sum x of a device's representations to a time f(x) that is non-decreasing and
quasi-convex, so that max over devices f(x_d) >= f(mean of x_d). A unit's shards add up to at least its number of
columns times the smallest representation per column over all widths, coordinate by coordinate, whatever the split.
Hence f(sum over units / devices) bounds the compute, once for forward and once for backward; evenly spread columns
bound the communication. A unit that must keep a wide shard bounds the compute by that shard alone.
"""

import numpy as np
from neuroshard_api.tables import DIM_MULTIPLE

from neuroshard_planner.costs.shards import FloatArray, IndexArray
from neuroshard_planner.problem import Float32Array, Problem, ShardSize

ROUNDING = 1e-5  # relative; the networks run in single precision


def lower_bound_ms(problem: Problem) -> float:
    """Return a cost that no plan can go below."""
    unit, width, representation = _all_widths(problem)
    num_units = len(problem.units)
    columns = np.array([definition.num_columns for definition in problem.units], dtype=np.float64)
    starts = np.searchsorted(unit, np.arange(num_units))
    density = np.minimum.reduceat(representation / width[:, None], starts, axis=0)
    devices = problem.num_devices if problem.allowed is None else int(problem.allowed.any(axis=0).sum())
    average = (density * columns[:, None]).sum(axis=0, dtype=np.float64) / devices
    spread = problem.compute_ms(average[None, :].astype(np.float32))[0]

    # Some shard of each unit has at least its columns divided by the most shards.
    most_shards = np.array([definition.max_shards for definition in problem.units], dtype=np.float64)
    alone = problem.compute_ms(representation).astype(np.float64)
    alone[width < (columns / most_shards)[unit]] = np.inf
    single = np.minimum.reduceat(alone, starts, axis=0).max(axis=0)
    bound = np.maximum(spread, single).sum(dtype=np.float64) + problem.transfer.least_ms
    return float(bound) * (1 - ROUNDING)


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
