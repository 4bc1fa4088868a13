"""Tables that exceed H100s: host memory next to embedding servers, for three public sets and three links.

Each set is planned with host memory alone, with servers alone (policy if_needed), and with both (policy auto). Servers
have 64 cores. Lookups on them are counted by cores, and exchanges by their link; nothing was measured.
"""

from dataclasses import dataclass

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.documents.topology import HostMemory, Link
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.workload_store import read_workload

from benchmarks.results_file import write_result

DEVICE = "h100-80gb"
LINKS_GBPS = (25, 100, 400)
LATENCY_SECONDS = 3e-5
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A public set on fewer devices than it fits on."""

    workload: str
    nodes: int
    devices_per_node: int
    batch: int
    host_gib: int
    servers: int
    server_gib: int


CASES = (
    Case(
        workload="criteo-1tb-uncapped",
        nodes=1,
        devices_per_node=4,
        batch=8192,
        host_gib=512,
        servers=4,
        server_gib=192,
    ),
    Case(workload="mlperf-dlrm-v1", nodes=1, devices_per_node=1, batch=16384, host_gib=128, servers=2, server_gib=96),
    Case(
        workload="hugectr-embark-7-table-470b",
        nodes=2,
        devices_per_node=8,
        batch=8192,
        host_gib=1024,
        servers=4,
        server_gib=384,
    ),
)


def main() -> None:
    """Plan all and write the result."""
    lines = [
        "# Host memory next to embedding servers",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        "| set | devices | servers | Gb/s | neither | host memory, ms | servers, ms | auto, ms | on servers by auto |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    dearer = 0
    for case in CASES:
        neither = _planned(_request(case, with_host=False, pool=None))
        host = _planned(_request(case, with_host=True, pool=None))
        for gbps in LINKS_GBPS:
            needed, auto = (
                _planned(_request(case, with_host=with_host, pool=_pool(case, gbps, policy)))
                for with_host, policy in ((False, ServerPolicy.IF_NEEDED), (True, ServerPolicy.AUTO))
            )
            dearer += host is not None and (auto is None or auto.predicted.total_ms > host.predicted.total_ms)
            on_servers = () if auto is None or auto.servers is None else [each.name for each in auto.servers.tables]
            lines.append(
                f"| {case.workload} | {case.nodes} x {case.devices_per_node} | {case.servers} x {case.server_gib} GiB "
                f"| {gbps} | {_ms(neither)} | {_ms(host)} | {_ms(needed)} | {_ms(auto)} "
                f"| {', '.join(on_servers) or 'none'} |"
            )
    lines += ["", f"Plans by auto that are dearer than with host memory alone: {dearer} of {len(CASES) * 3}."]
    print(write_result("server-choice", lines))


def _request(case: Case, *, with_host: bool, pool: ServerPool | None) -> PlanRequest:
    found = preset(DEVICE)
    topology = found.topology(num_nodes=case.nodes, devices_per_node=case.devices_per_node)
    if with_host:
        memory = HostMemory(bytes_per_node=case.host_gib * GIB, link=found.host_link)
        topology = topology.model_copy(update={"host_memory": memory})
    return PlanRequest(
        tables=read_workload(case.workload),
        topology=topology,
        batch_size_per_device=case.batch,
        constraints=Constraints(compute_kernels=tuple(ComputeKernel) if with_host else None),
        servers=pool,
    )


def _pool(case: Case, gbps: int, policy: ServerPolicy) -> ServerPool:
    return ServerPool(
        count=case.servers,
        processes=2,
        memory_bytes=case.server_gib * GIB,
        cores=64,
        link=Link(bandwidth_bytes_per_second=gbps * 1e9 / 8, latency_seconds=LATENCY_SECONDS),
        policy=policy,
    )


def _planned(request: PlanRequest) -> Plan | None:
    try:
        return plan(request, bundle=bundled_bundle(DEVICE))
    except InfeasibleError:
        return None


def _ms(found: Plan | None) -> str:
    return "does not fit" if found is None else f"{found.predicted.total_ms:.2f}"


if __name__ == "__main__":
    main()
