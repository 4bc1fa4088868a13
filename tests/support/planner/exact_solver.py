"""An exact solver (CP-SAT) of small problems with a linear cost model.

It chooses, for every unit and device, how many columns of the unit the device holds: every plan of table-wise and
column-wise shards, even or uneven, is a point of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_costs.shards import IndexArray
from neuroshard_costs.step_cost import Collective
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from ortools.sat.python import cp_model

PICOSECONDS_PER_MS = 1e9
SOLVER_PRECISION = 1e-3
"""Relative; where the solver stops. Costs are compared with its proven bound, so that nothing hangs on it."""
SOLVER_WORK = 0.5
"""Deterministic seconds: the same work on every machine."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """What the solver proved."""

    feasible: bool
    total_ms: float = np.inf
    """Of the best plan that the solver found."""
    bound_ms: float = 0.0
    """No plan costs less."""


@dataclass(frozen=True, kw_only=True)
class Affine:
    """A quantity of a shard: ``fixed`` plus ``slope`` for every quad (four columns)."""

    fixed: int
    slope: int

    @classmethod
    def through(cls, wide: int, narrow: int, values: IndexArray) -> Self:
        """Return the function that takes these two values at two numbers of quads."""
        slope = round((int(values[0]) - int(values[1])) / max(wide - narrow, 1))
        return cls(fixed=int(values[0]) - wide * slope, slope=slope)

    def of(self, here: cp_model.LinearExpr, quads: cp_model.LinearExpr) -> cp_model.LinearExpr:
        """Return the quantity of a shard that is there or not; without it there are no quads either."""
        return self.fixed * here + self.slope * quads


def solve(problem: Problem, *, with_cost: bool) -> Optimum:
    """Return the cheapest plan's cost, or only whether there is a plan."""
    model = cp_model.CpModel()
    devices = range(problem.num_devices)
    capacity = problem.memory.shard_capacity_bytes
    zero: cp_model.LinearExpr = cp_model.LinearExpr.sum([])
    memory, columns, index_bytes, *times = ([zero] * problem.num_devices for _ in range(5))
    for index, unit in enumerate(problem.units):
        quads = unit.num_columns // DIM_MULTIPLE
        least = quads if unit.max_shards == 1 else unit.min_shard_width // DIM_MULTIPLE
        # Memory and times are affine in the columns of a shard that may be cut: two widths tell both numbers.
        narrow = DIM_MULTIPLE if unit.max_shards > 1 else unit.num_columns
        kinds = problem.kinds_of([index] * 2, [ShardSize(unit.num_rows, width) for width in (unit.num_columns, narrow)])
        bytes_of = Affine.through(quads, narrow // DIM_MULTIPLE, problem.kinds.memory_bytes[kinds])
        time_of = [
            Affine.through(quads, narrow // DIM_MULTIPLE, np.rint(PICOSECONDS_PER_MS * row).astype(np.int64))
            for row in problem.kinds.representation[kinds].T.astype(np.float64)
        ]
        here = [model.new_bool_var(f"here_{index}_{device}") for device in devices]
        held = [model.new_int_var(0, quads, f"quads_{index}_{device}") for device in devices]
        model.add(sum(held) == quads)
        model.add(sum(here) <= unit.max_shards)
        for device in devices:
            if problem.allowed is not None and not problem.allowed[index, device]:
                model.add(here[device] == 0)
            model.add(held[device] >= least * here[device])
            model.add(held[device] <= quads * here[device])
            memory[device] += bytes_of.of(here[device], held[device])
            columns[device] += held[device]
            index_bytes[device] += round(float(problem.kinds.traffic[kinds[0], Collective.INDICES])) * here[device]
            for direction in range(2):
                times[direction][device] += time_of[direction].of(here[device], held[device])
    for device in devices:
        model.add(memory[device] <= capacity)
    if with_cost:
        model.minimize(_objective(model, problem, times, columns, index_bytes))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.relative_gap_limit = SOLVER_PRECISION
    solver.parameters.max_deterministic_time = SOLVER_WORK
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE), solver.status_name(status)
    if status == cp_model.INFEASIBLE:
        return Optimum(feasible=False)
    if not with_cost:
        return Optimum(feasible=True)
    return Optimum(
        feasible=True,
        total_ms=solver.objective_value / PICOSECONDS_PER_MS,
        bound_ms=solver.best_objective_bound / PICOSECONDS_PER_MS,
    )


def _objective(
    model: cp_model.CpModel,
    problem: Problem,
    times: Sequence[Sequence[cp_model.LinearExpr]],
    columns: Sequence[cp_model.LinearExpr],
    index_bytes: Sequence[cp_model.LinearExpr],
) -> cp_model.LinearExpr:
    """Return the slowest passes, separate or joint, plus the transfer of the widest device, plus exposed indices.

    A pipeline hides all indices: at the sizes of these cases the compute is longer.
    """
    most = 2**50
    passes = [[sum(both) for both in zip(*times, strict=True)]] if problem.step_cost.joins_passes else times
    slowest = [model.new_int_var(0, most, f"slowest_{index}") for index in range(len(passes))]
    widest = model.new_int_var(0, sum(unit.num_columns for unit in problem.units), "widest")
    for device in range(problem.num_devices):
        model.add(widest >= columns[device])
        for peak, devices_ms in zip(slowest, passes, strict=True):
            model.add(peak >= devices_ms[device])
    mean_quads = sum(unit.num_columns for unit in problem.units) / problem.num_devices / DIM_MULTIPLE
    least_ms = float(problem.step_cost.pooled_ms(problem.step_cost.least_traffic))
    total = sum(slowest) + round(least_ms / mean_quads * PICOSECONDS_PER_MS) * widest
    if problem.request.pipeline is Pipeline.NONE:
        most_bytes = model.new_int_var(0, most, "most_bytes")
        for received in index_bytes:
            model.add(most_bytes >= received)
        peaks = np.concatenate((np.zeros(2), problem.step_cost.least_traffic))
        byte_ms = float(problem.step_cost.input_ms(peaks)) / problem.step_cost.least_traffic[Collective.INDICES]
        total += round(byte_ms * PICOSECONDS_PER_MS) * most_bytes
    return total
