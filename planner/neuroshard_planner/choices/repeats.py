"""Which groups of features a plan leaves the repeats of out: decided by planning with and without them.

    plan on all lists  ->  plan without the repeats of all groups  ->  without those that save nothing
                       ->  group by group in the grouped form, while that is cheaper  ->  the cheaper

A comparison of forms asks for more than the cost models can distinguish.
"""

from collections.abc import Mapping

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest

from neuroshard_planner.errors import PlannerError
from neuroshard_planner.plans.moved_bytes import priced_ms
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.deduplication import repeating_groups
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.searches import Search

MIN_SAVED_SHARE = 0.02
"""Of a step, below which repeats are not left out."""


def deduplicated_plan(request: PlanRequest, *, costs: CostModel, search: Search) -> Plan:
    """Return the cheaper of the plans with and without repeats; its request names the groups of its choice.

    Args:
        request: names the groups whose repeats may be left out.
        costs: price placements.
        search: finds the plan of a request as it is.

    Raises:
        PlannerError: as the search.
    """
    all_lists = search(_without(request, ()))
    plan = search(request)
    saved_ms = savings_ms(plan, costs)
    kept = tuple(name for name, ms in saved_ms.items() if ms > 0)
    if not kept:
        return all_lists
    if len(kept) < len(saved_ms):
        plan = search(_without(request, kept))
        saved_ms = savings_ms(plan, costs)
    plan = _grouped(plan, search)
    if not _is_cheaper(plan, all_lists):
        return all_lists
    saved_ms = savings_ms(plan, costs)
    groups = tuple(
        each.model_copy(update={"saved_ms": saved_ms[each.group]}) for each in repeating_groups(plan.request)
    )
    return plan.model_copy(update={"deduplication": groups, "all_lists_ms": all_lists.predicted.total_ms})


def _grouped(plan: Plan, search: Search) -> Plan:
    """Return a plan with groups in the grouped form, those of most columns first, while that is cheaper."""
    request = plan.request
    if request.topology.num_devices == 1:  # nothing travels
        return plan
    tables = request.tables.tables
    columns = {
        name: sum(table.embedding_dim * table.num_features for table in tables if table.duplication_group == name)
        for name in request.deduplicate or ()
        if name not in (request.grouped or ())
    }
    for name in sorted(columns, key=lambda each: -columns[each]):
        try:
            found = search(request.model_copy(update={"grouped": (*(plan.request.grouped or ()), name)}))
        except PlannerError:  # its tables may be by rows alone, or do not fit otherwise
            return plan
        if not _is_cheaper(found, plan):
            return plan
        plan = found
    return plan


def _is_cheaper(plan: Plan, other: Plan) -> bool:
    """Return whether a plan costs less than another, moves included, by more than the cost models can distinguish."""
    error = plan.bundle.compute_mape if plan.bundle.measured_compute_mape is None else plan.bundle.measured_compute_mape
    return priced_ms(plan) <= priced_ms(other) - other.predicted.total_ms * max(MIN_SAVED_SHARE, error)


def savings_ms(plan: Plan, costs: CostModel) -> Mapping[str, float]:
    """Return by group what the plan's placement costs more with all lists of that group alone."""
    groups = [each.group for each in repeating_groups(plan.request)]
    found = {}
    for name in groups:
        problem = Problem(_without(plan.request, tuple(each for each in groups if each != name)), costs)
        cost = predicted_cost(problem, placement_of(plan.tables, problem), plan.predicted.source)
        found[name] = cost.total_ms - plan.predicted.total_ms
    return found


def _without(request: PlanRequest, kept: tuple[str, ...]) -> PlanRequest:
    grouped = tuple(name for name in request.grouped or () if name in kept)
    return request.model_copy(update={"deduplicate": kept or None, "grouped": grouped or None})
