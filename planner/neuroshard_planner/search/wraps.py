"""Placements whose columns lie end to end over the devices, as many on each (McNaughton's rule of wrapping around).

They have the least peak of columns that there is, and the fewest cuts with it: one less than there are devices. Even
cuts of equal tables do not come to such a peak: 26 tables of 128 columns on 64 devices have 64 in halves, and 52 so.
"""

import numpy as np

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize


def wrapped(problem: Problem, best: Placement) -> Placement | None:
    """Return a placement with its shards by columns end to end, all others as they are. None: constraints forbid it.

    Tables of much and of little time take turns.
    """
    is_laid = problem.is_cut_by_columns(best)
    units = np.array(sorted(set(problem.kinds.unit[best.kinds[is_laid]].tolist())), dtype=np.int64)
    if not len(units) or problem.allowed is not None:
        return None
    least = problem.min_shard_width[units]
    step = int(np.gcd.reduce(least))
    num_columns = np.array([problem.units[unit].num_columns for unit in units.tolist()])
    per_device = -(-int(num_columns.sum()) // (problem.num_devices * step)) * step
    times = problem.pass_levels(problem.kinds.representation[problem.whole[units]]).sum(axis=1)
    falling = np.argsort(-times, kind="stable")
    order = np.stack((falling, falling[::-1]), axis=1).ravel()[: len(units)]
    ends = np.cumsum(num_columns[order])
    cuts = np.array(sorted({*ends.tolist(), *range(per_device, int(ends[-1]), per_device)}))
    widths, row = np.diff(cuts, prepend=0), order[np.searchsorted(ends, cuts)]
    most = np.array([problem.units[unit].max_shard_width for unit in units.tolist()])
    most_shards = problem.max_shards[units]
    is_wide = (widths > most[row]) & (most_shards[row] > 1)
    if is_wide.any() or (widths < least[row]).any() or (np.bincount(row, minlength=len(units)) > most_shards).any():
        return None
    sizes = list(map(ShardSize, problem.num_rows[units[row]].tolist(), widths.tolist()))
    laid = Placement(kinds=problem.kinds_of(units[row].tolist(), sizes), devices=(cuts - 1) // per_device)
    return Placement.joined(best.at(~is_laid), laid)
