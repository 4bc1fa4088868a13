"""A lower bound on the cost of plans of any families: what some one shard of the dearest unit costs alone.

It holds for every plan, since no peak falls when shards are added, and it is far below most: it knows nothing of what
units cost together. `lower_bound` knows that, of plans in the ways that the constraints name alone.
"""

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED, ROWS

from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC


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
