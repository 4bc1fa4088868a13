"""A plan document for shards that were decided elsewhere: checks and scores them, moves none."""

from collections.abc import Sequence

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.served_request import request_of_servers
from neuroshard_api.sharding.table_lists import table_problems
from neuroshard_dense.replicated import with_replicated_cost
from neuroshard_dense.whole_step import with_whole_step

from neuroshard_planner.planning import Bundle, attempts, document
from neuroshard_planner.plans.checks import plan_problems, require_none, require_sound
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.search.by_columns import Found
from neuroshard_planner.servers import priced_servers, with_servers, without_served


def imported_plan(
    tables: Sequence[TablePlacement],
    request: PlanRequest,
    *,
    bundle: Bundle,
    must_fit: bool = True,
    served: Sequence[TablePlacement] = (),
) -> Plan:
    """Return the plan of these shards, with the costs, lower bound, ledger and baselines of this planner.

    The request's algorithm is what the plan says it was found by.

    Args:
        tables: in the order of the request's, those on servers left out.
        request: what they answer.
        bundle: prices them.
        served: tables on the request's embedding servers, whose processes are their devices.
        must_fit: whether a device with too little memory is an error; else the plan's ledger says so.

    Raises:
        PlanError: tables, shards, devices, constraints or memory do not match the request, or TorchRec cannot run them.
        RequestError: the request contradicts itself.
    """
    if served:
        names = frozenset(each.name for each in served)
        far = request_of_servers(request, names)
        own = imported_plan(served, far, bundle=bundle, must_fit=must_fit)
        near = imported_plan(tables, without_served(request, names), bundle=bundle, must_fit=must_fit)
        return with_servers(near, request, priced_servers(request, far, own, bundle), bundle)
    plan_without_price(tables, request)
    problem = Problem(request, bundle)
    plan = document(
        problem,
        bundle,
        Found(placement=placement_of(tables, problem)),
        baselines=attempts(problem),
        tables=tuple(tables),
    )
    require_sound(plan, must_fit=must_fit)
    return with_whole_step(with_replicated_cost(plan, request, costs=bundle), costs=bundle)


def plan_without_price(tables: Sequence[TablePlacement], request: PlanRequest) -> GivenPlan:
    """Return the plan of these shards without costs and ledger, as it can be exported and trained.

    Raises:
        PlanError: tables, shards, or devices do not match the request, or TorchRec cannot run them.
        RequestError: the request contradicts itself.
    """
    require_none(table_problems(tables, request))  # an empty plan is not a document
    plan = GivenPlan(algorithm=request.algorithm, tables=tuple(tables), request=request)
    require_none(plan_problems(plan))
    return plan
