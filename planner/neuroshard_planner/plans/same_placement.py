"""A plan with another price: that of another plan's placement, where it is cheaper, and any other with its bound."""

from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_costs.memory_ledger import tables_memory

from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem


def cheaper_placement(found: Plan, other: Plan, *, costs: CostModel) -> Plan:
    """Return a plan, or that of the same request with another plan's placement where it is cheaper and fits.

    Args:
        found: answers the request.
        other: of the same tables; the plan itself is returned where other tables have collections of their own there.
        costs: price both.
    """
    if found.request.grouped != other.request.grouped:
        return found
    problem = Problem(found.request, costs)
    placement = placement_of(other.tables, problem)
    cost = predicted_cost(problem, placement, found.predicted.source)
    if cost.total_ms >= found.predicted.total_ms or not problem.fits(placement):
        return found
    return bounded(
        found,
        found.lower_bound_ms,
        predicted=cost,
        tables=other.tables,
        memory=tables_memory(problem.memory, other.tables),
        incumbent=other.incumbent,
    )


def bounded(plan: Plan, bound_ms: float, **changes: Any) -> Plan:  # noqa: ANN401 - of any field
    """Return the plan with other fields, a lower bound of at most its cost then, and the gap to it."""
    changed = plan.model_copy(update=changes)
    total_ms = changed.predicted.total_ms
    bound_ms = min(bound_ms, total_ms)
    gap = total_ms / bound_ms - 1 if bound_ms else 0.0
    return changed.model_copy(update={"lower_bound_ms": bound_ms, "gap": gap})
