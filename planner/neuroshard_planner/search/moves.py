"""Candidate moves of local search: relocations, swaps, splits, and merges between a source and its targets.

Generates candidates that constraints allow; judges neither memory nor cost.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import FloatArray, IndexArray
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import Problem

NONE = -1
_SIDES = np.arange(2)[:, None, None]


class PlacedShards(Protocol):
    """What the generators read of a search state."""

    kinds: IndexArray
    slots: IndexArray
    num_slots: int

    def rows(self, slots: IndexArray) -> IndexArray:
        """Return [...] the placements of slots [...]."""

    @property
    def shards_of_unit(self) -> IndexArray:
        """[p, units] shards that may move."""

    @property
    def holds(self) -> NDArray[np.bool_]:
        """[units * slots] whether a slot has a shard of a unit that may move, unit by unit."""


class CandidateMoves(NamedTuple):
    """c candidate moves: each replaces up to one shard on its source and on its target, slots of one placement."""

    target: IndexArray
    """[c] slot."""
    source_shard: IndexArray
    """[c] shard that leaves the source."""
    source_kind: IndexArray
    """[c] kind that takes its place, or NONE."""
    target_shard: IndexArray
    """[c] shard that leaves the target, or NONE."""
    target_kind: IndexArray
    """[c] kind that takes its place, or joins the target."""

    def take(self, index: IndexArray | NDArray[np.bool_]) -> Self:
        """Return the moves at these positions, or for which ``index`` [c] is true."""
        if index.dtype == np.bool_:
            (index,) = index.nonzero()
        return type(self)(*(column.take(index) for column in self))

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        """Return all moves of all parts."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def relocations(problem: Problem, state: PlacedShards, shards: IndexArray, targets: IndexArray) -> CandidateMoves:
    """Give every move of a shard [c] to one of its targets [c, t] that holds no shard of the same table."""
    shard, target = shards.repeat(targets.shape[1]), targets.ravel()
    kind = state.kinds.take(shard)
    unit = problem.kinds.unit.take(kind)
    none = np.full(len(shard), NONE)
    moves = CandidateMoves(target=target, source_shard=shard, source_kind=none, target_shard=none, target_kind=kind)
    found = ~state.holds.take(unit * state.num_slots + target)
    if problem.allowed is not None:
        found &= _may_be_on(problem, unit, target)
    return moves.take(found)


def swaps(
    problem: Problem,
    state: PlacedShards,
    shards: IndexArray,
    targets: IndexArray,
    *,
    place: IndexArray,
    size: FloatArray,
    wanted: FloatArray,
) -> CandidateMoves:
    """Give, for each shard and each of its targets, the two swaps whose difference in size is next to the wanted one.

    Args:
        problem: what is placed.
        state: the shards.
        shards: [c]
        targets: [m, t] slots.
        place: [c] the row of each shard's targets.
        size: of every placed shard.
        wanted: [m, t] a difference per target.
    """
    column_of = np.full(state.num_slots, NONE)
    columns = np.arange(targets.size)
    column_of[targets.ravel()] = columns
    column = column_of[state.slots]
    (there,) = (column != NONE).nonzero()
    there = there[np.lexsort((size[there], column[there]))]
    if not len(there):
        return relocations(problem, state, shards[:0], targets[:0])
    # One sorted key over all targets: the target's column in front of the size, scaled into [0, 1).
    column_there = column[there]
    scale = np.full(len(targets), 1e-30)
    np.maximum.at(scale, column_there // targets.shape[1], 2.0 * size[there])
    key = column_there + size[there] / scale[column_there // targets.shape[1]]
    partner_size = np.maximum(size[shards, None] - wanted[place], 0.0) / scale[place, None]
    own_columns = columns.reshape(targets.shape)[place]
    # [sides, shards, targets] positions next to that size, from 1 on: 0 and the last are of no target.
    sides = key.searchsorted(own_columns + np.minimum(partner_size, 0.75)) + _SIDES
    bordered = np.full(len(there) + 2, NONE)
    bordered[1:-1] = column_there
    (found,) = (bordered.take(sides) == own_columns).ravel().nonzero()
    shard, target = (
        shards[found // targets.shape[1] % len(shards)],
        targets.ravel()[bordered.take(sides.ravel()[found])],
    )
    partner = there.take(sides.ravel().take(found) - 1)
    shard_kind, partner_kind = state.kinds.take(shard), state.kinds.take(partner)
    unit, partner_unit = problem.kinds.unit.take(shard_kind), problem.kinds.unit.take(partner_kind)
    source = state.slots[shard]
    # The pair itself may be two shards of one table; any other shard of it there would have to be merged.
    meets = state.holds.take(unit * state.num_slots + target)
    meets |= state.holds.take(partner_unit * state.num_slots + source)
    alone = ~meets | (unit == partner_unit)
    if problem.allowed is not None:
        alone &= _may_be_on(problem, unit, target) & _may_be_on(problem, partner_unit, source)
    moves = CandidateMoves(
        target=target, source_shard=shard, source_kind=partner_kind, target_shard=partner, target_kind=shard_kind
    )
    return moves if alone.all() else moves.take(alone)


def splits(
    problem: Problem,
    state: PlacedShards,
    shards: IndexArray,
    targets: IndexArray,
    *,
    load: FloatArray,
    wanted: FloatArray,
) -> CandidateMoves:
    """Give, for each shard [c] and each of its targets [c, t], the split that moves about the wanted load [c, t] there.

    Columns that come to a device with a shard of the same table are merged into it; then a whole shard may move too.
    """
    kinds = problem.kinds
    shard, target = shards.repeat(targets.shape[1]), targets.ravel()
    unit = kinds.unit[state.kinds[shard]]
    partner = shard_on(problem, state, unit, target)
    has_partner = partner != NONE
    width = kinds.num_columns[state.kinds[shard]]
    least, row = problem.min_shard_width[unit], state.rows(target)

    share = np.clip(wanted.ravel() / np.maximum(load[shard], 1e-30), 0.0, 1.0)
    moving = DIM_MULTIPLE * np.rint(share * width / DIM_MULTIPLE).astype(np.int64)
    moving = np.maximum(moving, np.where(has_partner, DIM_MULTIPLE, least))
    # A rest that would be too narrow goes along to a partner; without one it has to stay wide enough.
    moving = np.where(
        (width - moving < least) & has_partner, width, np.minimum(moving, np.where(has_partner, width, width - least))
    )
    rest = width - moving
    valid = (
        _may_be_on(problem, unit, target)
        & (moving >= np.where(has_partner, DIM_MULTIPLE, least))
        & ((rest >= least) | (has_partner & (rest == 0)))
        & (has_partner | (state.shards_of_unit[row, unit] < problem.max_shards[unit]))
        & (kinds.num_rows[state.kinds[shard]] == problem.num_rows[unit])
    )
    shard, target, unit, partner, moving, rest = (each[valid] for each in (shard, target, unit, partner, moving, rest))
    coming = moving + np.where(partner == NONE, 0, kinds.num_columns[state.kinds[partner]])
    staying = problem.kinds_by_columns(unit[rest > 0], rest[rest > 0])
    source_kind = np.full(len(shard), NONE)
    source_kind[rest > 0] = staying
    return CandidateMoves(
        target=target,
        source_shard=shard,
        source_kind=source_kind,
        target_shard=partner,
        target_kind=problem.kinds_by_columns(unit, coming),
    )


def shard_on(problem: Problem, state: PlacedShards, unit: IndexArray, slot: IndexArray) -> IndexArray:
    """Return [c] the placed shard of each unit on each slot, or NONE."""
    found = np.full(len(unit), NONE)
    wanted = unit * state.num_slots + slot
    (met,) = state.holds.take(wanted).nonzero()
    is_near = np.zeros(state.num_slots, dtype=np.bool_)
    is_near[slot[met]] = True
    (near,) = is_near.take(state.slots).nonzero()
    keys = problem.kinds.unit.take(state.kinds.take(near)) * state.num_slots + state.slots.take(near)
    order = keys.argsort(kind="stable")
    found[met] = near.take(order.take(keys.searchsorted(wanted[met], sorter=order)))
    return found


def _may_be_on(problem: Problem, unit: IndexArray, slot: IndexArray) -> NDArray[np.bool_]:
    if problem.allowed is None:
        return np.ones(len(unit), dtype=np.bool_)
    return problem.allowed[unit, slot % problem.num_devices]
