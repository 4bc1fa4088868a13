"""Averages of the copies of tables that groups of devices hold (2-D sharding), as a part of a step.

An average takes an all-reduce of the fullest device's weights and optimizer state among the devices that hold copies of
them. Its time is spread over the steps from one average to the next.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import CollectiveCost, DeviceCost, DeviceMemory, PlanCost
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_api.sharding.replication import Grouping

from neuroshard_costs.exchanges import Reduction, TransferModel
from neuroshard_costs.shards import weights_bytes


def average_ms(plan: Plan) -> float:
    """Return the mean time that averages of copies add to a step; 0 without groups."""
    return sum(each.backward_ms for each in plan.predicted.devices[0].collectives if each.kind is CollectiveKind.SYNC)


def least_average_ms(request: PlanRequest, way: Grouping, costs: TransferModel) -> float:
    """Return the milliseconds of one average of weights that are spread evenly over a group's devices."""
    return _all_reduce_ms(sum(map(weights_bytes, request.tables.tables)) / way.group.num_devices, way, costs)


def with_averages(
    cost: PlanCost, memory: Sequence[DeviceMemory], way: Grouping, costs: TransferModel, *, every: int
) -> PlanCost:
    """Return the cost of a group's plan with averages of its copies.

    Args:
        cost: of the plan.
        memory: of its devices.
        way: the groups.
        costs: price the averages.
        every: steps from one average to the next.
    """
    needed = [each.weights_bytes + each.optimizer_state_bytes for each in memory]
    ms = _all_reduce_ms(max(needed), way, costs) / every
    devices = tuple(_with_average(each, ms, num_bytes) for each, num_bytes in zip(cost.devices, needed, strict=True))
    return cost.model_copy(update={"total_ms": cost.total_ms + ms, "devices": devices})


def _all_reduce_ms(num_bytes: float, way: Grouping, costs: TransferModel) -> float:
    """Return the milliseconds of one average of these bytes on each device that holds a copy."""
    reduction = Reduction(topology=way.copies, family=Family.REPLICATED)
    return float(costs.reduction_ms(np.array(float(num_bytes)), reduction).sum())


def _with_average(cost: DeviceCost, ms: float, num_bytes: int) -> DeviceCost:
    average = CollectiveCost(kind=CollectiveKind.SYNC, backward_ms=ms, num_bytes=num_bytes)
    return cost.model_copy(
        update={
            "backward_communication_ms": cost.backward_communication_ms + ms,
            "collectives": (*cost.collectives, average),
        }
    )
