"""A plan near the one in force: of placements of nearly equal cost, the one that moves least.

The objective is the cost plus a price for each byte that a device gets and did not have. Three placements are tried:
the one found, what local search makes of the incumbent, and the incumbent. Each unit goes back to where the incumbent
has it, the largest moves first, unless that costs more than the search's tolerance allows.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.plan_parts import IncumbentPlan, TablePlacement
from neuroshard_api.process.hints import without_hint
from neuroshard_api.sharding.table_lists import table_problems
from neuroshard_costs.moved_bytes import move_price_ms, moved_bytes, moved_tables
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.errors import RequestError
from neuroshard_planner.plans.checks import unit_problems
from neuroshard_planner.plans.tables import placement_of, table_placements
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.local_search import LocalSearch


@dataclass(frozen=True, kw_only=True, slots=True)
class Incumbent:
    """The plan in force."""

    tables: tuple[TablePlacement, ...]
    """In the order of the request's."""
    served: tuple[TablePlacement, ...] = ()
    """Those on embedding servers."""
    plan_sha256: str | None = None
    """Hash of its document. If unset: not known."""
    price_ms_per_gib: float = 0.0
    """Milliseconds of a step that may be given up for each GiB that does not move."""


class Migration:
    """From the incumbent to another placement of a problem.

    Raises:
        RequestError: the incumbent is of other tables or devices than the problem.
    """

    def __init__(self, problem: Problem, incumbent: Incumbent) -> None:
        problems = table_problems(incumbent.tables, problem.request)
        if problems:
            raise RequestError(
                f"incumbent: is of other tables or devices than the request: {without_hint(problems[0])}"
                "; hint: give the plan that the tables are trained under"
            )
        self._problem = problem
        self._incumbent = incumbent
        self._before = placement_of(incumbent.tables, problem)
        every = np.ones((len(problem.units), problem.num_devices), np.bool_)
        allowed = every if problem.allowed is None else problem.allowed
        answers = [
            not any(unit_problems(incumbent.tables, problem.request, unit, np.flatnonzero(own).tolist()))
            for unit, own in zip(problem.units, allowed, strict=True)
        ]
        self._answers = problem.fits(self._before) and all(answers)
        # The types that a search may give a unit are fewer than those that the constraints name: some go only together.
        self._may_stay = [
            answer and all(incumbent.tables[table].sharding_type in types for table in unit.tables)
            for answer, unit, types in zip(answers, problem.units, problem.sharding_types, strict=True)
        ]
        self._may_start = self._answers and all(self._may_stay)

    @property
    def start(self) -> tuple[Placement, ...]:
        """The incumbent, from which a search may start; empty where it is none that the search may find."""
        return (self._before,) if self._may_start else ()

    def nearest(self, found: Placement, *, work_budget: int) -> Placement:
        """Return the placement of least priced cost, within the request's tolerance the one that moves least.

        Args:
            found: by the search.
            work_budget: device evaluations and their like, counted from here.
        """
        problem = self._problem
        until = problem.work + work_budget
        options = [found]
        if self._may_start:
            sums = problem.device_sums(self._before.kinds, self._before.devices).mean(axis=0)
            local = LocalSearch(problem, traits=Traits(problem, tangent(problem, sums)), work_budget=until)
            options += [self._before, local.improve(self._before)]
        moved = [self._moved(each) for each in options]
        costs = [self._priced(each, num_bytes.sum()) for each, num_bytes in zip(options, moved, strict=True)]
        limit = min(costs) * (1 + problem.request.search.shard_tolerance)
        near = [
            self._returned(option, num_bytes, limit, until=until)
            for option, num_bytes, cost in zip(options, moved, costs, strict=True)
            if cost <= limit
        ]
        left = [float(self._moved(each).sum()) for each in near]
        best = min(range(len(near)), key=lambda index: (left[index], self._priced(near[index], left[index])))
        return near[best]

    def tables(self, placement: Placement) -> tuple[TablePlacement, ...]:
        """Return the tables of a placement; those of the incumbent itself have their columns where they are."""
        return self._incumbent.tables if placement is self._before else table_placements(self._problem, placement)

    def written_down(self, tables: tuple[TablePlacement, ...]) -> IncumbentPlan:
        """Return the incumbent's cost under the request, and the moves of these tables."""
        (total_ms,) = self._problem.total_ms([self._before])
        return IncumbentPlan(
            plan_sha256=self._incumbent.plan_sha256,
            total_ms=float(total_ms),
            fits=self._answers,
            price_ms_per_gib=self._incumbent.price_ms_per_gib,
            moved=moved_tables(self._incumbent.tables, tables, self._problem.request),
        )

    def _returned(self, placement: Placement, moved: FloatArray, limit: float, *, until: int) -> Placement:
        """Return the placement with as many units where the incumbent has them as the limit on the cost allows."""
        left = [unit for unit in np.flatnonzero(moved).tolist() if self._may_stay[unit]]
        stays_away = any(not may_stay for may_stay in self._may_stay)
        total = float(moved.sum())
        for _ in range(self._problem.tuning.most_rounds):
            stays: list[int] = []
            for unit in sorted(left, key=lambda each: (-moved[each], each)):
                option = self._with_unit(placement, unit)
                is_free = self._problem.work < until and self._problem.fits(option)
                if is_free and self._priced(option, total - float(moved[unit])) <= limit:
                    placement, total = option, total - float(moved[unit])
                else:
                    stays.append(unit)
            if len(stays) == len(left):
                break
            left = stays
        return placement if left or stays_away else self._before

    def _with_unit(self, placement: Placement, unit: int) -> Placement:
        """Return the placement with one unit as the incumbent has it."""
        unit_of = self._problem.kinds.unit
        stays, comes = unit_of[placement.kinds] != unit, unit_of[self._before.kinds] == unit
        return Placement.joined(placement.at(stays), self._before.at(comes))

    def _priced(self, placement: Placement, num_bytes: float) -> float:
        (total_ms,) = self._problem.total_ms([placement])
        return float(total_ms) + move_price_ms(num_bytes, price_ms_per_gib=self._incumbent.price_ms_per_gib)

    def _moved(self, placement: Placement) -> FloatArray:
        """Return [units] the bytes that a placement moves."""
        num_bytes = moved_bytes(self._incumbent.tables, self.tables(placement), self._problem.request)
        return np.array([float(sum(num_bytes[table] for table in unit.tables)) for unit in self._problem.units])
