"""A plan document for shards that were decided elsewhere: checks and scores them, moves none."""

from collections.abc import Sequence

from neuroshard_api.plan import Plan, TablePlacement
from neuroshard_api.request import PlanRequest

from neuroshard_planner.planning import Bundle, attempts, document
from neuroshard_planner.plans.checks import require_none, require_sound, table_problems
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.search.iterated import Found
from neuroshard_planner.search.lower_bound import lower_bound_ms


def imported_plan(tables: Sequence[TablePlacement], request: PlanRequest, *, bundle: Bundle) -> Plan:
    """Return the plan of these shards, with the costs, lower bound, ledger and baselines of this planner.

    The request's algorithm is what the plan says it was found by.

    Raises:
        PlanError: tables, shards, devices, constraints or memory do not match the request, or a table is sharded in
            a way that cannot be scored.
        RequestError: the request contradicts itself.
    """
    require_none(table_problems(tables, request))
    problem = Problem(request, bundle)
    plan = document(
        problem,
        bundle,
        Found(placement=placement_of(tables, problem)),
        baselines=attempts(problem),
        bound_ms=lower_bound_ms(problem),
        tables=tuple(tables),
    )
    require_sound(plan)
    return plan
