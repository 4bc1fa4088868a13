"""Proposals: placements in which many units at once are cut by rows or copied. Descends from none.

A family pays for its call and its collectives as soon as one table has it, which no step that converts a single table
may earn back. So a placement by columns is changed by whole assignments.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TRAFFIC, Collective
from neuroshard_planner.search.assignments import Assignment
from neuroshard_planner.search.local_search import MEMORY
from neuroshard_planner.search.placed_options import Form, Forms, PlacedOption, with_options


def proposed(
    problem: Problem, start: Placement, forms: Forms, assignment: Assignment, *, loads: FloatArray, bound: Sequence[int]
) -> Placement | None:
    """Return a start whose units have the forms of an assignment. None: a bound unit found no room.

    Where there is no room for its form, a unit stays by columns; those that may not go first.

    Args:
        problem: what is placed.
        start: whole units and units cut by columns, also of units that may not be.
        forms: of the problem's units.
        assignment: of forms.
        loads: [kinds] additive.
        bound: units that may not be by columns.
    """
    kinds = problem.kinds
    wanted = assignment.by_unit
    load: FloatArray = np.zeros(problem.num_devices)
    room = np.full(problem.num_devices, problem.memory.shard_capacity_bytes)
    _change(load, room, start.devices, loads[start.kinds], kinds.memory_bytes[start.kinds])
    chosen: list[PlacedOption] = []
    # Those that may not stay by columns first, then the heaviest.
    for unit in sorted(wanted, key=lambda unit: (unit not in bound, -float(loads[wanted[unit].pieces].max()))):
        own = kinds.unit[start.kinds] == unit
        _change(load, room, start.devices[own], -loads[start.kinds[own]], -kinds.memory_bytes[start.kinds[own]])
        option = next(forms.placed(unit, wanted[unit], load, room), None)
        if option is not None:
            _change(load, room, option.devices, loads[option.kinds], kinds.memory_bytes[option.kinds])
            chosen.append(option)
        elif unit in bound:
            return None
        else:
            _change(load, room, start.devices[own], loads[start.kinds[own]], kinds.memory_bytes[start.kinds[own]])
    return with_options(problem, start, chosen)


def _change(
    load: FloatArray, room: IndexArray, devices: IndexArray, added: FloatArray, added_bytes: IndexArray
) -> None:
    np.add.at(load, devices, added)
    np.subtract.at(room, devices, added_bytes)


def reference_prices(problem: Problem, forms: Forms, traits: FloatArray, start: Placement | None) -> FloatArray:
    """Return [levels + 1] milliseconds of one unit more of each peak where all families are in use.

    Families that the start does not use are taken at half of the traffic that all units would bring them.
    """
    peaks = traits[problem.whole].sum(axis=0)[:NUM_LEVELS] / problem.num_devices
    if start is not None:
        peaks = problem.device_levels([start])[0].max(axis=0)
    most = np.zeros(len(Collective))
    for unit in range(len(problem.units)):
        traffic = [problem.kinds.traffic[form.pieces].sum(axis=0) * form.num_placed for form in forms.of(unit)]
        most += np.max(traffic, axis=0) / problem.num_devices
    peaks[TRAFFIC] = np.where(peaks[TRAFFIC] > 0, peaks[TRAFFIC], most / 2)
    return np.append(problem.step_cost.prices(peaks), 0.0)


def packed_proposal(problem: Problem, forms: Forms, traits: FloatArray, chosen: dict[int, Form]) -> Placement | None:
    """Return all units placed by memory, largest first. None: no room was found.

    Args:
        problem: of which no placement by columns fits.
        forms: of its units.
        traits: [kinds, levels + 1] of its kinds.
        chosen: the forms of some units; the others are by columns, in as few pieces as fit.
    """
    levels = np.zeros((problem.num_devices, NUM_LEVELS + 1))
    options: list[PlacedOption] = []
    sizes = problem.kinds.memory_bytes[problem.whole]
    for unit in sorted(range(len(problem.units)), key=lambda unit: (unit not in chosen, -sizes[unit])):
        room = problem.memory.shard_capacity_bytes - levels[:, MEMORY]
        by_columns = (form for form in forms.of(unit) if form.sharding_type.is_by_columns)
        ways = [chosen[unit]] if unit in chosen else by_columns
        option = next((each for form in ways for each in forms.placed(unit, form, levels[:, MEMORY], room)), None)
        if option is None:
            return None
        levels[option.devices] += traits[option.kinds]
        options.append(option)
    return Placement(
        kinds=np.concatenate([each.kinds for each in options]),
        devices=np.concatenate([each.devices for each in options]),
    )


def packings(
    problem: Problem, forms: Forms, traits: FloatArray, families: Collection[int], bound: Sequence[int]
) -> Iterator[Placement]:
    """Yield placements by memory: of further families those that must be, and 0, 1, 2, ... of the largest units."""
    prices = reference_prices(problem, forms, traits, None)
    cost = traits @ prices
    chosen: dict[int, Form] = {}
    for unit in range(len(problem.units)):
        own = [form for form in forms.of(unit) if form.family in families]
        if own:
            chosen[unit] = min(own, key=lambda form: float(cost[form.pieces].sum()) * form.num_placed)
    if any(unit not in chosen for unit in bound):
        return
    sizes = problem.kinds.memory_bytes[problem.whole]
    ranked = sorted((unit for unit in chosen if unit not in set(bound)), key=lambda unit: -sizes[unit])
    for count in (0, *_counts(len(ranked))):
        units = [*bound, *ranked[:count]]
        placement = packed_proposal(problem, forms, traits, {unit: chosen[unit] for unit in units}) if units else None
        if placement is not None:
            yield placement


def bound_to_convert(problem: Problem) -> list[int]:
    """Return the units that may neither be cut by columns nor be whole on a device."""
    return [unit for unit, own in enumerate(problem.sharding_types) if ShardingType.TABLE_WISE not in own]


def _counts(most: int) -> list[int]:
    """Return 1, 2, 3, ... up to and with ``most``, above 16 in steps of an eighth."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count += max(1, count // 8)
    return [*counts, most] if most else []
