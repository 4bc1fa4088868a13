"""Whether collections of tables of means alone are sharded by rows: decided by planning both ways.

TorchRec computes means rightly where all tables of a collection are whole or cut by columns, and where all have mean
pooling and are row_wise or table_row_wise. No step of the search leads from one to the other.
"""

from collections.abc import Callable

from neuroshard_api.placement_rules import BY_ROWS, collections_of
from neuroshard_api.plan import Plan
from neuroshard_api.request import PlanRequest, TableConstraints

from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.problem.sharding_choice import BY_DEFAULT

Search = Callable[[PlanRequest], Plan]


def cheaper_with_means(request: PlanRequest, *, search: Search) -> Plan:
    """Return the cheaper of the plans with tables of means by columns and by rows; its bound holds for both.

    Args:
        request: of any tables; without a collection of means alone, the search's plan of it is returned.
        search: finds the plan of a request, in which a table of means is by rows only where its constraints name rows.

    Raises:
        PlannerError: as the search.
    """
    by_rows = with_means_by_rows(request)
    if by_rows is None:
        return search(request)
    try:
        found = search(request)
    except InfeasibleError:
        try:
            return search(by_rows).model_copy(update={"request": request})
        except (InfeasibleError, RequestError):
            pass
        raise
    try:
        other = search(by_rows)
    except (InfeasibleError, RequestError):
        return found
    bound_ms = min(found.lower_bound_ms, other.lower_bound_ms)
    cheaper = min((found, other), key=lambda each: each.predicted.total_ms)
    gap = cheaper.predicted.total_ms / bound_ms - 1 if bound_ms else 0.0
    return cheaper.model_copy(update={"request": request, "lower_bound_ms": bound_ms, "gap": gap})


def with_means_by_rows(request: PlanRequest) -> PlanRequest | None:
    """Return the request with all collections of means alone by rows that may be. None: it has none that may."""
    tables, constraints = request.tables.tables, request.constraints
    own = dict(constraints.tables)
    for positions in collections_of(tables):
        names = [tables[index].name for index in positions]
        asked = [constraints.sharding_types_of(name) or BY_DEFAULT for name in names]
        left = [tuple(kind for kind in types if kind in BY_ROWS) for types in asked]
        if not all(tables[index].is_mean for index in positions) or not all(left) or left == asked:
            continue
        for name, types in zip(names, left, strict=True):
            own[name] = own.get(name, TableConstraints()).model_copy(update={"sharding_types": types})
    if own == constraints.tables:
        return None
    return request.model_copy(update={"constraints": constraints.model_copy(update={"tables": own})})
