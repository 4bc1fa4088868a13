"""What the units of a problem may be: all shards that plans may hold, in arrays, unit by unit.

A unit in shards of several widths adds a mean of what they add, each for its columns.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import repeat

import numpy as np
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.sharding.kinds import Family, ShardingType, num_row_parts
from neuroshard_costs.shards import COLUMNS, FAMILIES, FloatArray, IndexArray
from neuroshard_costs.step_cost import NUM_LEVELS, TIMES, TRAFFIC, Collective

from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.units import BoolArray, Unit

Families = tuple[int, ...]
"""Ascending positions in FAMILIES."""


@dataclass(frozen=True, eq=False)
class Choices:
    """Shards of one kind that each unit may be in, n in ascending order of unit and family."""

    rows: FloatArray
    """[n, q + collectives] what a unit in them adds to the mean device."""
    unit: IndexArray
    """[n]"""
    family: IndexArray
    """[n]"""
    share: FloatArray
    """[n] shards on the mean device."""
    levels: FloatArray
    """[n, levels] of a device with one shard alone."""
    is_narrow: BoolArray
    """[n] whether each unit has some wider shard."""

    @cached_property
    def starts(self) -> IndexArray:
        """[units] the first row of each."""
        return np.flatnonzero(np.diff(self.unit, prepend=-1))

    @cached_property
    def position(self) -> IndexArray:
        """[n] of the unit of each in ``starts``."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.unit)))

    @cached_property
    def of_families(self) -> list[IndexArray]:
        """The rows of each family."""
        return [np.flatnonzero(self.family == family) for family in sorted(set(self.family.tolist()))]

    @cached_property
    def columns(self) -> FloatArray:
        """[n] of a shard by columns in the all-to-all; 0 of others."""
        return self.levels[:, TRAFFIC][:, Collective.POOLED_EMBEDDINGS]

    @property
    def middle(self) -> FloatArray:
        """The mean device where every unit is in all of its choices alike."""
        middle: FloatArray = (self.rows / np.bincount(self.position)[self.position, None]).sum(axis=0)
        return middle

    def mean_traffic(self, bound: np.ufunc) -> FloatArray:
        """Return [collectives] of the mean device at least or at most, by np.minimum or np.maximum."""
        traffic: FloatArray = bound.reduceat(self.rows[:, -len(Collective) :], self.starts, axis=0).sum(axis=0)
        return traffic

    @property
    def levels_of_some_device(self) -> FloatArray:
        """[levels] that some device has at least, of one unit or of one family; infinite: there is no such plan."""
        wide = np.where(self.is_narrow[:, None], np.inf, self.levels)
        of_units = np.minimum.reduceat(wide, self.starts, axis=0)
        most: FloatArray = np.max([*of_units, *(wide[own].min(axis=0) for own in self.of_families)], axis=0)
        return most

    def at(self, usable: BoolArray, families: Families | None = None) -> "Choices | None":
        """Return the choices for which ``usable`` [n] is true. None: some unit or family has none.

        ``families`` are those that must be in use; if unset: all that are.
        """
        if np.add.reduceat(usable, self.starts, dtype=np.int64).min() == 0:
            return None
        in_use = set(self.family[usable].tolist())
        if len(in_use) < len(self.of_families if families is None else families):
            return None
        return Choices(**{each.name: getattr(self, each.name)[usable] for each in fields(self)})

    def least(self, prices: FloatArray) -> tuple[float, IndexArray]:
        """Return the least price of one choice [units] for each unit, by prices [n], if all families are in use.

        A family that no unit has by price takes the unit that loses least; several may take one, which costs no more.
        """
        chosen = first_least(prices, self.starts)
        least = prices[chosen]
        total = float(least.sum())
        for own in self.of_families if len(self.of_families) > 1 else ():
            lost = prices[own] - least[self.position[own]]
            row = int(lost.argmin())
            if lost[row] > 0:
                total += float(lost[row])
                chosen[self.position[own[row]]] = own[row]
        return total, chosen


def first_least(values: FloatArray, starts: IndexArray) -> IndexArray:
    """Return [groups] the row of the least of the values [n] of each group, the first of equals.

    ``starts`` [groups] are the first rows of the groups, which follow each other.
    """
    least = np.minimum.reduceat(values, starts)
    is_least = np.flatnonzero(values <= np.repeat(least, np.diff(starts, append=len(values))))
    rows: IndexArray = is_least[np.searchsorted(is_least, starts)]
    return rows


def families_of(types: frozenset[ShardingType]) -> frozenset[int]:
    """Return the positions in FAMILIES of the families of some types."""
    return frozenset(FAMILIES.index(Family.of(kind)) for kind in types)


def every_choice(problem: Problem) -> tuple[Choices, IndexArray]:
    """Return all shards that a plan may hold, in no more lanes than each needs, and their kinds [n]."""
    kinds, kind = problem.kinds, _every_kind(problem)
    unit, family = kinds.unit[kind], kinds.family[kind]
    columns = np.array([definition.num_columns for definition in problem.units], dtype=np.float64)[unit]
    most_pieces = np.array([[_most_pieces(each, family) for family in FAMILIES] for each in problem.units])
    copies = np.array([_num_placed(each, problem) for each in FAMILIES])[family]
    width = kinds.num_columns[kind].astype(np.float64)
    share = copies * columns / width / problem.num_usable_devices
    choices = Choices(
        rows=mean_rows(problem, kind, share),
        unit=unit,
        family=family,
        share=share,
        levels=shard_levels(problem, kind),
        # Some shard of each unit has at least its columns divided by the most shards.
        is_narrow=width < columns / most_pieces[unit, family],
    )
    return choices, kind


def mean_rows(problem: Problem, kind: IndexArray, share: FloatArray, *, lanes: float = 0.0) -> FloatArray:
    """Return [n, q + collectives] what units in shards of these kinds [n] add to the mean device of these lanes."""
    added = np.concatenate((problem.least_demands(kind, lanes=lanes), problem.kinds.traffic[kind]), axis=1)
    rows: FloatArray = added * share[:, None]
    return rows


def shard_levels(problem: Problem, kind: IndexArray) -> FloatArray:
    """Return [n, levels] of devices with one shard of these kinds [n] alone."""
    levels = np.empty((len(kind), NUM_LEVELS))
    levels[:, TIMES] = problem.pass_levels(problem.kinds.representation[kind])
    levels[:, TRAFFIC] = problem.kinds.traffic[kind]
    return levels


def _every_kind(problem: Problem) -> IndexArray:
    """Return the kinds of all shards that a plan may hold, in ascending order of unit and family."""
    by_columns: tuple[list[int], list[ShardSize]] = ([], [])
    further: tuple[list[int], list[ShardSize]] = ([], [])
    for index, (unit, types) in enumerate(zip(problem.units, problem.sharding_types, strict=True)):
        for family in sorted(families_of(types)):
            whole, most = problem.row_block(index, family, unit.num_columns), 0
            if _most_pieces(unit, FAMILIES[family]) > 1:
                most = min(unit.num_columns - unit.min_shard_width, unit.max_shard_width)
            widths = range(unit.min_shard_width, most + 1, DIM_MULTIPLE)
            found = list(map(ShardSize, repeat(whole.num_rows), widths, repeat(family)))
            if not (found and unit.must_be_cut):
                found.append(whole)
            units, sizes = by_columns if family == COLUMNS else further
            units += repeat(index, len(found))
            sizes += found
    # In a batch of their own, shards by columns have the same representations to the last bit as without other types.
    kinds = np.concatenate([problem.kinds_of(*each) for each in (by_columns, further)])
    ordered: IndexArray = kinds[np.lexsort((problem.kinds.family[kinds], problem.kinds.unit[kinds]))]
    return ordered


def _most_pieces(unit: Unit, family: Family) -> int:
    """Return the maximum number of a unit's pieces by columns in a family."""
    return {Family.COLUMNS: unit.max_shards, Family.NODE_ROWS: unit.max_blocks}.get(family, 1)


def _num_placed(family: Family, problem: Problem) -> int:
    """Return the shards that a block of columns of a unit is placed as."""
    return problem.num_devices if family is Family.REPLICATED else num_row_parts(family, problem.request.topology)
