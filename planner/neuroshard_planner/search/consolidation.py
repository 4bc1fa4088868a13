"""Consolidation: fewer shards within a limit on the cost, by choice among placements and by merging shards of a table.

Splits that take load off one device stay behind when the rest of the placement has changed. A merge removes one shard
and its traffic and adds the columns to a shard of the same table elsewhere. Each round takes the cheapest merge of each
table in turn, as long as the plan costs no more than allowed.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.search.local_search import merged


def fewest_shards(problem: Problem, placements: Sequence[Placement], *, limit_ms: float) -> Placement:
    """Return the placement with the fewest shards among those that cost at most the limit; the cheapest of equals.

    Shards of a table that are on one device are made one shard first, which may cost more than they seemed to.

    Args:
        problem: what is placed.
        placements: one at least.
        limit_ms: highest cost; below the cheapest placement's cost, that of this one.
    """
    placements = [merged(problem, placement) for placement in placements]  # as the plan is written down
    totals = problem.total_ms(placements)
    within = np.flatnonzero(totals <= max(limit_ms, totals.min())).tolist()
    return placements[min(within, key=lambda position: (num_pieces(problem, placements[position]), totals[position]))]


def num_pieces(problem: Problem, placement: Placement) -> int:
    """Return the shards of tables cut by columns, and one for every other table: its shards are what they must be."""
    by_columns = problem.is_cut_by_columns(placement)
    further = np.bincount(problem.kinds.unit[placement.kinds[~by_columns]])
    return int(by_columns.sum() + (further > 0).sum())


def consolidated(problem: Problem, placement: Placement, *, limit_ms: float, work_budget: int) -> Placement:
    """Return a placement of fewer shards that costs at most the limit, or the given one.

    Args:
        problem: what is placed.
        placement: costs at most the limit.
        limit_ms: highest cost.
        work_budget: ``problem.work`` at which the search for merges ends.
    """
    current = merged(problem, placement)
    while problem.tuning.has_consolidation:
        before = len(current.kinds)
        by_columns = current.kinds[problem.is_cut_by_columns(current)]
        counts = np.bincount(problem.kinds.unit[by_columns], minlength=len(problem.units))
        for unit in np.argsort(-counts, kind="stable")[: int((counts > 1).sum())].tolist():
            if problem.work >= work_budget:
                return current
            current = _merge(problem, current, unit, limit_ms)
        if len(current.kinds) == before:
            return current
    return current


def _merge(problem: Problem, placement: Placement, unit: int, limit_ms: float) -> Placement:
    """Return the placement after the cheapest merge of two of the unit's shards, if it costs at most the limit."""
    own = np.flatnonzero(problem.kinds.unit[placement.kinds] == unit)
    own = own[np.argsort(problem.kinds.num_columns[placement.kinds[own]], kind="stable")]
    pairs = [(leaves, grows) for leaves in own.tolist() for grows in own.tolist() if leaves != grows][
        : problem.tuning.most_merges
    ]
    options = [_after(problem, placement, leaves, grows) for leaves, grows in pairs]
    options = [option for option in options if problem.fits(option)]
    if not options:
        return placement
    totals = problem.total_ms(options)
    best = int(totals.argmin())
    return options[best] if totals[best] <= limit_ms else placement


def _after(problem: Problem, placement: Placement, leaves: int, grows: int) -> Placement:
    kinds: IndexArray = placement.kinds.copy()
    rows, columns = (values[kinds[grows]] for values in (problem.kinds.num_rows, problem.kinds.num_columns))
    size = ShardSize(int(rows), int(columns + problem.kinds.num_columns[kinds[leaves]]))
    kinds[grows] = problem.kinds_of([int(problem.kinds.unit[kinds[grows]])], [size])[0]
    stay = np.arange(len(kinds)) != leaves
    return Placement(kinds=kinds[stay], devices=placement.devices[stay])
