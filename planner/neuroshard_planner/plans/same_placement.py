"""A placement under another request: its price there, and the plan that has it, with its bound."""

from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import PlanCost
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.memory_ledger import tables_memory

from neuroshard_planner.errors import RequestError
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem


def cost_under(request: PlanRequest, plan: Plan, *further: Plan, costs: CostModel) -> PlanCost | None:
    """Return the cost of a plan's placement under a request, or of the cheapest of several that fit.

    Plans of all devices say nothing of one with groups of them. None: the request excludes all placements.
    """
    try:
        problem = Problem(request, costs)
    except RequestError:
        return None
    placed = (plan,) if plan.replication is not None else (plan, *further)
    fitting = filter(problem.fits, (placement_of(each.tables, problem) for each in placed))
    found = (predicted_cost(problem, each, plan.predicted.source) for each in fitting)
    return min(found, key=lambda cost: cost.total_ms, default=None)


def cheaper_placement(found: Plan, other: Plan, *, costs: CostModel) -> Plan:
    """Return a plan, or that of the same request with another plan's placement where it is cheaper and fits.

    Args:
        found: answers the request.
        other: of the same tables; the plan itself is returned where other tables have collections of their own there.
        costs: price both.
    """
    if found.request.grouped != other.request.grouped:
        return found
    cost = cost_under(found.request, other, costs=costs)
    if cost is None or cost.total_ms >= found.predicted.total_ms:
        return found
    return bounded(
        found,
        found.lower_bound_ms,
        predicted=cost,
        tables=other.tables,
        memory=tables_memory(memory_ledger(found.request), other.tables),
        incumbent=other.incumbent,
    )


def bounded(plan: Plan, bound_ms: float, **changes: Any) -> Plan:  # noqa: ANN401 - of any field
    """Return the plan with other fields, a lower bound of at most its cost then, and the gap to it."""
    changed = plan.model_copy(update=changes)
    total_ms = changed.predicted.total_ms
    bound_ms = min(bound_ms, total_ms)
    gap = total_ms / bound_ms - 1 if bound_ms else 0.0
    return changed.model_copy(update={"lower_bound_ms": bound_ms, "gap": gap})
