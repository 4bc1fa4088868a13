"""The predicted time of a dense part that every device holds as a whole."""

from neuroshard_api.documents.dense_layout import DenseChoices, DenseCost
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.exchanges import TransferModel

from neuroshard_planner.dense.options import UnitOptions


def with_replicated_cost(plan: Plan, request: PlanRequest, *, costs: TransferModel) -> Plan:
    """Return the plan with the time of its dense part, if that was counted and has no layout.

    Args:
        plan: of the request.
        request: with the devices that all hold the dense part.
        costs: prices the all-reduce of gradients.
    """
    if request.dense is None or plan.dense is not None:
        return plan
    options = UnitOptions(request.dense, request.topology, costs=costs, choices=DenseChoices(), groups=())
    units = [(unit.repeats, options.replicated(unit)) for unit in request.dense.units]
    cost = DenseCost(
        compute_ms=sum(repeats * unit.compute_ms for repeats, unit in units),
        exposed_ms=sum(repeats * unit.exposed_ms for repeats, unit in units),
        source=f"simulated:{request.topology.device.name}",
    )
    return plan.model_copy(update={"replicated_dense": cost})
