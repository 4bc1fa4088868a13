"""A plan with embedding servers: two searches, of the tables on devices and of those on servers.

The processes of the servers take the place of devices in the second one, and look up for all trainers' batches. The
cost models are those of the trainers' processes, which are CPUs too.
"""

from collections.abc import Callable

from neuroshard_api.documents.dense_layout import DenseChoices, DensePolicy
from neuroshard_api.documents.plan import Plan, ServedTables
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.served_request import request_of_servers, without_tables

from neuroshard_planner.errors import InfeasibleError

Search = Callable[[PlanRequest], Plan]


def plan_with_servers(request: PlanRequest, *, of_devices: Search, of_servers: Search) -> Plan:
    """Return the plan of a request with embedding servers.

    Args:
        request: names the servers and their tables.
        of_devices: returns the plan of the tables on devices, near the plan in force.
        of_servers: returns that of the tables on servers.

    Raises:
        RequestError, InfeasibleError, MissingPackageError: as `pipeline.plan`.
    """
    pool = request.servers
    assert pool is not None, "the caller looked"
    near = without_tables(request, pool.tables)
    if near.dense is not None:  # a sharded dense part would be gathered by all ranks
        choices = near.dense_choices or DenseChoices()
        near = near.model_copy(update={"dense_choices": choices.model_copy(update={"policy": DensePolicy.REPLICATE})})
    far = request_of_servers(request)
    try:
        served = of_servers(far)
    except InfeasibleError as error:
        cause = str(error).partition("; hint: ")[0]
        raise InfeasibleError(
            f"the tables on embedding servers do not fit, where each of {pool.num_processes} processes is a device: "
            f"{cause}; hint: give more servers or memory, or leave tables on the trainers' devices (servers.tables)"
        ) from error
    found = of_devices(near)
    lookups, devices = served.predicted.total_ms, found.predicted.total_ms
    warning = (
        f"servers: the predicted {devices:.3f} ms are of the tables on devices; lookups and exchange of those on "
        f"servers take {lookups:.3f} ms, during which the devices look up theirs, so that both take at most the sum"
    )
    return found.model_copy(
        update={
            "request": request,
            "servers": ServedTables(tables=served.tables, predicted=served.predicted, memory=served.memory),
            "warnings": (*found.warnings, warning),
        }
    )
