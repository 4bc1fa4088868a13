"""The partitioner: places shards greedily on devices, many candidates (lanes) side by side in one array program.

Loads are additive here (see estimator). The networks themselves judge the result, and local search fixes what the
tangent got wrong. A few lists are placed by the networks in place of loads, as NeuroShard (MLSys 2023) does, section
3.4: far fewer in the same time, but even where the tangent is far off.

Where cuts may be anywhere, columns lie end to end over the devices, as many on each (McNaughton's rule of wrapping
around). That is the least peak of columns that there is, with the fewest cuts: one less than there are devices. Even
cuts of equal tables do not come to such a peak: 26 tables of 128 columns on 64 devices have 64 in halves, and 52 so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import BULK_PER_EVALUATION, Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.tuning import INFINITE

WITH_OWN = 1e3  # dominates every score, so that shards of a unit are apart unless the limit or memory forbids it
ABOVE_LIMIT = 1e6  # dominates that too, so that the limit yields only to memory


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyPass:
    """One greedy pass."""

    kinds: IndexArray
    """[n] the shards to place."""
    dim_limit: float
    """A device above this dimension sum is taken only if no other has memory."""
    memory_price: float
    """Weight of a device's share of used memory next to its share of load; 0 places by load alone."""
    spreads: bool = False
    """Whether a device with a shard of the same unit is taken only if all others are above the limit or lack memory."""
    lanes: float = INFINITE
    """Shards that give their device more lanes come first, and go on few devices; `place` pays no heed to it."""
    num_wide: int = 0
    """The number of these devices, the first of those that may hold most units."""


def place(
    problem: Problem, lanes: Sequence[GreedyPass], loads: FloatArray, *, fixed: Placement | None = None
) -> list[Placement | None]:
    """Place each lane's shards in descending order of size, each on the device with the lowest score.

    Args:
        problem: whose devices they go to.
        lanes: the passes.
        loads: [kinds]
        fixed: shards that are on their devices already, the same for all lanes; placements are without them.

    Returns:
        A placement for each lane; None where a shard found no device with memory.
    """
    num_lanes, width = len(lanes), max(len(lane.kinds) for lane in lanes)
    problem.greedy_probes += num_lanes * width * problem.num_devices
    capacity = float(problem.memory.shard_capacity_bytes)
    kinds = np.full((num_lanes, width), -1, dtype=np.int64)
    for row, lane in enumerate(lanes):
        kinds[row, : len(lane.kinds)] = lane.kinds
    real = kinds >= 0
    load = np.where(real, loads[kinds], 0.0)
    held = _held(problem, fixed, loads)
    unit = (load.sum(axis=1, keepdims=True) + held[0].sum()) / problem.num_devices
    load /= unit
    memory = np.where(real, problem.kinds.memory_bytes[kinds] / capacity, 0.0)
    columns = np.where(real, problem.kinds.traffic[kinds, Collective.POOLED_EMBEDDINGS], 0.0)
    price = np.array([lane.memory_price for lane in lanes])[:, None]

    size = np.where(real, np.maximum(load, price * memory), -1.0)
    order = np.argsort(-size, axis=1, kind="stable")
    kinds, load, memory, columns = (np.take_along_axis(each, order, axis=1) for each in (kinds, load, memory, columns))
    dim_limit = np.array([lane.dim_limit for lane in lanes])
    allowed = None if problem.allowed is None else problem.allowed[problem.kinds.unit[kinds]]
    begin = np.repeat(held[:, None], num_lanes, axis=1)
    begin[0] = begin[0] / unit + price * begin[1]
    units = np.where(kinds >= 0, problem.kinds.unit[kinds], -1)
    units_held = _units_held(problem, lanes, units, fixed)
    chosen, fits = _place_sorted(
        load, memory, columns, begin, price=price, dim_limit=dim_limit, allowed=allowed, held=units_held
    )
    placements: list[Placement | None] = []
    for row, lane in enumerate(lanes):
        count = len(lane.kinds)
        placed = Placement(kinds=kinds[row, :count], devices=chosen[row, :count])
        placements.append(placed if fits[row] else None)
    return placements


def place_by_networks(
    problem: Problem, lanes: Sequence[GreedyPass], *, fixed: Placement | None = None
) -> list[Placement | None]:
    """Place each lane's shards as `place` does, each on the device that costs least with it by the networks.

    The shard that costs most alone is first. Prices of memory do not count. Where shards of many lanes have devices of
    their own, those are first.
    """
    lists = [lane.kinds for lane in lanes]
    every, position = np.unique(np.concatenate(lists), return_inverse=True)
    alone = problem.compute_ms(problem.kinds.representation[every], per_work=BULK_PER_EVALUATION).sum(axis=1)
    is_wide = np.append(problem.lanes(every), 0.0) > np.array([lane.lanes for lane in lanes])[:, None]
    shards = np.full((len(lanes), max(map(len, lists))), len(every), dtype=np.int64)
    for row, wide, own in zip(shards, is_wide, np.split(position, np.cumsum([*map(len, lists)])[:-1]), strict=True):
        row[: len(own)] = own[np.lexsort((-alone[own], ~wide[own]))]
    added = np.vstack((_brought(problem, every), np.zeros(problem.kinds.representation.shape[1] + 2)))
    held = np.zeros((problem.num_devices, added.shape[1]))
    if fixed is not None:
        np.add.at(held, fixed.devices, _brought(problem, fixed.kinds))
    used = np.repeat(held[None], len(lanes), axis=0)
    limits = np.array([lane.dim_limit for lane in lanes])[:, None]
    chosen, fits, rows = np.empty_like(shards), np.ones(len(lanes), dtype=np.bool_), np.arange(len(lanes))
    units = np.append(problem.kinds.unit[every], -1)[shards]
    units_held = _units_held(problem, lanes, units, fixed)
    num_held = np.zeros(problem.num_devices) if problem.allowed is None else problem.allowed.sum(axis=0)
    rank = np.argsort(np.argsort(-num_held, kind="stable"), kind="stable")
    is_narrow = rank >= np.array([lane.num_wide for lane in lanes])[:, None]
    for step, shard in enumerate(shards.T):
        after = used + added[shard, None]
        cost = problem.compute_ms(after[..., :-2], per_work=BULK_PER_EVALUATION).sum(axis=-1)
        is_out = (after[..., -2] > limits) | (after[..., -1] > problem.memory.shard_capacity_bytes)
        is_out |= is_narrow & is_wide[rows, shard, None]
        if problem.allowed is not None:
            is_out |= ~problem.allowed[problem.kinds.unit[every[np.minimum(shard, len(every) - 1)]]]
        if units_held is not None:
            cost[units_held.of_step(step)] += ABOVE_LIMIT  # here the limit itself is infinite
        cost[is_out] = np.inf
        chosen[:, step] = device = cost.argmin(axis=1)
        if units_held is not None:
            units_held.take(step, device)
        fits &= np.isfinite(cost[rows, device])
        used[rows, device] = after[rows, device]
    return [
        Placement(kinds=every[row[: len(kinds)]], devices=devices[: len(kinds)]) if has_room else None
        for kinds, row, devices, has_room in zip(lists, shards, chosen, fits.tolist(), strict=True)
    ]


def wrapped(problem: Problem, best: Placement) -> Placement | None:
    """Return a placement with its shards by columns end to end, all others as they are. None: constraints forbid it.

    Tables of much and of little time take turns.
    """
    is_laid = problem.is_cut_by_columns(best)
    units = np.array(sorted(set(problem.kinds.unit[best.kinds[is_laid]].tolist())), dtype=np.int64)
    if not len(units) or problem.allowed is not None:
        return None
    least = problem.min_shard_width[units]
    step = int(np.gcd.reduce(least))
    num_columns = np.array([problem.units[unit].num_columns for unit in units.tolist()])
    per_device = -(-int(num_columns.sum()) // (problem.num_devices * step)) * step
    times = problem.pass_levels(problem.kinds.representation[problem.whole[units]]).sum(axis=1)
    falling = np.argsort(-times, kind="stable")
    order = np.stack((falling, falling[::-1]), axis=1).ravel()[: len(units)]
    ends = np.cumsum(num_columns[order])
    cuts = np.array(sorted({*ends.tolist(), *range(per_device, int(ends[-1]), per_device)}))
    widths, row = np.diff(cuts, prepend=0), order[np.searchsorted(ends, cuts)]
    most = np.array([problem.units[unit].max_shard_width for unit in units.tolist()])
    most_shards = problem.max_shards[units]
    is_wide = (widths > most[row]) & (most_shards[row] > 1)
    if is_wide.any() or (widths < least[row]).any() or (np.bincount(row, minlength=len(units)) > most_shards).any():
        return None
    sizes = list(map(ShardSize, problem.num_rows[units[row]].tolist(), widths.tolist()))
    laid = Placement(kinds=problem.kinds_of(units[row].tolist(), sizes), devices=(cuts - 1) // per_device)
    return Placement.joined(best.at(~is_laid), laid)


def _brought(problem: Problem, kinds: IndexArray) -> FloatArray:
    """Return [n, r + 2] representation, pooled columns, and memory of shards of n kinds."""
    columns = problem.kinds.traffic[kinds, Collective.POOLED_EMBEDDINGS]
    return np.column_stack((problem.kinds.representation[kinds], columns, problem.kinds.memory_bytes[kinds]))


def _held(problem: Problem, fixed: Placement | None, loads: FloatArray) -> FloatArray:
    """Return [3, devices] load, share of memory, and pooled columns that fixed shards bring their devices."""
    held = np.zeros((3, problem.num_devices))
    if fixed is not None:
        kinds = problem.kinds
        capacity = float(problem.memory.shard_capacity_bytes)
        columns = kinds.traffic[fixed.kinds, Collective.POOLED_EMBEDDINGS]
        for row, values in zip(
            held, (loads[fixed.kinds], kinds.memory_bytes[fixed.kinds] / capacity, columns), strict=True
        ):
            np.add.at(row, fixed.devices, values)
    return held


class _UnitsHeld:
    """The devices that hold each unit so far, in lanes that spread."""

    def __init__(
        self, problem: Problem, lanes: Sequence[GreedyPass], units: IndexArray, *, fixed: Placement | None
    ) -> None:
        """Begin with the fixed shards. ``units`` [lanes, n] are placed in turn; -1: the lane has ended."""
        self._units, self._lanes = units, np.arange(len(lanes))
        self._spreads = np.array([lane.spreads for lane in lanes])
        self._held = np.zeros((len(lanes), len(problem.units) + 1, problem.num_devices), dtype=np.bool_)
        if fixed is not None:
            self._held[:, problem.kinds.unit[fixed.kinds], fixed.devices] = self._spreads[:, None]

    def of_step(self, step: int) -> NDArray[np.bool_]:
        """Return the devices [lanes, devices] that hold the unit of a step."""
        held: NDArray[np.bool_] = self._held[self._lanes, self._units[:, step]]
        return held

    def take(self, step: int, devices: IndexArray) -> None:
        """Put the shards of a step on devices [lanes]."""
        self._held[self._lanes, self._units[:, step], devices] = self._spreads


def _units_held(
    problem: Problem, lanes: Sequence[GreedyPass], units: IndexArray, fixed: Placement | None
) -> _UnitsHeld | None:
    """Return the devices of the fixed units. None: no lane spreads."""
    return _UnitsHeld(problem, lanes, units, fixed=fixed) if any(lane.spreads for lane in lanes) else None


def _place_sorted(
    load: FloatArray,
    memory: FloatArray,
    columns: FloatArray,
    used: FloatArray,
    *,
    price: FloatArray,
    dim_limit: FloatArray,
    allowed: NDArray[np.bool_] | None,
    held: _UnitsHeld | None,
) -> tuple[IndexArray, NDArray[np.bool_]]:
    """Return [lanes, n] the device of each shard in turn, and [lanes] whether every shard found room.

    ``used`` [3, lanes, devices] are score, share of memory, and columns at the begin; they are brought up to date.
    """
    num_lanes, width = load.shape
    num_devices = used.shape[2]
    added = np.ascontiguousarray(np.stack([load + price * memory, memory, columns]).transpose(2, 0, 1))
    memory_room, column_room = np.ascontiguousarray(1.0 - memory.T), np.ascontiguousarray(dim_limit - columns.T)
    score, used_memory, used_columns = used
    most_memory, most_columns = most = used[1:].max(axis=2)  # over devices: most steps of most lanes exceed no limit
    flat = used.reshape(-1)
    # Positions in `flat` of each sum and lane on device 0: one pass brings all three sums up to date.
    places = (np.arange(len(used) * num_lanes) * num_devices).reshape(len(used), num_lanes)
    chosen = np.empty((width, num_lanes), dtype=np.int64)
    fits = np.ones(num_lanes, dtype=np.bool_)
    is_out, penalised = np.empty_like(score, dtype=np.bool_), np.empty_like(score)
    for step in range(width):
        ranked = score
        # Of so few numbers `count_nonzero` takes a fraction of what `any` does.
        if np.count_nonzero(most_columns > column_room[step]):
            np.greater(used_columns, column_room[step, :, None], out=is_out)
            np.multiply(is_out, ABOVE_LIMIT, out=penalised)
            penalised += score
            ranked = penalised
        if held is not None and np.count_nonzero(with_own := held.of_step(step)):
            if ranked is score:
                np.copyto(penalised, score)
                ranked = penalised
            penalised[with_own] += WITH_OWN
        has_full = allowed is not None or bool(np.count_nonzero(most_memory > memory_room[step]))
        if has_full:
            np.greater(used_memory, memory_room[step, :, None], out=is_out)
            if allowed is not None:
                is_out |= ~allowed[:, step]
            if ranked is score:
                np.copyto(penalised, score)
                ranked = penalised
            np.copyto(penalised, np.inf, where=is_out)
        index = places + ranked.argmin(axis=1, out=chosen[step])
        if has_full:
            fits &= ranked.reshape(-1)[index[0]] < np.inf
        if held is not None:
            held.take(step, chosen[step])
        after = flat[index] + added[step]
        flat[index] = after
        np.maximum(most, after[1:], out=most)
    return chosen.T, fits
