"""Placements whose tables by columns fill all devices to one number of columns, next to copies of all others.

Columns of a device come in steps, so that the all-to-all is shorter only where every device has a step less. That takes
as many more copies at once as make room on all devices: no change of a single table gains anything.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.host_tables import ON_DEVICE
from neuroshard_costs.shards import COLUMNS, REPLICATED, FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.options import Forms, OptionTable

POOLED = Collective.POOLED_EMBEDDINGS
PARTS_OF_PEAK = (1, 2, 3, 4)
"""Shards that a device is filled with."""


class Fill(NamedTuple):
    """A form of all units; those by columns are anywhere."""

    placement: Placement
    cuts: IndexArray
    """[units] the option by columns of each unit; -1: it has none."""
    even_ms: float
    """What it costs if all shards by columns are alike."""


def fills(problem: Problem, forms: Forms, options: OptionTable, traits: FloatArray, best: Placement) -> list[Fill]:
    """Return fills that may cost less than a placement, the cheapest if all shards are alike first.

    Args:
        problem: what is placed.
        forms: of its units.
        options: cuts of its units by columns.
        traits: [kinds, levels + 1] additive times, traffic, and memory.
        best: units that are neither by columns nor copied, or in host memory, stay as they are here.
    """
    family = np.zeros(len(problem.units), dtype=np.int64)
    family[problem.kinds.unit[best.kinds]] = problem.kinds.family[best.kinds]
    is_free = np.isin(family, (COLUMNS, REPLICATED))
    is_free[problem.kinds.unit[best.kinds[problem.kinds.kernel[best.kinds] != ON_DEVICE]]] = False
    copies = {unit: copy for unit in np.flatnonzero(is_free).tolist() if (copy := _copy(forms, unit)) is not None}
    may_copy = [unit for unit in copies if _may_be_by_columns(forms, unit)]
    columns = problem.kinds.traffic[problem.whole, POOLED]
    by_columns = [unit for unit in np.flatnonzero(is_free).tolist() if unit not in copies or unit in may_copy]
    if not may_copy or (columns[by_columns] != np.rint(columns[by_columns])).any():
        return []
    prices = problem.step_cost.prices(problem.device_levels([best])[0].max(axis=0))
    whole = np.array(may_copy)
    copied = np.array([copies[unit] for unit in may_copy])
    own, all_copies = (weighted_sum(traits[kinds][:, :NUM_LEVELS], prices) for kinds in (problem.whole[whole], copied))
    order = whole[np.argsort((all_copies - own / problem.num_devices) / columns[whole], kind="stable")]
    stays = best.at(~is_free[problem.kinds.unit[best.kinds]])
    always = [unit for unit in copies if unit not in set(may_copy)]
    (best_ms,) = problem.total_ms([best]).tolist()
    found: list[Fill] = []
    for count, peak in _counts(problem, columns, by_columns, order):
        copied_units = [*always, *order[:count].tolist()]
        filled = np.array(sorted(set(by_columns) - set(copied_units)))
        kinds = np.array([copies[unit] for unit in copied_units], dtype=np.int64)
        for cuts in _cuts(problem, options, filled, peak):
            even_ms = _even_ms(problem, stays, kinds, options.shards(cuts), peak)
            if even_ms < best_ms * (1 - problem.tuning.least_round_gain):
                of_units = np.full(len(problem.units), -1)
                of_units[filled] = cuts
                found.append(Fill(_placed(problem, stays, kinds, filled), of_units, even_ms))
    return sorted(found, key=lambda fill: fill.even_ms)


def _copy(forms: Forms, unit: int) -> int | None:
    """Return the kind of a unit's copies. None: it may not be copied."""
    return next((int(form.pieces[0]) for form in forms.of(unit) if form.family == REPLICATED), None)


def _may_be_by_columns(forms: Forms, unit: int) -> bool:
    return any(form.family == COLUMNS for form in forms.of(unit))


def _counts(
    problem: Problem, columns: FloatArray, by_columns: Sequence[int], order: IndexArray
) -> Iterator[tuple[int, float]]:
    """Yield the fewest copies, and the columns of each device, of all numbers of columns that are fewer by a step."""
    step = float(np.gcd.reduce(problem.min_shard_width[list(by_columns)]))
    left, before = float(columns[list(by_columns)].sum()), np.inf
    for count in range(len(order) + 1):
        peak = float(np.ceil(left / problem.num_devices / step)) * step
        if 0 < peak < before:
            yield count, peak
        before = peak
        left -= float(columns[order[count]]) if count < len(order) else 0.0


def _cuts(problem: Problem, options: OptionTable, units: IndexArray, peak: float) -> Iterator[IndexArray]:
    """Yield [units] cuts of these units into shards that are no wider than a part of the peak, the fewest."""
    known = set[bytes]()
    widest = problem.kinds.traffic[options.kinds[options.start], POOLED]
    for parts in PARTS_OF_PEAK:
        cuts = np.array([_widest(options, unit, widest, peak / parts) for unit in units.tolist()])
        if (cuts >= 0).all() and cuts.tobytes() not in known:
            known.add(cuts.tobytes())
            yield cuts


def _widest(options: OptionTable, unit: int, widest: FloatArray, most: float) -> int:
    """Return the option of a unit in the fewest shards that are no wider; -1: there is none."""
    first, last = int(options.first[unit]), int(options.last[unit])
    fitting = np.flatnonzero(widest[first : last + 1] <= most)
    return first + int(fitting[0]) if len(fitting) else -1


def _even_ms(problem: Problem, stays: Placement, copies: IndexArray, shards: IndexArray, peak: float) -> float:
    """Return the cost where all shards by columns are alike, as many as the device with most has on each."""
    kinds, every = problem.kinds, problem.num_devices
    most = -(-len(shards) // every)
    num_alike = most * every / len(shards)
    levels = np.zeros(NUM_LEVELS)
    sums, traffic = (
        (values[stays.kinds].sum(axis=0) + num_alike * values[shards].sum(axis=0)) / every + values[copies].sum(axis=0)
        for values in (kinds.representation, kinds.traffic)
    )
    levels[TIMES] = problem.pass_levels(sums[None])[0]
    levels[TRAFFIC] = traffic
    levels[TRAFFIC.start + POOLED] = max(peak, most * float(kinds.traffic[shards, POOLED].min()))
    return float(problem.step_cost.total_ms(levels))


def _placed(problem: Problem, stays: Placement, copies: IndexArray, units: IndexArray) -> Placement:
    every = np.arange(problem.num_devices)
    copied = Placement(kinds=np.repeat(copies, len(every)), devices=np.tile(every, len(copies)))
    filled = Placement(kinds=problem.whole[units], devices=every[units % len(every)])
    return Placement.joined(stays, copied, filled)
