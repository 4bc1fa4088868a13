"""What placements promise: their cost if local search evened out their shards over all devices.

Greedy placement is bad at evening out few large shards, which cost less in sum; local search is better at it. So what a
start costs says little of what a descent from it ends at.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC


def most_promising(problem: Problem, placements: Sequence[Placement]) -> list[int]:
    """Return the positions of the placements, those that promise least first."""
    if not placements:
        return []
    order: list[int] = np.argsort(promised_ms(problem, placements), kind="stable").tolist()
    return order


def promised_ms(problem: Problem, placements: Sequence[Placement]) -> FloatArray:
    """Return [p] the cost of a device that has an even share of all levels, or those of the largest shard alone."""
    representation, traffic = problem.kinds.representation, problem.kinds.traffic
    every, row = np.unique(np.concatenate([each.kinds for each in placements]), return_inverse=True)
    alone = np.empty((len(every), NUM_LEVELS))
    alone[:, TIMES] = problem.pass_levels(representation[every], in_bulk=True)
    alone[:, TRAFFIC] = traffic[every]
    ends = np.cumsum([len(each.kinds) for each in placements])
    largest = np.array([alone[own].max(axis=0) for own in np.split(row, ends[:-1])])
    even = np.empty_like(largest)
    sums = np.array([representation[each.kinds].sum(axis=0) for each in placements])
    even[:, TIMES] = problem.pass_levels(sums / problem.num_devices)
    even[:, TRAFFIC] = np.array([traffic[each.kinds].sum(axis=0) for each in placements]) / problem.num_devices
    return problem.step_cost.total_ms(np.maximum(even, largest))
