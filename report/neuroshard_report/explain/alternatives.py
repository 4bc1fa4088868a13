"""A plan with one unit taken out: what each way of putting it back would cost. Changes no plan."""

from collections.abc import Iterator, Mapping

import numpy as np
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_costs.step_cost import TIMES, TRAFFIC
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.units import BoolArray, even_widths
from neuroshard_planner.search.options import Forms, PlacedOption


class PlacementWithoutUnit:
    """The devices of a placement without the shards of one unit."""

    def __init__(self, problem: Problem, placement: Placement, unit: int) -> None:
        self._problem = problem
        self.unit = unit
        """Position in the problem."""
        others = placement.at(problem.kinds.unit[placement.kinds] != unit)
        self._sums: FloatArray = problem.device_sums(others.kinds, others.devices)
        self._memory: IndexArray = problem.used_bytes(others)
        self._levels: FloatArray = problem.device_levels([others])[0]
        self.allowed: BoolArray = (
            np.ones(problem.num_devices, dtype=np.bool_) if problem.allowed is None else problem.allowed[unit]
        )
        """[devices] where the constraints let the unit be."""

    def kind(self, num_columns: int) -> int:
        """Return the kind of a shard of the unit with all rows and that many columns."""
        size = ShardSize(self._problem.units[self.unit].num_rows, num_columns)
        return int(self._problem.kinds_of([self.unit], [size])[0])

    def missing_bytes(self, kind: int) -> IndexArray:
        """Return [devices] the memory each device lacks for a shard; 0 or less where it fits."""
        needed = self._memory + self._problem.kinds.memory_bytes[kind]
        missing: IndexArray = needed - self._problem.memory.shard_capacity_bytes
        return missing

    def times_with(self, kind: int) -> FloatArray:
        """Return [devices, 2] the compute levels of each device if it alone took a shard."""
        return self._problem.pass_levels(self._sums + self._problem.kinds.representation[kind])

    def totals_with(self, kind: int) -> FloatArray:
        """Return [devices] the plan's cost if that device took the shard and the unit had no other."""
        with_it = np.concatenate(
            (self.times_with(kind), self._levels[:, TRAFFIC] + self._problem.kinds.traffic[kind]), axis=1
        )
        return self._problem.step_cost.total_ms(np.maximum(_largest_elsewhere(self._levels), with_it))

    def total_ms(self, kinds: IndexArray, devices: IndexArray) -> float:
        """Return the plan's cost with these shards of the unit."""
        return float(self._problem.step_cost.total_ms(self._levels_with(kinds, devices).max(axis=0)))

    def added_ms(self, kinds: IndexArray, devices: IndexArray) -> Mapping[str, float]:
        """Return the share of these shards of the unit in each part of the plan's cost; none that is 0.

        The parts sum to the cost with the shards less that without them.
        """
        step_cost = self._problem.step_cost
        before = step_cost.parts_ms(self._levels.max(axis=0))
        after = step_cost.parts_ms(self._levels_with(kinds, devices).max(axis=0))
        added = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
        return {name: ms for name, ms in added.items() if ms}

    def _levels_with(self, kinds: IndexArray, devices: IndexArray) -> FloatArray:
        """Return [devices, levels] with these shards of the unit."""
        sums, levels = self._sums.copy(), self._levels.copy()
        np.add.at(sums, devices, self._problem.kinds.representation[kinds])
        np.add.at(levels[:, TRAFFIC], devices, self._problem.kinds.traffic[kinds])
        levels[:, TIMES] = self._problem.pass_levels(sums)
        return levels

    def further_options(self) -> Iterator[tuple[ShardingType, PlacedOption]]:
        """Yield the unit's placements by rows and as copies that fit, those by node on the least loaded nodes."""
        forms = Forms(self._problem, [self.unit])
        room = self._problem.memory.shard_capacity_bytes - self._memory
        for form in forms.of(self.unit):
            if not form.sharding_type.is_by_columns:
                for option in forms.placed(self.unit, form, self._levels[:, TIMES].sum(axis=1), room):
                    yield form.sharding_type, option

    def best_split(self, count: int) -> tuple[IndexArray, float] | None:
        """Return devices and cost of the unit in ``count`` even shards on as many devices; None where none fit.

        Each shard goes where it alone would cost the plan least, ties to the less loaded device: for equal shards
        that is the best choice unless two of them meet in one of the cost's maxima.
        """
        kinds = [self.kind(width) for width in even_widths(self._problem.units[self.unit].num_columns, count)]
        usable = np.flatnonzero(self.allowed & (self.missing_bytes(kinds[0]) <= 0))
        if len(usable) < count:
            return None
        totals, loads = self.totals_with(kinds[0]), self.times_with(kinds[0]).sum(axis=1)
        chosen = usable[np.lexsort((loads[usable], totals[usable]))][:count]
        # The widest shards, which come first, go to the least loaded of the chosen devices.
        chosen = chosen[np.argsort(loads[chosen], kind="stable")]
        return chosen, self.total_ms(np.array(kinds, dtype=np.int64), chosen)


def _largest_elsewhere(values: FloatArray) -> FloatArray:
    """Return, along the first axis, the largest value at any other position; 0 if there is no other."""
    largest = np.zeros_like(values)
    if len(values) > 1:
        ordered = np.sort(values, axis=0)
        is_largest = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)) == values.argmax(axis=0)
        largest = np.where(is_largest, ordered[-2], ordered[-1])
    return largest
