"""The remedy of embedding servers for a request that fits nowhere: how many, and what they add to a step.

It is a short search with servers, of as few as a sum of bytes permits, so that what it names does fit.
"""

from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.documents.topology import Link
from neuroshard_api.process.sizes import format_bytes
from pydantic import ValidationError

from neuroshard_planner.errors import InfeasibleError, PlannerError
from neuroshard_planner.memory.infeasible import has_room
from neuroshard_planner.pipeline import plan
from neuroshard_planner.planning import Bundle
from neuroshard_planner.servers import server_options, without_served

SERVER_BYTES, CORES = 192 * 2**30, 64
LINK = Link(bandwidth_bytes_per_second=100e9 / 8, latency_seconds=3e-5)
"""Of the servers that are named: 100 Gb/s, and a message of gloo."""
MOST_SERVERS = 64
WORK = 1000
"""Device evaluations of each of the two searches."""
MOST_CELLS = 4096
"""Tables times devices, beyond which nobody waits for a remedy's price."""


def with_servers_priced(error: InfeasibleError, request: PlanRequest, *, bundle: Bundle) -> InfeasibleError:
    """Return the error of a request with the servers that would do as a further remedy, where there are some.

    Args:
        error: of the request.
        request: without servers.
        bundle: prices placements.
    """
    is_large = len(request.tables.tables) * request.topology.num_devices > MOST_CELLS
    if request.servers is not None or request.algorithm is not Algorithm.NEUROSHARD or is_large:
        return error
    asked = _least_servers(request)
    if asked is None or asked.servers is None:
        return error
    try:
        found = plan(asked, bundle=bundle)
    except PlannerError:
        return error
    pool, added_ms = asked.servers, found.predicted.devices[0].server_exposed_ms
    what = f"{pool.count} embedding server{'s' if pool.count > 1 else ''} of {format_bytes(SERVER_BYTES)}"
    return InfeasibleError(f"{error}; or {what}: +{added_ms:.1f} ms (--servers)")


def _least_servers(request: PlanRequest) -> PlanRequest | None:
    """Return the request with the fewest servers after which the other tables fit by their sum. None: with none."""
    fields = {name: getattr(request, name) for name in PlanRequest.model_fields}
    short = request.search.model_copy(update={"work_budget": WORK})
    count = 1
    while count <= MOST_SERVERS:
        pool = ServerPool(count=count, memory_bytes=SERVER_BYTES, cores=CORES, link=LINK, policy=ServerPolicy.IF_NEEDED)
        try:
            asked = PlanRequest(**fields | {"servers": pool, "search": short})
        except ValidationError:
            return None
        left = without_served(asked, frozenset(server_options(asked)))
        if has_room(left):
            return asked
        count *= 2
    return None
