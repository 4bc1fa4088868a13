"""Placements whose wide shards have devices of their own.

A wide shard gives all others on its device more lanes than they need (see CostModel). With one on every device, one
more costs no lanes, and no single move frees a device of all of them: a search that begins so ends with wide units on
all devices, or with all of them cut. So some are left whole on few devices, and the others are cut. How many, and on
how many devices, is judged by devices of two sorts, each even.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.problem.tuning import INFINITE
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.partitioner import GreedyPass, place_by_networks

PARTS_NEXT_TO_WIDE = np.arange(8)[:, None] / 8
"""Of the narrow shards, those that are on devices of the wide ones."""


def separated(
    problem: Problem, options: OptionTable, loads: FloatArray, *, most_ms: float, most_work: int
) -> list[Placement]:
    """Return placements of a set that is not large, the cheapest of each number of lanes that some devices keep to.

    Args:
        problem: what is placed.
        options: cuts of all units by columns.
        loads: [kinds] additive.
        most_ms: both computes of a device, above which a placement gains nothing.
        most_work: device evaluations and their like.
    """
    until = problem.work + most_work
    lanes = sorted(set(problem.lanes(options.kinds[options.start]).tolist()))[:-1][-problem.tuning.num_best :]
    found: list[Placement] = []
    for left, least in zip(range(len(lanes), 0, -1), lanes, strict=True):
        ends = problem.work + (until - problem.work) // left
        passes = list(_passes(problem, options, loads, least)) if problem.work < ends else []
        even_ms = _even_ms(problem, passes)
        hopeful = [passes[at] for at in np.argsort(even_ms, kind="stable").tolist() if even_ms[at] <= most_ms]
        work = (
            problem.work + np.cumsum([len(each.kinds) for each in hopeful]) * problem.num_devices // BULK_PER_EVALUATION
        )
        chosen = hopeful[: int((work <= ends).sum())]
        placed = [each for each in (place_by_networks(problem, chosen) if chosen else []) if each is not None]
        found += [problem.cheapest(placed)] if placed else []
    return found


def _passes(problem: Problem, options: OptionTable, loads: FloatArray, lanes: float) -> Iterator[GreedyPass]:
    """Yield greedy passes that leave some units wide, and cut the others to these lanes.

    Those stay wide that have to, then those of most load.
    """
    largest, num_devices = options.kinds[options.start], problem.num_usable_devices
    mean_load = float(loads[problem.whole].sum()) / num_devices
    is_small, is_narrow = loads[largest] <= mean_load, problem.lanes(largest) <= lanes
    whole, narrow = options.first_of(is_small), options.first_of(is_small & is_narrow)
    wide = np.flatnonzero(~is_narrow[whole])
    if not len(wide):
        return
    of_units = np.array([loads[options.shards_of(option)].sum() for option in whole[wide].tolist()])
    may_be_cut = is_narrow[narrow[wide]]
    order = np.lexsort((-of_units, may_be_cut))
    fewest = max(1, int(np.count_nonzero(~may_be_cut)))
    counts = np.linspace(fewest, len(wide), problem.tuning.num_judged).astype(np.int64)
    for num in dict.fromkeys(counts.tolist()):
        state = narrow.copy()
        state[wide[order[:num]]] = whole[wide[order[:num]]]
        kinds = options.shards(state)
        least = max(1, math.ceil(float(of_units[order[:num]].sum()) / mean_load))
        for count in range(least, min(least + 2, num_devices)):
            yield GreedyPass(
                kinds=kinds, dim_limit=INFINITE, memory_price=0.0, spreads=True, lanes=lanes, num_wide=count
            )


def _even_ms(problem: Problem, passes: Sequence[GreedyPass]) -> FloatArray:
    """Return [passes] both computes of the slower sort of device, with the best part of narrow shards on either."""
    if not passes:
        return np.empty(0)
    sums = []
    for each in passes:
        is_wide = problem.lanes(each.kinds) > each.lanes
        wide, narrow = (problem.kinds.representation[each.kinds[own]].sum(axis=0) for own in (is_wide, ~is_wide))
        of_narrow = (1 - PARTS_NEXT_TO_WIDE) * narrow / (problem.num_usable_devices - each.num_wide)
        sums.append(np.stack(((wide + PARTS_NEXT_TO_WIDE * narrow) / each.num_wide, of_narrow)))
    times = problem.compute_ms(np.array(sums), per_work=BULK_PER_EVALUATION).sum(axis=-1)
    least: FloatArray = times.max(axis=1).min(axis=1)
    return least
