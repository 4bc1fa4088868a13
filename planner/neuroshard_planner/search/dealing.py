"""Dealing out: from a way for each unit to a placement, with its devices.

An assignment is put into a placement as it is, or next to what memory allows. Then its shards are dealt out: blocks of
rows of nodes go first, as if nothing else were there, and the units by columns are split and placed next to them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import NODE_ROWS, FloatArray, IndexArray
from neuroshard_costs.step_cost import TRAFFIC, Collective

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.assignments import Assignment
from neuroshard_planner.search.estimator import Traits, reference_prices
from neuroshard_planner.search.local_search import LocalSearch
from neuroshard_planner.search.options import DevicePlaces, Form, Forms, OptionTable, PlacedOption, with_options
from neuroshard_planner.search.proposers import SplitSearch

MOST_PACKINGS = 16  # for each set of families


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


def packed_proposal(problem: Problem, forms: Forms, chosen: Mapping[int, Form]) -> Placement | None:
    """Return all units placed by memory, largest first. None: no room was found.

    Args:
        problem: of which no placement by columns fits.
        forms: of its units.
        chosen: the forms of some units; the others are by columns, in as few pieces as fit.
    """
    used = np.zeros(problem.num_devices, dtype=np.int64)
    options: list[PlacedOption] = []
    sizes = problem.kinds.memory_bytes[problem.whole]
    for unit in sorted(range(len(problem.units)), key=lambda unit: (unit not in chosen, -sizes[unit])):
        by_columns = (form for form in forms.of(unit) if form.sharding_type.is_by_columns)
        ways = [chosen[unit]] if unit in chosen else by_columns
        room = problem.memory.shard_capacity_bytes - used
        option = next((each for form in ways for each in forms.placed(unit, form, used.astype(np.float64), room)), None)
        if option is None:
            return None
        used[option.devices] += problem.kinds.memory_bytes[option.kinds]
        options.append(option)
    return Placement.joined(*(each.placement for each in options))


def packings(
    problem: Problem, forms: Forms, traits: FloatArray, families: Collection[int], bound: Sequence[int]
) -> Iterator[Placement]:
    """Yield placements by memory: of further families those that must be, and up to 16 even parts of the largest."""
    cost = weighted_sum(traits, reference_prices(problem, forms, traits, None))
    chosen: dict[int, Form] = {}
    for unit in range(len(problem.units)):
        own = [form for form in forms.of(unit) if form.family in families]
        if own:
            chosen[unit] = min(own, key=lambda form: float(cost[form.pieces].sum()) * form.num_placed)
    if not chosen.keys() >= set(bound):
        return
    sizes = problem.kinds.memory_bytes[problem.whole]
    ranked = sorted(chosen.keys() - set(bound), key=lambda unit: (-sizes[unit], unit))
    for count in dict.fromkeys(len(ranked) * part // MOST_PACKINGS for part in range(MOST_PACKINGS + 1)):
        units = [*bound, *ranked[:count]]
        placement = packed_proposal(problem, forms, {unit: chosen[unit] for unit in units}) if units else None
        if placement is not None:
            yield placement


class Dealing:
    """Deals out the shards of placements of one problem."""

    def __init__(self, problem: Problem, options: OptionTable, *, traits: Traits) -> None:
        """``options`` are cuts of all units by columns."""
        self._problem = problem
        self._options = options
        self._traits = traits

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
        fixed = placement.at(stays)
        fixed = nodes_dealt_out(problem, fixed, loads) or fixed
        by_columns = np.flatnonzero(np.bincount(kinds.unit[fixed.kinds], minlength=len(problem.units)) == 0)
        if not len(by_columns):
            return fixed if problem.fits(fixed) else None
        until = problem.work + int(problem.tuning.split_share * (work_budget - problem.work))
        options = self._options.only(by_columns)
        known = [] if cuts is None else [self._known(options, by_columns, placement, cuts[by_columns])]
        splits = SplitSearch(problem, options, loads=loads, work_budget=until, fixed=fixed, known=known)
        local = LocalSearch(problem, traits=self._traits, work_budget=work_budget)
        candidates = splits.run() if refines else splits.proposed(problem.tuning.opening_grid, problem.tuning.num_best)
        found = local.improve_all([candidate.placement for candidate in candidates])
        found = [each for each in found if problem.fits(each)]
        return problem.cheapest(found) if found else None

    def _known(self, options: OptionTable, units: IndexArray, placement: Placement, cuts: IndexArray) -> IndexArray:
        """Return the state of these units that has the cuts.

        A unit without a cut, for whose form there was no room, has as many shards as it has in the placement, or the
        next more that an option has.
        """
        num_shards = np.bincount(self._problem.kinds.unit[placement.kinds], minlength=len(self._problem.units))[units]
        state = options.first_of(options.count >= num_shards[options.unit])
        return np.where(cuts < 0, state, self._options.positions(units)[cuts])

    def _loads(self, placement: Placement) -> FloatArray:
        """Return [kinds] what each kind costs where it is, by the placement's prices; columns have a limit instead."""
        problem = self._problem
        prices = problem.step_cost.prices(problem.device_levels([placement])[0].max(axis=0))
        prices[TRAFFIC.start + Collective.POOLED_EMBEDDINGS] = 0.0
        return weighted_sum(self._traits(), np.append(prices, 0.0))


def nodes_dealt_out(problem: Problem, fixed: Placement, loads: FloatArray) -> Placement | None:
    """Return shards whose blocks of rows of nodes are on the least loaded nodes, heaviest unit first. None: no room.

    Args:
        problem: what is placed.
        fixed: all shards of some units, none by columns.
        loads: [kinds]
    """
    kinds, topology = problem.kinds, problem.request.topology
    is_block = kinds.family[fixed.kinds] == NODE_ROWS
    others = fixed.at(~is_block)
    blocks, nodes = fixed.kinds[is_block], fixed.devices[is_block] // topology.devices_per_domain
    room: IndexArray = problem.memory.shard_capacity_bytes - problem.used_bytes(others)
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
        chosen = usable[: len(pieces), None] * topology.devices_per_domain + np.arange(topology.devices_per_domain)
        placed = Placement(kinds=np.repeat(pieces, topology.devices_per_domain), devices=chosen.ravel())
        load[placed.devices] += loads[placed.kinds]
        room[placed.devices] -= kinds.memory_bytes[placed.kinds]
        found = Placement.joined(found, placed)
    return found
