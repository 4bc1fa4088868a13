"""The search by columns for the units that others leave: whole tables and column shards next to blocks of rows.

It sees the remaining tables alone, in the memory that is left on the fullest device. What the other units add to all
devices alike changes little about which placement of the rest is best; local search of the whole corrects that.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.request import PlanRequest, TableConstraints
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.memory_ledger import MemoryLedger
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.iterated import iterated


def residual_placement(problem: Problem, fixed: Placement, *, work_budget: int) -> Placement | None:
    """Return the fixed shards and a placement by columns of all units that have none. None: nothing was found.

    Args:
        problem: whose units without a fixed shard may all be cut by columns or stay whole.
        fixed: all shards of some units.
        work_budget: device evaluations of the search, counted as the problem's own.
    """
    left = np.setdiff1d(np.arange(len(problem.units)), problem.kinds.unit[fixed.kinds])
    if not len(left):
        return fixed
    used: IndexArray = np.zeros(problem.num_devices, dtype=np.int64)
    np.add.at(used, fixed.devices, problem.kinds.memory_bytes[fixed.kinds])
    room_bytes = problem.memory.shard_capacity_bytes - int(used.max(initial=0))
    if room_bytes <= 0:
        return None
    part = Problem(_part(problem, left.tolist(), room_bytes), problem.costs)
    before = part.work
    found = iterated(part, starts=[], work_budget=work_budget, bound_ms=0.0)
    problem.evaluations += part.work - before
    if found is None:
        return None
    placed = found.placement
    kinds = problem.kinds_of(left[part.kinds.unit[placed.kinds]].tolist(), part.sizes_of(placed.kinds))
    return Placement(
        kinds=np.concatenate((fixed.kinds, kinds)), devices=np.concatenate((fixed.devices, placed.devices))
    )


def _part(problem: Problem, units: Sequence[int], room_bytes: int) -> PlanRequest:
    """Return the request for some units alone, on devices with so many bytes for their shards."""
    request = problem.request
    all_tables, constraints = request.tables.tables, request.constraints
    owner = {table: unit for unit in units for table in problem.units[unit].tables}
    names = {all_tables[table].name for table in owner}
    own = {
        all_tables[table].name: constraints.tables.get(all_tables[table].name, TableConstraints()).model_copy(
            update={"sharding_types": tuple(kind for kind in BY_COLUMNS if kind in problem.sharding_types[unit])}
        )
        for table, unit in owner.items()
    }
    groups = tuple(group for group in constraints.colocate if set(group) <= names)
    part = request.model_copy(
        update={
            "tables": request.tables.model_copy(update={"tables": tuple(all_tables[table] for table in sorted(owner))}),
            "constraints": constraints.model_copy(update={"tables": own, "colocate": groups}),
        }
    )
    # A reserve takes what other purposes need less of than in the whole request.
    spare_bytes = MemoryLedger(part).shard_capacity_bytes - room_bytes
    reserve = request.memory.model_copy(update={"reserve_bytes": request.memory.reserve_bytes + spare_bytes})
    return part.model_copy(update={"memory": reserve})
