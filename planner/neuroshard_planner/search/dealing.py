"""Dealing out: the shards of a placement on other devices, each unit in the family that it has.

Blocks of rows of nodes go first, as if nothing else were there: where they were, they had been added to a placement of
all units by columns. Then the units by columns are split and placed next to them, and local search follows.
"""

import numpy as np
from neuroshard_costs.shards import NODE_ROWS, FloatArray, IndexArray

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import TRAFFIC, Collective
from neuroshard_planner.search.beam_search import SplitSearch
from neuroshard_planner.search.conversion import additive_traits
from neuroshard_planner.search.local_search import LocalSearch, joined
from neuroshard_planner.search.placed_options import DevicePlaces
from neuroshard_planner.search.sharding_options import OptionTable


class Dealing:
    """Deals out the shards of placements of one problem."""

    def __init__(self, problem: Problem, options: OptionTable, *, slopes: FloatArray) -> None:
        """``options`` are cuts of all units by columns; ``slopes`` [r, 2] make loads additive."""
        self._problem = problem
        self._options = options
        self._slopes = slopes

    def dealt_out(
        self, placement: Placement, *, work_budget: int, refines: bool, cuts: IndexArray | None = None
    ) -> Placement | None:
        """Return the cheapest placement found that fits. None: there is none.

        Args:
            placement: says the family of each unit, and the widths of its blocks of rows.
            work_budget: ``problem.work`` at which the search ends.
            refines: whether a beam search refines the cuts that are proposed.
            cuts: [units] an option of each unit that is by columns, for one more proposal; -1: it has none.
                None: there is no further proposal.
        """
        problem, kinds = self._problem, self._problem.kinds
        loads = self._loads(placement)
        stays = ~problem.is_cut_by_columns(placement)
        fixed = Placement(kinds=placement.kinds[stays], devices=placement.devices[stays])
        fixed = nodes_dealt_out(problem, fixed, loads) or fixed
        by_columns = np.flatnonzero(np.bincount(kinds.unit[fixed.kinds], minlength=len(problem.units)) == 0)
        if not len(by_columns):
            return fixed if problem.fits(fixed) else None
        until = problem.work + int(problem.tuning.dealing_split_share * (work_budget - problem.work))
        options = self._options.only(by_columns)
        known = [] if cuts is None else [self._known(options, by_columns, placement, cuts)]
        splits = SplitSearch(problem, options, loads=loads, work_budget=until, fixed=fixed, known=known)
        local = LocalSearch(problem, slopes=self._slopes, work_budget=work_budget)
        candidates = (
            splits.run()[: problem.tuning.num_best]
            if refines
            else splits.proposed(problem.tuning.opening_grid, problem.tuning.num_best)
        )
        found = [local.improve(candidate.placement) for candidate in candidates]
        found = [each for each in found if problem.fits(each)]
        return found[int(problem.total_ms(found).argmin())] if found else None

    def _known(self, options: OptionTable, units: IndexArray, placement: Placement, cuts: IndexArray) -> IndexArray:
        """Return the state of these units that has the cuts.

        A unit without a cut, for whose form there was no room, has as many shards as it has in the placement, or the
        next more that an option has.
        """
        state = self._options.positions(units)[cuts[units]]
        num_shards = np.bincount(self._problem.kinds.unit[placement.kinds], minlength=len(self._problem.units))
        for row in np.flatnonzero(cuts[units] < 0).tolist():
            first, last = int(options.first[row]), int(options.last[row])
            counts = options.count[first : last + 1]
            state[row] = min(first + int(counts.searchsorted(num_shards[units[row]])), last)
        return state

    def _loads(self, placement: Placement) -> FloatArray:
        """Return [kinds] what each kind costs where it is, by the placement's prices; columns have a limit instead."""
        problem = self._problem
        prices = problem.step_cost.prices(problem.device_levels([placement])[0].max(axis=0))
        prices[TRAFFIC.start + Collective.POOLED_EMBEDDINGS] = 0.0
        loads: FloatArray = additive_traits(problem, self._slopes) @ np.append(prices, 0.0)
        return loads


def nodes_dealt_out(problem: Problem, fixed: Placement, loads: FloatArray) -> Placement | None:
    """Return shards whose blocks of rows of nodes are on the least loaded nodes, heaviest unit first. None: no room.

    Args:
        problem: what is placed.
        fixed: all shards of some units, none by columns.
        loads: [kinds]
    """
    kinds, topology = problem.kinds, problem.request.topology
    is_block = kinds.family[fixed.kinds] == NODE_ROWS
    others = Placement(kinds=fixed.kinds[~is_block], devices=fixed.devices[~is_block])
    blocks, nodes = fixed.kinds[is_block], fixed.devices[is_block] // topology.devices_per_node
    room = np.full(problem.num_devices, problem.memory.shard_capacity_bytes)
    np.subtract.at(room, others.devices, kinds.memory_bytes[others.kinds])
    load = np.zeros(problem.num_devices)
    unit_of = kinds.unit[blocks]
    totals = np.bincount(unit_of, weights=loads[blocks], minlength=len(problem.units))
    found = others
    for unit in sorted(set(unit_of.tolist()), key=lambda unit: (-totals[unit], unit)):
        own = unit_of == unit
        _, first = np.unique(nodes[own], return_index=True)
        pieces: IndexArray = blocks[own][first]
        pieces = pieces[np.argsort(-loads[pieces], kind="stable")]
        usable = DevicePlaces(problem, unit, load, room).nodes(int(kinds.memory_bytes[pieces].max()))
        if len(usable) < len(pieces):
            return None
        chosen = usable[: len(pieces), None] * topology.devices_per_node + np.arange(topology.devices_per_node)
        placed = Placement(kinds=np.repeat(pieces, topology.devices_per_node), devices=chosen.ravel())
        load[placed.devices] += loads[placed.kinds]
        room[placed.devices] -= kinds.memory_bytes[placed.kinds]
        found = joined(found, placed)
    return found
