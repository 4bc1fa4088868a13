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
from neuroshard_planner.problem.shard_kinds import ShardSize

NONE = -1
_SIDES = np.arange(2)[:, None, None]


class PlacedShards(Protocol):
    """What the generators read of a search state."""

    kinds: IndexArray
    devices: IndexArray
    max_shards: IndexArray

    @property
    def shards_of_unit(self) -> IndexArray:
        """[units] shards that may move."""

    @property
    def holds(self) -> NDArray[np.bool_]:
        """[units * devices] whether a device has a shard of a unit that may move, unit by unit."""


class CandidateMoves(NamedTuple):
    """c candidate moves from one source device: each replaces up to one shard on the source and on the target."""

    target: IndexArray
    """[c] device."""
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
    """Give every move of a shard to a target that holds no shard of the same table."""
    shard, target = _pairs(shards, targets)
    kind = state.kinds.take(shard)
    unit = problem.kinds.unit.take(kind)
    none = np.full(len(shard), NONE)
    moves = CandidateMoves(target=target, source_shard=shard, source_kind=none, target_shard=none, target_kind=kind)
    found = ~state.holds.take(unit * problem.num_devices + target)
    if problem.allowed is not None:
        found &= problem.allowed[unit, target]
    return moves.take(found)


def swaps(
    problem: Problem,
    state: PlacedShards,
    shards: IndexArray,
    targets: IndexArray,
    *,
    size: FloatArray,
    wanted: FloatArray,
) -> CandidateMoves:
    """Give, for each shard and target, the two swaps whose difference in size is next to the wanted one.

    ``size`` has one entry per placed shard, ``wanted`` [targets] a difference per target.
    """
    place = np.full(problem.num_devices, NONE)
    columns = np.arange(len(targets))
    place[targets] = columns
    place_of = place[state.devices]
    (there,) = (place_of != NONE).nonzero()
    there = there[np.lexsort((size[there], place_of[there]))]
    if not len(there):
        return relocations(problem, state, shards[:0], targets)
    # One sorted key over all targets: the target's place in front of the size, scaled into [0, 1).
    scale = 2.0 * float(size.max()) + 1e-30
    place_there = place_of[there]
    key = place_there + size[there] / scale
    partner_size = np.maximum(size[shards, None] - wanted, 0.0) / scale
    # [sides, shards, targets] positions next to that size, from 1 on: 0 and the last are of no target.
    sides = key.searchsorted(columns + np.minimum(partner_size, 0.75)) + _SIDES
    bordered = np.full(len(there) + 2, NONE)
    bordered[1:-1] = place_there
    (found,) = (bordered.take(sides) == columns).ravel().nonzero()
    row, column = np.divmod(found, len(targets))
    shard, target = shards[row % len(shards)], targets[column]
    partner = there.take(sides.ravel().take(found) - 1)
    shard_kind, partner_kind = state.kinds.take(shard), state.kinds.take(partner)
    unit, partner_unit = problem.kinds.unit.take(shard_kind), problem.kinds.unit.take(partner_kind)
    source = state.devices[shard]
    # The pair itself may be two shards of one table; any other shard of it there would have to be merged.
    meets = state.holds.take(unit * problem.num_devices + target)
    meets |= state.holds.take(partner_unit * problem.num_devices + source)
    alone = ~meets | (unit == partner_unit)
    if problem.allowed is not None:
        alone &= problem.allowed[unit, target] & problem.allowed[partner_unit, source]
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
    """Give, for each shard and target, the split that moves about the wanted load to the target.

    Columns that come to a device with a shard of the same table are merged into it; then a whole shard may move too.
    """
    kinds = problem.kinds
    shard, column = _pairs(shards, np.arange(len(targets)))
    target = targets[column]
    unit = kinds.unit[state.kinds[shard]]
    partner = shard_on(problem, state, unit, target)
    has_partner = partner != NONE
    width = kinds.num_columns[state.kinds[shard]]
    least, most_shards = problem.min_shard_width[unit], state.max_shards[unit]

    share = np.clip(wanted[column] / np.maximum(load[shard], 1e-30), 0.0, 1.0)
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
        & (has_partner | (state.shards_of_unit[unit] < most_shards))
        & (kinds.num_rows[state.kinds[shard]] == problem.num_rows[unit])
    )
    shard, target, unit, partner, moving, rest = (each[valid] for each in (shard, target, unit, partner, moving, rest))
    coming = moving + np.where(partner == NONE, 0, kinds.num_columns[state.kinds[partner]])
    staying = _column_kinds(problem, unit[rest > 0], rest[rest > 0])
    source_kind = np.full(len(shard), NONE)
    source_kind[rest > 0] = staying
    return CandidateMoves(
        target=target,
        source_shard=shard,
        source_kind=source_kind,
        target_shard=partner,
        target_kind=_column_kinds(problem, unit, coming),
    )


def shard_on(problem: Problem, state: PlacedShards, unit: IndexArray, device: IndexArray) -> IndexArray:
    """Return [c] the placed shard of each unit on each device, or NONE."""
    keys = problem.kinds.unit.take(state.kinds) * problem.num_devices + state.devices
    order, wanted = keys.argsort(kind="stable"), unit * problem.num_devices + device
    found = order.take(np.minimum(keys.searchsorted(wanted, sorter=order), len(keys) - 1))
    return np.where(keys.take(found) == wanted, found, NONE)


def _pairs(first: IndexArray, second: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return every pair of an entry of the first and one of the second, the first's entries in turn."""
    repeated = np.empty((len(first), len(second)), dtype=second.dtype)
    repeated[:] = second
    return first.repeat(len(second)), repeated.ravel()


def _column_kinds(problem: Problem, unit: IndexArray, num_columns: IndexArray) -> IndexArray:
    rows = problem.num_rows[unit].tolist()
    return problem.kinds_of(unit.tolist(), list(map(ShardSize, rows, num_columns.tolist())))


def _may_be_on(problem: Problem, unit: IndexArray, device: IndexArray) -> NDArray[np.bool_]:
    if problem.allowed is None:
        return np.ones(len(unit), dtype=np.bool_)
    return problem.allowed[unit, device]
