"""Local search: moves that take load off the most loaded device, until nothing helps.

Several placements descend side by side in one array program: a step of each takes little longer than one of one alone.

A move touches two devices. Candidates are ranked by additive loads (see estimator); the best few are judged by
the cost networks. A move is taken if it lowers the plan's cost, or keeps it and evens out the devices, level by level,
since each level has a peak of its own. How even they are is judged by what each peak costs in the state before the
move, which may be otherwise after it: so two states of equal cost can each look better from the other, and a state that
comes again at the same cost ends the descent.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import LANES_PER_EVALUATION, Placement, Problem
from neuroshard_planner.search.estimator import MEMORY, Traits
from neuroshard_planner.search.moves import NONE, CandidateMoves, relocations, splits, swaps

EVENNESS_SQUARINGS = 4  # to the power 16: high enough that the potential follows the most loaded devices


class State:
    """p placements of one problem with the sums and levels of their slots.

    Slot ``row * devices + device`` is a device of a placement.
    """

    def __init__(self, problem: Problem, placements: Sequence[Placement]) -> None:
        self._problem = problem
        self.num_slots = len(placements) * problem.num_devices
        kinds = np.concatenate([each.kinds for each in placements])
        slots = np.concatenate([each.devices + row * problem.num_devices for row, each in enumerate(placements)])
        every = Placement(kinds=kinds, devices=slots)
        by_columns = problem.is_cut_by_columns(every)
        self.kinds, self.slots = kinds[by_columns], slots[by_columns]
        """[n] shards that may move: those cut by columns. Blocks of rows and copies have devices of their own."""
        self._fixed = every.at(~by_columns)
        self._fixed_sums, self._fixed_levels = self._of(self._fixed.kinds, self._fixed.devices)
        sums, levels = self._of(self.kinds, self.slots)
        self.sums: FloatArray = sums + self._fixed_sums
        """[slots, r]"""
        self.levels: FloatArray = levels + self._fixed_levels
        """[slots, levels + 1] the levels of the objective, and memory."""
        self.levels[:, TIMES] = problem.pass_levels(self.sums)
        self._further_ms = problem.step_cost.further_ms(self._peaks_of(self._fixed_levels)[:, TRAFFIC])
        self.peaks: FloatArray = self._peaks_of(self.levels)
        """[p, levels + 1] of all devices of a placement."""
        self.total_ms: FloatArray = self.cost_ms(self.peaks, np.arange(len(placements)))
        """[p] cost of each placement."""
        self.changed = [set[tuple[int, int]]() for _ in placements]
        """[p] devices and kinds of shards that have come or gone since it was cleared; equal for equal states."""

    @cached_property
    def shards_of_unit(self) -> IndexArray:
        """[p, units] shards that may move."""
        counts: IndexArray = np.zeros((len(self.changed), len(self._problem.units)), dtype=np.int64)
        np.add.at(counts, (self.rows(self.slots), self._problem.kinds.unit.take(self.kinds)), 1)
        return counts

    @cached_property
    def holds(self) -> NDArray[np.bool_]:
        """[units * slots] whether a slot has a shard of a unit that may move, unit by unit."""
        holds = np.zeros(len(self._problem.units) * self.num_slots, dtype=np.bool_)
        holds[self._problem.kinds.unit.take(self.kinds) * self.num_slots + self.slots] = True
        return holds

    def rows(self, slots: IndexArray) -> IndexArray:
        """Return [...] the placements of slots [...]."""
        return slots // self._problem.num_devices

    def placements(self) -> list[Placement]:
        """Return the placements, shards that may move last."""
        fixed_row, row = self.rows(self._fixed.devices), self.rows(self.slots)
        return [
            Placement(
                kinds=np.concatenate((self._fixed.kinds[fixed_row == each], self.kinds[row == each])),
                devices=np.concatenate((self._fixed.devices[fixed_row == each], self.slots[row == each]))
                - each * self._problem.num_devices,
            )
            for each in range(len(self.changed))
        ]

    def cost_ms(self, peaks: FloatArray, rows: IndexArray) -> FloatArray:
        """Return [c] what placements [c] cost with peaks [c, levels + 1], whatever the movable shards do."""
        return self._problem.step_cost.total_ms(peaks, [part[rows] for part in self._further_ms])

    def apply(self, moves: CandidateMoves, times: FloatArray) -> None:
        """Make one move in each of some placements, after which its source and target have these [2, c, 2] times."""
        unit_of, num_slots = self._problem.kinds.unit, self.num_slots
        pair = np.stack((self.slots[moves.source_shard], moves.target))
        leaving = np.concatenate((moves.source_shard, moves.target_shard))
        leaving = leaving[leaving != NONE]
        kinds, slots = np.concatenate((moves.source_kind, moves.target_kind)), pair.ravel()
        comes = kinds != NONE
        gone, coming = (self.kinds[leaving], self.slots[leaving]), (kinds[comes], slots[comes])
        for (kinds, slots), count in ((gone, -1), (coming, 1)):
            rows = self.rows(slots)
            devices = slots - rows * self._problem.num_devices
            for row, device, kind in zip(rows.tolist(), devices.tolist(), kinds.tolist(), strict=True):
                self.changed[row] ^= {(device, kind)}
            np.add.at(self.shards_of_unit, (rows, unit_of[kinds]), count)
            self.holds[unit_of[kinds] * num_slots + slots] = count > 0
        stay = np.ones(len(self.kinds), dtype=np.bool_)
        stay[leaving] = False
        self.kinds, self.slots = (
            np.concatenate((now[stay], new)) for now, new in zip((self.kinds, self.slots), coming, strict=True)
        )
        place = np.full(num_slots, NONE)
        pairs = pair.ravel()
        place[pairs] = np.arange(len(pairs))
        here = place[self.slots]
        (held,) = (here != NONE).nonzero()
        sums, levels = self._of(self.kinds[held], here[held], len(pairs))
        self.sums[pairs] = sums + self._fixed_sums[pairs]
        self.levels[pairs] = levels + self._fixed_levels[pairs]
        self.levels[pairs, TIMES] = times.reshape(len(pairs), -1)
        self._problem.evaluations += len(pairs)  # work is counted by moves, and budgets are of that
        rows = self.rows(moves.target)
        self.peaks[rows] = self._peaks_of(self.levels)[rows]
        self.total_ms[rows] = self.cost_ms(self.peaks[rows], rows)

    def _of(self, kinds: IndexArray, slots: IndexArray, num_slots: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Return sums [slots, r] and levels [slots, levels + 1] of shards; the times, which do not add up, are 0."""
        problem, count = self._problem, self.num_slots if num_slots is None else num_slots
        levels = np.zeros((count, NUM_LEVELS + 1))
        if len(kinds):
            levels[:, TRAFFIC] = problem.traffic(kinds, slots, count)
            levels[:, MEMORY] = np.bincount(slots, problem.kinds.memory_bytes[kinds], count)
        return problem.slot_sums(kinds, slots, count), levels

    def _peaks_of(self, levels: FloatArray) -> FloatArray:
        """Return [p, levels + 1] the largest levels of each placement."""
        peaks: FloatArray = levels.reshape(-1, self._problem.num_devices, levels.shape[1]).max(axis=1)
        return peaks


class Loads:
    """What the shards and the slots of one state cost by additive loads."""

    def __init__(self, problem: Problem, state: State, traits: FloatArray) -> None:
        """``traits`` [kinds, levels + 1] are what shards add."""
        self._rows = state.rows
        self.prices = peak_prices(problem, state.peaks)
        """[p, levels + 1]"""
        self._traits = traits
        self.of_slots_ms: FloatArray = weighted_sum(state.levels, self.prices.repeat(problem.num_devices, axis=0))
        """[slots] what the levels of each device cost."""
        costs = self.prices * state.peaks
        self._scale: FloatArray = np.divide(1.0, state.peaks, out=np.zeros_like(costs), where=costs > 0)
        self._weights: FloatArray = costs / state.total_ms[:, None]
        self.unevenness: FloatArray = self.unevenness_of(state.levels, np.arange(state.num_slots))
        """[slots] before any move."""

    def of_shards(self, state: State, slots: IndexArray) -> FloatArray:
        """Return [n] what each placed shard adds; 0 of shards that are on none of these slots."""
        load, is_near = np.zeros(len(state.kinds)), np.zeros(state.num_slots, dtype=np.bool_)
        is_near[slots] = True
        (near,) = is_near.take(state.slots).nonzero()  # a few devices of a large set
        prices = self.prices.take(self._rows(state.slots.take(near)), axis=0)
        load[near] = weighted_sum(self._traits.take(state.kinds.take(near), axis=0), prices)
        return load

    def unevenness_of(self, levels: FloatArray, slots: IndexArray) -> FloatArray:
        """Return [..., c] of slots [c] with these [..., c, levels + 1].

        The levels as shares of the peaks, to the power of evenness, weighted by what each peak costs.
        """
        rows = self._rows(slots)
        shares = _to_evenness_power(levels * self._scale.take(rows, axis=0))
        return weighted_sum(shares, self._weights.take(rows, axis=0))


class View:
    """One device of each of m placements, from which moves are judged, with what these are judged by."""

    def __init__(self, problem: Problem, state: State, loads: Loads, sources: IndexArray) -> None:
        """``sources`` [m] are slots of distinct placements, ascending."""
        self._num_devices = problem.num_devices
        self.sources, self.loads = sources, loads
        self.rows = state.rows(sources)
        """[m] their placements."""
        self._place = np.full(len(state.changed), NONE)
        self._place[self.rows] = np.arange(len(sources))
        self._largest_elsewhere = _largest_elsewhere(self.devices_of(state.levels), sources % problem.num_devices)

    def devices_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return [m, devices, ...] the values [slots, ...] of the placements."""
        found: NDArray[Any] = values.reshape(-1, self._num_devices, *values.shape[1:])[self.rows]
        return found

    def place_of(self, slots: IndexArray) -> IndexArray:
        """Return [c] the position of the placement of each slot; slots of other placements have NONE."""
        return self._place.take(slots // self._num_devices)

    def held(self, state: State, load: FloatArray) -> IndexArray:
        """Return the shards of the sources, source by source, those with least load first."""
        is_source = np.zeros(state.num_slots, dtype=np.bool_)
        is_source[self.sources] = True
        (shards,) = is_source.take(state.slots).nonzero()
        return shards[np.lexsort((load.take(shards), state.slots.take(shards)))]

    def least(self, values: FloatArray, count: int) -> IndexArray:
        """Return [m, t] up to ``count`` slots of each placement but its source, the least of values [m, devices]."""
        values = values.copy()
        values[np.arange(len(values)), self.sources % self._num_devices] = np.inf
        ranked = values.argsort(axis=1, kind="stable")[:, : min(count, self._num_devices - 1)]
        return ranked + self.rows[:, None] * self._num_devices

    def largest_elsewhere(self, targets: IndexArray) -> FloatArray:
        """Return [c, levels + 1] the largest levels over all devices but the source and the target [c]."""
        return self._largest_elsewhere[self.place_of(targets), targets % self._num_devices]


class _Descent:
    """Where one placement is on its way down."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.left: list[int] = []
        """Devices that may still find a move from here."""
        self._lowest_ms = np.inf
        self._seen = set[frozenset[tuple[int, int]]]()
        self._failed = dict[int, int]()
        self._num_moves = 0

    def arrive(self, total_ms: float, changed: set[tuple[int, int]], levels: FloatArray) -> None:
        """Go on from a state; with no devices if the placement has been there at the same cost."""
        if total_ms < self._lowest_ms:
            self._lowest_ms = total_ms
            self._seen.clear()
            changed.clear()
        content = frozenset(changed)
        self.left = []
        if content not in self._seen:
            self._seen.add(content)
            # A device that found no move a while ago finds none most often: it is tried when no other one does.
            self.left = sorted(bounding_devices(levels), key=lambda device: self._failed.get(device, NONE))

    def leave(self, *, has_moved: bool) -> None:
        """Take note of what the first device that was left has found; after a move it has to arrive again."""
        device = self.left.pop(0)
        if has_moved:
            self._failed.pop(device, None)
            self._num_moves += 1
            self.left = []
        else:
            self._failed[device] = self._num_moves


class LocalSearch:
    """Improves placements of one problem until nothing helps or the work budget ends."""

    def __init__(self, problem: Problem, *, traits: Traits, work_budget: int) -> None:
        self._problem = problem
        self._traits = traits
        self._work_budget = work_budget
        self.improvements = 0
        """Moves made so far, over all placements."""

    def improve(self, placement: Placement) -> Placement:
        """Return a placement that costs at most as much as the merged one."""
        return self.improve_all([placement])[0]

    def improve_all(self, placements: Sequence[Placement]) -> list[Placement]:
        """Return the results of descents from these placements, each as if it were alone."""
        return [improved for _, improved in sorted(self.descents(placements), key=lambda each: each[0])]

    def descents(self, starts: Iterable[Placement]) -> Iterator[tuple[int, Placement]]:
        """Yield the results of descents with the positions of their starts, as they end.

        A start is drawn when a descent before it has ended and was yielded, so that it may depend on the result.
        """
        problem, waiting, position = self._problem, iter(starts), 0
        lanes: list[_Descent] = []
        placements: list[Placement] = []
        changed: list[set[tuple[int, int]]] = []
        while True:
            while len(lanes) < problem.tuning.num_lanes and (start := next(waiting, None)) is not None:
                placements.append(merged(problem, start))
                lanes.append(_Descent(position))
                changed.append(set())
                position += 1
            if not lanes:
                return
            state = State(problem, placements)
            state.changed = changed
            ended = self._descended(state, lanes)
            placements = state.placements()
            for row in sorted(ended, reverse=True):
                changed.pop(row)
                yield lanes.pop(row).position, placements.pop(row)

    def _descended(self, state: State, lanes: Sequence[_Descent]) -> list[int]:
        """Take steps until some descents have ended, or the work is used up; return which of the lanes end."""
        problem, count = self._problem, self._problem.num_devices
        if count == 1:
            return list(range(len(lanes)))
        moved, loads = [row for row, each in enumerate(lanes) if not each.left], None
        while problem.work < self._work_budget:
            for row in moved:
                levels = state.levels[row * count : (row + 1) * count]
                lanes[row].arrive(float(state.total_ms[row]), state.changed[row], levels)
            ended = [row for row, each in enumerate(lanes) if not each.left]
            if ended:
                return ended
            if loads is None or moved:
                loads = Loads(problem, state, self._traits())
            sources = np.array([row * count + each.left[0] for row, each in enumerate(lanes)])
            moved = self._moved(state, View(problem, state, loads, sources))
            for row, each in enumerate(lanes):
                each.leave(has_moved=row in moved)
            self.improvements += len(moved)
        return list(range(len(lanes)))

    def _moved(self, state: State, view: View) -> list[int]:
        """Take the best move away from each device of a view; return the placements in which there was one."""
        problem, tuning, loaded = self._problem, self._problem.tuning, view.loads.of_slots_ms
        targets = view.least(view.devices_of(loaded), tuning.num_targets)
        load = view.loads.of_shards(state, np.concatenate((view.sources, targets.ravel())))
        shards = view.held(state, load)
        wanted = (loaded[view.sources][:, None] - loaded[targets]) / 2
        counts = np.bincount(view.place_of(state.slots[shards]), minlength=len(view.sources))
        some = _spread(shards, counts, tuning.num_judged)
        place = view.place_of(state.slots[some])
        moves = [
            relocations(problem, state, some, targets[place]),
            swaps(problem, state, some, targets, place=place, size=load, wanted=wanted),
            *self._by_traffic(state, view, some),
        ]
        best, times = self._best(state, view, CandidateMoves.concatenated(moves))
        has_moved = np.zeros(len(view.sources), dtype=np.bool_)
        has_moved[view.place_of(best.target)] = True
        if not has_moved.all():
            largest = _last(shards, counts, tuning.num_targets)
            place = view.place_of(state.slots[largest])
            largest, place, near = largest[~has_moved[place]], place[~has_moved[place]], tuning.num_targets // 2
            parts = splits(problem, state, largest, targets[place, :near], load=load, wanted=wanted[place, :near])
            best_part, times_after = self._best(state, view, parts)
            best = CandidateMoves.concatenated([best, best_part])
            times = np.concatenate((times, times_after), axis=1)
        if len(best.target):
            state.apply(best, times)
        rows: list[int] = state.rows(best.target).tolist()
        return rows

    def _by_traffic(self, state: State, view: View, shards: IndexArray) -> list[CandidateMoves]:
        """Return moves of the sources' shards to where there is least of the traffic that the source has most of.

        Of sources that bound a pass there are none. What evens out loads need not even out columns: a wide shard of few
        lookups may change with a narrow one of many.
        """
        levels = state.levels[:, :NUM_LEVELS]
        of_sources = levels[view.sources]
        level = (of_sources >= state.peaks[view.rows, :NUM_LEVELS]).argmax(axis=1)
        is_traffic = level >= TRAFFIC.start
        place = view.place_of(state.slots[shards])
        shards, place = shards[is_traffic[place]], place[is_traffic[place]]
        if not len(shards):
            return []
        every = np.arange(len(level))
        targets = view.least(view.devices_of(levels)[every, :, level], self._problem.tuning.num_targets)
        wanted = (of_sources[every, level][:, None] - levels[targets, level[:, None]]) / 2
        size = self._traits()[state.kinds, level[view.place_of(state.slots)]]
        return [
            swaps(self._problem, state, shards, targets, place=place, size=size, wanted=wanted),
            relocations(self._problem, state, shards, targets[place]),
        ]

    def _best(self, state: State, view: View, moves: CandidateMoves) -> tuple[CandidateMoves, FloatArray]:
        """Return the best move of each placement that fits the memory and is better than staying, and [2, c, 2] times.

        The times are those of its source and its target after it.
        """
        problem, most, least_gain = self._problem, self._problem.tuning.num_judged, self._problem.tuning.least_gain
        place = view.place_of(moves.target)
        if len(view.sources) > 1:
            moves, place = moves.take(order := place.argsort(kind="stable")), place[order]
        levels = _after(self._traits(), state, state.levels, moves)
        fit = np.maximum.reduce(levels[:, :, MEMORY]) <= problem.memory.shard_capacity_bytes
        if not fit.all():
            moves, levels, place = moves.take(fit), levels[:, fit], place[fit]
        counts = np.bincount(place, minlength=len(view.sources))
        if counts.max(initial=0) > most:
            likely = _least(*self._outcome(state, view, moves, levels), counts, most)
            moves, levels, place = moves.take(likely), levels.take(likely, axis=1), place[likely]
        sums = _after(problem.kinds.representation, state, state.sums, moves)
        per_work = 1 if len(view.sources) == 1 else LANES_PER_EVALUATION
        levels[:, :, TIMES] = problem.pass_levels(np.maximum(sums, 0.0), per_work=per_work)
        total, unevenness = self._outcome(state, view, moves, levels)
        # Unevenness sums shares of the plan's cost to a power; the source's own share puts a gain in proportion.
        now_ms, staying = state.total_ms[view.rows][place], view.loads.unevenness[view.sources][place]
        is_better = (total < now_ms * (1 - least_gain)) | ((total <= now_ms) & (unevenness < -least_gain * staying))
        (better,) = is_better.nonzero()
        ranked = better[np.lexsort((unevenness[better], total[better], place[better]))]
        best = ranked[np.flatnonzero(np.diff(place[ranked], prepend=NONE))]
        return moves.take(best), levels[:, best, TIMES]

    def _outcome(
        self, state: State, view: View, moves: CandidateMoves, levels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return [c] the plan's cost and [c] the change of its unevenness, given the pair's [2, c, levels + 1]."""
        peaks = np.maximum(*levels)
        np.maximum(peaks, view.largest_elsewhere(moves.target), out=peaks)
        source = state.slots[moves.source_shard]
        of_source, of_target = view.loads.unevenness_of(levels, source)
        after: FloatArray = of_source + of_target
        before = view.loads.unevenness
        return state.cost_ms(peaks, state.rows(source)), after - before[source] - before[moves.target]


def peak_prices(problem: Problem, peaks: FloatArray) -> FloatArray:
    """Return [..., levels + 1] milliseconds of one unit more of each peak [..., levels + 1]; memory costs nothing."""
    prices = np.zeros_like(peaks)
    prices[..., :NUM_LEVELS] = problem.step_cost.prices(peaks[..., :NUM_LEVELS])
    return prices


def merged(problem: Problem, placement: Placement) -> Placement:
    """Return the placement with the shards by columns of one unit on one device made one shard."""
    kinds = problem.kinds
    by_columns = problem.is_cut_by_columns(placement)
    own, devices = placement.kinds[by_columns], placement.devices[by_columns]
    unit = kinds.unit[own]
    _, first, inverse, count = np.unique(
        unit * problem.num_devices + devices, return_index=True, return_inverse=True, return_counts=True
    )
    if len(count) == len(own):
        return placement
    columns = np.zeros(len(count), dtype=np.int64)
    np.add.at(columns, inverse, kinds.num_columns[own])
    sizes = [
        size._replace(num_columns=width)
        for size, width in zip(problem.sizes_of(own[first]), columns.tolist(), strict=True)
    ]
    found = Placement(kinds=problem.kinds_of(unit[first].tolist(), sizes), devices=devices[first])
    return Placement.joined(placement.at(~by_columns), found)


def bounding_devices(levels: FloatArray) -> Iterator[int]:
    """Yield the devices that bound a plan with these [devices, levels + 1].

    By both computes together, by each, and by communication.
    """
    largest = levels.argmax(axis=0)
    both = int(levels[:, TIMES].sum(axis=1).argmax())
    yield from dict.fromkeys([both, *largest[:NUM_LEVELS].tolist()])


def _spread(shards: IndexArray, counts: IndexArray, most: int) -> IndexArray:
    """Return at most ``most`` of the shards of each of these groups, evenly spaced."""
    if counts.max(initial=0) <= most:
        return shards
    parts, end = [], 0
    for count in counts.tolist():
        begin, end = end, end + count
        spread = np.linspace(begin, end - 1, most).astype(np.int64) if count > most else np.arange(begin, end)
        parts.append(shards[spread])
    return np.concatenate(parts)


def _last(shards: IndexArray, counts: IndexArray, most: int) -> IndexArray:
    """Return the last ``most`` of the shards of each of these groups."""
    if counts.max(initial=0) <= most:
        return shards
    return shards[np.cumsum(counts).repeat(counts) - np.arange(len(shards)) <= most]


def _to_evenness_power(shares: FloatArray) -> FloatArray:
    """Return [...] the shares to the power 16, by squaring: a general power takes several times as long."""
    power = shares * shares
    for _ in range(EVENNESS_SQUARINGS - 1):
        power *= power
    return power


def _least(total: FloatArray, unevenness: FloatArray, counts: IndexArray, most: int) -> IndexArray:
    """Return the positions of the ``most`` least totals of each group of ``counts``, ties by unevenness, ascending."""
    found, end = [], 0
    for count in counts.tolist():
        begin, end = end, end + count
        if count <= most:
            found.append(np.arange(begin, end))
            continue
        own = total[begin:end]
        (near,) = (own <= np.partition(own, most - 1)[most - 1]).nonzero()
        near += begin
        found.append(near[np.lexsort((unevenness[near], total[near]))[:most]])
    return np.concatenate(found)


def _after(values: NDArray[Any], state: State, per_slot: NDArray[Any], moves: CandidateMoves) -> NDArray[Any]:
    """Return [2, c, v] the sums of ``values`` (a row per kind) on the source and on the target after each move."""
    result = np.empty((2, len(moves.target), per_slot.shape[1]), dtype=per_slot.dtype)
    source = state.slots[moves.source_shard]
    np.subtract(per_slot.take(source, axis=0), values.take(state.kinds[moves.source_shard], axis=0), out=result[0])
    result[0] += _rows(values, moves.source_kind, moves.source_kind == NONE)
    np.add(per_slot.take(moves.target, axis=0), values.take(moves.target_kind, axis=0), out=result[1])
    result[1] -= _rows(values, state.kinds[moves.target_shard], moves.target_shard == NONE)
    return result


def _rows(values: NDArray[Any], kinds: IndexArray, is_none: NDArray[np.bool_]) -> NDArray[Any]:
    """Return [c, v] the row of each kind, 0 where there is none."""
    rows = values.take(kinds, axis=0)
    rows[is_none] = 0.0
    return rows


def _largest_elsewhere(levels: FloatArray, sources: IndexArray) -> FloatArray:
    """Return [m, devices, v] the largest levels [m, devices, v] over all devices but the source and each one.

    0 if there is no other.
    """
    others, result = levels.copy(), np.empty_like(levels)
    every = np.arange(len(levels))[:, None]
    others[every[:, 0], sources] = 0.0
    first, columns = others.argmax(axis=1), np.arange(levels.shape[2])
    result[:] = others[every, first, columns][:, None]
    others[every, first, columns] = 0.0
    result[every, first, columns] = others.max(axis=1)
    return result
