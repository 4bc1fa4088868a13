"""The cheapest plan of a small problem by trying all: every way to shard every table, on every choice of devices."""

from itertools import combinations_with_replacement, product

import numpy as np
from neuroshard_api.sharding.kinds import Family, ShardingType
from neuroshard_costs.shards import FAMILIES
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize

QUAD = 4
AT_ONCE = 20_000


def unit_placements(problem: Problem, unit: int) -> list[Placement]:
    """Return all placements of one unit."""
    definition, types = problem.units[unit], problem.sharding_types[unit]
    topology = problem.request.topology
    quads, size = definition.num_columns // QUAD, topology.devices_per_node
    found: list[list[tuple[ShardSize, int]]] = []

    def dealt(num_places: int) -> list[list[tuple[int, int]]]:
        """Return every way to deal the columns out to places, as pairs of place and columns."""
        return [
            [(place, QUAD * count) for place, count in enumerate(np.bincount(chosen, minlength=num_places)) if count]
            for chosen in combinations_with_replacement(range(num_places), quads)
        ]

    if ShardingType.COLUMN_WISE in types or ShardingType.TABLE_WISE in types:
        by_columns = [
            [(ShardSize(definition.num_rows, width), device) for device, width in pairs]
            for pairs in dealt(problem.num_devices)
        ]
        found += [each for each in by_columns if len(each) <= definition.max_shards]
    everywhere = {ShardingType.ROW_WISE: Family.ROWS, ShardingType.DATA_PARALLEL: Family.REPLICATED}
    for kind, family in everywhere.items():
        if kind in types:
            block = problem.row_block(unit, FAMILIES.index(family), definition.num_columns)
            found.append([(block, device) for device in range(problem.num_devices)])
    node_rows = FAMILIES.index(Family.NODE_ROWS)
    if ShardingType.TABLE_ROW_WISE in types:
        found += [
            [
                (problem.row_block(unit, node_rows, width), node * size + local)
                for node, width in pairs
                for local in range(size)
            ]
            for pairs in dealt(topology.num_nodes)
            if len(pairs) == 1 or ShardingType.GRID in types
        ]
    return [
        Placement(
            kinds=problem.kinds_of([unit] * len(shards), [each for each, _ in shards]),
            devices=np.array([device for _, device in shards]),
        )
        for shards in found
    ]


def least_ms(problem: Problem) -> float:
    """Return the cost of the cheapest plan that fits; infinite where none does."""
    options = [unit_placements(problem, unit) for unit in range(len(problem.units))]
    sums, traffic, memory = [], [], []
    for own in options:
        sums.append(np.array([problem.device_sums(each.kinds, each.devices) for each in own]))
        traffic.append(np.array([problem.traffic(each.kinds, each.devices, problem.num_devices) for each in own]))
        memory.append(
            np.array(
                [np.bincount(each.devices, problem.kinds.memory_bytes[each.kinds], problem.num_devices) for each in own]
            )
        )
    choices = np.array(list(product(*(range(len(own)) for own in options))))
    best = np.inf
    for first in range(0, len(choices), AT_ONCE):
        rows = choices[first : first + AT_ONCE].T
        levels = np.empty((rows.shape[1], problem.num_devices, NUM_LEVELS))
        levels[:, :, TRAFFIC] = sum(values[row] for values, row in zip(traffic, rows, strict=True))
        levels[:, :, TIMES] = problem.pass_levels(sum(values[row] for values, row in zip(sums, rows, strict=True)))
        used = sum(values[row] for values, row in zip(memory, rows, strict=True)).max(axis=1)
        totals = problem.step_cost.total_ms(levels.max(axis=1))
        best = min(best, float(np.where(used <= problem.memory.shard_capacity_bytes, totals, np.inf).min()))
    return best
