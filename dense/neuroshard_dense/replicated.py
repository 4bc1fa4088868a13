"""The predicted time of a dense part that every device holds as a whole."""

from neuroshard_api.documents.dense_layout import DenseChoices, DenseCost, DenseMemory
from neuroshard_api.documents.dense_profile import DensePass, DenseProfile
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.exchanges import TransferModel

from neuroshard_dense.options import UnitOptions


def with_replicated_cost(plan: Plan, request: PlanRequest, *, costs: TransferModel) -> Plan:
    """Return the plan with the time of its dense part, if that was counted and has no layout.

    Args:
        plan: of the request.
        request: with the devices that all hold the dense part.
        costs: prices the all-reduce of gradients.
    """
    if request.dense is None or plan.dense is not None:
        return plan
    return plan.model_copy(update={"replicated_dense": replicated_cost(request, request.dense, costs=costs)})


def replicated_cost(request: PlanRequest, profile: DenseProfile, *, costs: TransferModel) -> DenseCost:
    """Return the time of a request's dense part where every device holds all of it."""
    options = UnitOptions(profile, request.topology, costs=costs, choices=DenseChoices(), groups=())
    units = [(unit.repeats, options.replicated(unit)) for unit in profile.units]
    return DenseCost(
        compute_ms=sum(repeats * unit.compute_ms for repeats, unit in units),
        exposed_ms=sum(repeats * unit.exposed_ms for repeats, unit in units),
        other_ms=None if profile.passes is None else costs.dense_other_ms(profile.passes),
        optimizer_ms=costs.dense_traffic_ms(optimizer_pass(profile, profile)),
        source=f"simulated:{request.topology.device.name}",
    )


def optimizer_pass(profile: DenseProfile, kept: DenseProfile | DenseMemory) -> DensePass:
    """Return the optimizer's pass over the weights and state that a device keeps, and over its gradients."""
    counted = None if profile.passes is None else profile.passes.optimizer
    return DensePass(
        operations=0 if counted is None else counted.operations,
        products=0,
        moved_bytes=2 * (kept.weights_bytes + kept.optimizer_state_bytes) + kept.gradient_bytes,
    )
