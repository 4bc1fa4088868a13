"""Plans without what servers and groups of devices add: those of the tables on devices alone, as devices run them."""

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceCost
from neuroshard_api.documents.served_request import without_tables
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_costs.averages import average_ms
from neuroshard_planner.plans.same_placement import bounded


def without_servers(plan: Plan) -> Plan:
    """Return the plan of the tables on devices, without the wait for servers; the plan itself where it has none."""
    if plan.servers is None:
        return plan
    alone = {"server_ms": None, "server_hidden_ms": None}
    devices = tuple(each.model_copy(update=alone) for each in plan.predicted.devices)
    total_ms = max(each.total_ms for each in devices)
    return bounded(
        plan,
        plan.lower_bound_ms,
        request=without_tables(plan.request, [each.name for each in plan.servers.tables]),
        servers=None,
        predicted=plan.predicted.model_copy(update={"total_ms": total_ms, "devices": devices}),
    )


def of_group(plan: Plan) -> Plan:
    """Return the plan of one group as devices of its own, without averages; the plan itself where it has no groups."""
    if plan.replication is None:
        return plan
    devices = tuple(_without_average(each) for each in plan.predicted.devices)
    alone = {"total_ms": plan.predicted.total_ms - average_ms(plan), "devices": devices}
    return bounded(
        plan,
        plan.replication.group_lower_bound_ms or 0.0,
        predicted=plan.predicted.model_copy(update=alone),
        replication=None,
        request=plan.resolved,
    )


def _without_average(cost: DeviceCost) -> DeviceCost:
    ms = sum(each.backward_ms for each in cost.collectives if each.kind is CollectiveKind.SYNC)
    return cost.model_copy(
        update={
            "backward_communication_ms": max(0.0, cost.backward_communication_ms - ms),
            "collectives": tuple(each for each in cost.collectives if each.kind is not CollectiveKind.SYNC),
        }
    )
