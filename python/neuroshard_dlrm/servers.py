"""Embedding servers as an option has them: ``2x192GiB,cores=64,gbps=100,processes=1,policy=if_needed``."""

import re

from neuroshard_api.documents.document import told_as_problems
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.documents.topology import Link
from neuroshard_api.job.resource import size_bytes
from neuroshard_api.process.failures import CommandError

CORES, GBPS, PROCESSES = 64, 100.0, 1
"""Of each server, where the option does not say it."""
MOST_GBPS = 1e6
"""No link has as many."""
LATENCY_SECONDS = 3e-5
"""Of a message of gloo over a network; assumed."""
_POOL = re.compile(r"(\d+)x([0-9]+(?:\.[0-9]+)?[KMGT]i)B?")
_NAMES = ("cores", "gbps", "processes", "policy", "lookahead")
_FORM = "hint: write 2x192GiB, or 2x192GiB,cores=64,gbps=100,processes=1,policy=if_needed"


def with_server_pool(request: PlanRequest, text: str) -> PlanRequest:
    """Return a request with the servers of an option, in place of its own; tables that it names stay on them.

    Servers of trainers on the CPUs of one node are on that node too, unless the option gives their link.

    Raises:
        CommandError: the option is not written so.
        DocumentError: the request does not go with servers.
    """
    size, *settings = text.split(",")
    found = _POOL.fullmatch(size)
    given = dict(each.split("=", 1) for each in settings if "=" in each)
    if found is None or len(given) < len(settings) or not given.keys() <= set(_NAMES):
        raise CommandError(f"--servers: is not a number of servers and the memory of each (found {text}); {_FORM}")
    topology = request.topology
    is_here = topology.device.is_cpu and topology.num_nodes == 1 and "gbps" not in given
    try:
        cores, processes, lookahead, gbps = (
            int(given.get("cores", CORES)),
            int(given.get("processes", PROCESSES)),
            int(given.get("lookahead", 0)),
            float(given.get("gbps", GBPS)),
        )
        policy = ServerPolicy(given.get("policy", ServerPolicy.IF_NEEDED))
    except ValueError as error:
        raise CommandError(f"--servers: {error} (found {text}); {_FORM}") from error
    if not 0.0 < gbps < MOST_GBPS:
        raise CommandError(f"--servers: gbps is not above 0 and below {MOST_GBPS:,.0f} (found {text}); {_FORM}")
    named = () if request.servers is None else request.servers.tables
    link = None if is_here else Link(bandwidth_bytes_per_second=gbps * 1e9 / 8, latency_seconds=LATENCY_SECONDS)
    with told_as_problems(PlanRequest, where="--servers"):
        pool = ServerPool(
            count=int(found[1]),
            processes=processes,
            memory_bytes=size_bytes(found[2]),
            cores=None if is_here and "cores" not in given else cores,
            link=link,
            policy=policy,
            tables=named,
            lookahead=lookahead or None,
        )
        fields = {name: getattr(request, name) for name in PlanRequest.model_fields}
        return PlanRequest(**fields | {"servers": pool})
