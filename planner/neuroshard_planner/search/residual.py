"""The search for the units that tables in host memory leave.

It sees the remaining tables alone, in the memory that is left on the fullest device. What the other units add to their
devices changes little about which placement of the rest is best; local search of the whole corrects that.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.problem.memory_ledger import MemoryLedger
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.iterated import Found


def completed(
    problem: Problem,
    fixed: Placement,
    *,
    request_of: Callable[[Sequence[int]], PlanRequest],
    search: Callable[[Problem], Found | None],
) -> Found | None:
    """Return the fixed shards and a searched placement of all units that have none. None: nothing was found.

    Args:
        problem: of all units; the evaluations of the search are counted as its own.
        fixed: all shards of some units.
        request_of: request for some units alone (see units_alone).
        search: finds a placement of that request's problem, in the memory that is left.
    """
    is_left = np.ones(len(problem.units), dtype=bool)
    is_left[problem.kinds.unit[fixed.kinds]] = False
    left = np.flatnonzero(is_left)
    if not len(left):
        return Found(placement=fixed)
    used: IndexArray = np.zeros(problem.num_devices, dtype=np.int64)
    np.add.at(used, fixed.devices, problem.kinds.memory_bytes[fixed.kinds])
    room_bytes = problem.memory.shard_capacity_bytes - int(used.max(initial=0))
    if room_bytes <= 0:
        return None
    part = Problem(_with_room(request_of(left.tolist()), room_bytes), problem.costs, tuning=problem.tuning)
    before = part.work
    found = search(part)
    problem.evaluations += part.work - before
    if found is None:
        return None
    placed = found.placement
    kinds = problem.kinds_of(left[part.kinds.unit[placed.kinds]].tolist(), part.sizes_of(placed.kinds))
    whole = Placement(
        kinds=np.concatenate((fixed.kinds, kinds)), devices=np.concatenate((fixed.devices, placed.devices))
    )
    return replace(found, placement=whole)


def units_alone(
    problem: Problem, units: Sequence[int], restricted: Callable[[TableConstraints, str, int], TableConstraints]
) -> PlanRequest:
    """Return the request for some units alone.

    Args:
        problem: of all units.
        units: that remain.
        restricted: constraints of a table of this name and unit, made of those that it has.
    """
    request = problem.request
    all_tables, constraints = request.tables.tables, request.constraints
    owner = {table: unit for unit in units for table in problem.units[unit].tables}
    own = {
        name: _by_columns_still(restricted(constraints.tables.get(name, TableConstraints()), name, unit), problem, unit)
        for name, unit in ((all_tables[table].name, unit) for table, unit in owner.items())
    }
    colocate = tuple(group for group in constraints.colocate if own.keys() >= set(group))
    return request.model_copy(
        update={
            "tables": request.tables.model_copy(update={"tables": tuple(all_tables[table] for table in sorted(owner))}),
            "constraints": constraints.model_copy(update={"tables": own, "colocate": colocate}),
        }
    )


def _by_columns_still(constraints: TableConstraints, problem: Problem, unit: int) -> TableConstraints:
    """Return the constraints of a table that stays by columns, also without those of its collection that keep it so."""
    types = problem.sharding_types[unit]
    if not types <= set(BY_COLUMNS):
        return constraints
    return constraints.model_copy(update={"sharding_types": tuple(kind for kind in BY_COLUMNS if kind in types)})


def _with_room(part: PlanRequest, room_bytes: int) -> PlanRequest:
    """Return the request on devices with so much room for its shards, in bytes.

    A reserve takes what other purposes need less of than in the whole request.
    """
    spare_bytes = MemoryLedger(part).shard_capacity_bytes - room_bytes
    reserve = part.memory.model_copy(update={"reserve_bytes": part.memory.reserve_bytes + spare_bytes})
    return part.model_copy(update={"memory": reserve})
