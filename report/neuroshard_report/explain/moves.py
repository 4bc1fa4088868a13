"""The moves of single tables that would lower a plan's cost most, one after the other. Changes no plan."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import IndexArray
from neuroshard_planner.planning import Bundle
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.units import even_widths

from neuroshard_report.explain.alone import of_group, without_servers
from neuroshard_report.explain.alternatives import PlacementWithoutUnit
from neuroshard_report.explain.table import NEGLIGIBLE, is_too_wide, rebuilt, split_obstacle

NUM_MOVES = 3
SPLITS = (2, 4, 8)
"""Even column shards that a table is tried in."""
MOST_UNITS = 400
"""Tables, or co-located groups, up to which all are tried; of more those on the devices that decide the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One table put elsewhere, after the moves before it."""

    table: str
    """The first of its co-located group."""
    from_devices: tuple[int, ...]
    from_type: ShardingType
    devices: tuple[int, ...]
    """One per shard: one is table_wise, several are even blocks of columns."""
    total_ms: float
    """The plan's cost then."""
    change: float
    """Share by which the step shrinks against the plan before this move, negative."""


def best_moves(plan: Plan, *, bundle: Bundle, count: int = NUM_MOVES) -> tuple[Move, ...]:
    """Return the moves of a steepest descent, one for each step; none where no single table helps.

    Each step tries every table whole on each device, and in even blocks of columns, all others staying.

    Raises:
        PlanError: the plan has problems, or was made with another bundle.
    """
    plan = of_group(without_servers(plan))
    problem, placement = rebuilt(plan, bundle)
    types = {table.name: table.sharding_type for table in plan.tables}
    moves: list[Move] = []
    total_ms = plan.predicted.total_ms
    while len(moves) < count:
        found = min(_candidates(problem, placement), key=lambda each: (each[0], each[1]), default=None)
        if found is None or found[0] > total_ms * (1 - NEGLIGIBLE):
            break
        after_ms, unit, kinds, devices = found
        own = problem.kinds.unit[placement.kinds] == unit
        name = plan.request.tables.tables[problem.units[unit].tables[0]].name
        moves.append(
            Move(
                table=name,
                from_devices=tuple(sorted(placement.devices[own].tolist())),
                from_type=types[name],
                devices=tuple(devices.tolist()),
                total_ms=after_ms,
                change=after_ms / total_ms - 1,
            )
        )
        types[name] = ShardingType.TABLE_WISE if len(devices) == 1 else ShardingType.COLUMN_WISE
        placement = Placement.joined(placement.at(~own), Placement(kinds=kinds, devices=devices))
        total_ms = after_ms
    return tuple(moves)


_Candidate = tuple[float, int, IndexArray, IndexArray]
"""Cost of the plan then, the unit, and the kinds and devices of its shards."""


def _candidates(problem: Problem, placement: Placement) -> Iterator[_Candidate]:
    """Yield the best place of each unit whole, and in each number of shards."""
    for index in _units(problem, placement):
        unit = problem.units[index]
        if not _may_be_by_columns(problem, index):
            continue
        without = PlacementWithoutUnit(problem, placement, index)
        whole = without.kind(unit.num_columns)
        usable = np.flatnonzero(without.allowed & (without.missing_bytes(whole) <= 0))
        if len(usable) and not is_too_wide(unit, 1):
            totals = without.totals_with(whole)[usable]
            best = int(totals.argmin())
            yield float(totals[best]), index, np.array([whole]), usable[[best]]
        for count in SPLITS:
            if split_obstacle(unit, count, int(without.allowed.sum())) is not None:
                continue
            found = without.best_split(count)
            if found is not None:
                kinds = [without.kind(width) for width in even_widths(unit.num_columns, count)]
                yield found[1], index, np.array(kinds, dtype=np.int64), found[0]


def _units(problem: Problem, placement: Placement) -> list[int]:
    if len(problem.units) <= MOST_UNITS:
        return list(range(len(problem.units)))
    deciding = np.flatnonzero(np.bincount(problem.device_levels([placement])[0].argmax(axis=0)))
    on_them = problem.kinds.unit[placement.kinds[np.isin(placement.devices, deciding)]]
    return sorted(set(map(int, on_them)))


def _may_be_by_columns(problem: Problem, unit: int) -> bool:
    tables = problem.request.tables.tables
    allowed = [problem.request.placed_types_of(tables[index].name) for index in problem.units[unit].tables]
    return all(types is None or ShardingType.TABLE_WISE in types for types in allowed)
