"""Times of embedding servers: lookups on their cores, and the exchanges with trainers. Milliseconds.

    ids up -> lookups -> pooled embeddings down | gradients up -> updates

GPUs exchange with servers through the memory of their node: pooled embeddings are copied to them, and gradients from
them, over the link of host memory. Ids are in that memory.

Lookups are those of the cost models where these are of a CPU, which servers then have too. Elsewhere they are counted
by cores: a row costs one of them a fixed time, and a time for its bytes. Over a link an exchange takes as long as the
busiest server or trainer needs for its bytes; servers on the trainers' node exchange as a collective of all ranks does.

With lookahead a thread of each trainer exchanges while another computes the step. A GPU's trainer has cores for both.
On CPUs a trainer is one core, which both share: the work of the exchange adds to the step, and what waits for the
network or for a server does not. The exchange also waits for its turn on the core, until the step has ended at the
latest, so that a short step hides nothing.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.plan_parts import PlanCost
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import Link, Topology
from neuroshard_api.sharding.collectives import CollectiveKind

from neuroshard_costs.exchanges import MS_PER_SECOND, Exchange, TransferModel
from neuroshard_costs.host import HostWork
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.host_memory import copy_seconds

CORES_SOURCE = "simulated:cpu-cores"
"""Label of times that are counted by cores."""
TURN_MS = 4.0
"""Milliseconds that a thread waits for a core on which another computes: Linux changes threads at its timer, which has
250 Hz unless it was built with another rate (CONFIG_HZ)."""
_VALUE_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTraffic:
    """What the processes of servers exchange with all trainers in a step."""

    id_bytes: FloatArray
    """[processes] Ids and lengths."""
    columns: FloatArray
    """[processes] Pooled columns of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerExchanges:
    """Milliseconds of a step's exchanges, from and to the memory of trainers' devices."""

    ids_ms: float
    pooled_ms: float
    gradients_ms: float


def lookup_ms(lookups: FloatArray, looked_up_bytes: FloatArray, *, cores: float) -> FloatArray:
    """Return [n, 2] forward and backward milliseconds of processes, the fused optimizer included.

    Args:
        lookups: [n] of all samples.
        looked_up_bytes: [n] lookups times bytes of a row.
        cores: of each process.
    """
    passes = (
        (c.SERVER_FORWARD_SECONDS, c.SERVER_FORWARD_BYTE_SECONDS),
        (c.SERVER_BACKWARD_SECONDS, c.SERVER_BACKWARD_BYTE_SECONDS),
    )
    return np.stack(
        [MS_PER_SECOND / cores * (each * lookups + of_byte * looked_up_bytes) for each, of_byte in passes], axis=1
    )


def evenly_shared_ms(table: Table, request: PlanRequest) -> float:
    """Return the milliseconds of lookups and exchange of a table that all of a request's servers share evenly."""
    pool = request.servers
    assert pool is not None, "the caller looked"
    samples = request.global_batch_size
    lookups = samples * table.pooling_factor
    row_bytes = lookups * table.embedding_dim * BYTES_PER_ELEMENT[table.data_type]
    cores = pool.cores_per_process * pool.num_processes
    link = pool.used_link(request.topology)
    sent_bytes = 8 * lookups + 8 * samples * table.embedding_dim * table.num_features
    busy_s = sent_bytes / (pool.count * link.bandwidth_bytes_per_second)
    return float(lookup_ms(np.array([lookups]), np.array([row_bytes]), cores=cores).sum()) + MS_PER_SECOND * busy_s


def hidden_ahead_ms(server_ms: float, step_ms: float, *, work_ms: float = 0.0) -> float:
    """Return the part of servers' time that lookahead hides.

    A step takes the longer of both, each with what the other takes from it where they share a core.

    Args:
        server_ms: from the first id sent to the last row updated.
        step_ms: of a step without these tables.
        work_ms: see `exchange_work_ms`.
    """
    turn_ms = min(step_ms, TURN_MS) if work_ms else 0.0
    return max(0.0, server_ms + step_ms - max(step_ms + work_ms, server_ms + turn_ms))


def exchange_work_ms(servers: PlanCost, topology: Topology, costs: TransferModel) -> float:
    """Return the milliseconds of exchanges with servers on the core on which a trainer computes. 0: on other cores.

    It is the host's part of a collection that is exchanged, and the copies to and from sockets, at the rate at which
    processes of a node exchange: of CPUs that rate is one of copies.

    Args:
        servers: cost of the tables on them.
        topology: the trainers.
        costs: has the host's times.
    """
    if not topology.device.is_cpu:
        return 0.0
    host_ms = (
        costs.host_times(HostWork(collections=1, columns=1)).tables_ms
        - costs.host_times(HostWork(collections=0)).tables_ms
    )
    sent = [each for device in servers.devices for each in device.collectives]
    num_bytes = sum(
        each.num_bytes if each.kind is CollectiveKind.INDICES else 2 * each.num_bytes  # embeddings, and gradients
        for each in sent
    )
    copy_s = num_bytes / topology.num_devices / topology.intra_node.bandwidth_bytes_per_second
    return host_ms + MS_PER_SECOND * copy_s


def exchanges(
    traffic: ServerTraffic, pool: ServerPool, topology: Topology, *, global_batch_size: int, costs: TransferModel
) -> ServerExchanges:
    """Return the times of the three exchanges.

    Args:
        traffic: of each process.
        pool: the servers.
        topology: the trainers.
        global_batch_size: samples of all trainers.
        costs: of exchanges on the trainers' node.
    """
    link = pool.link_to(topology)
    if link is None:
        return _on_node(traffic, topology, global_batch_size=global_batch_size, costs=costs)
    pooled_bytes = _VALUE_BYTES * global_batch_size * traffic.columns
    ids_ms, pooled_ms = (
        _over_link(num_bytes.reshape(pool.count, pool.processes).sum(axis=1), link, topology)
        for num_bytes in (traffic.id_bytes, pooled_bytes)
    )
    to_ms, from_ms = _copies_ms(float(pooled_bytes.sum()) / topology.num_devices, topology)
    return ServerExchanges(ids_ms=ids_ms, pooled_ms=pooled_ms + to_ms, gradients_ms=pooled_ms + from_ms)


def _copies_ms(num_bytes: float, topology: Topology) -> tuple[float, float]:
    """Return the times of copies of these bytes to each device, and from it.

    A device whose link to host memory is not known has the slowest of those that are.
    """
    if topology.device.is_cpu:
        return 0.0, 0.0
    links = {name: each.host_link for name, each in load_presets().items() if not each.device.is_cpu}
    usual = links.get(topology.device.name) or min(links.values(), key=lambda each: each.to_device_bytes_per_second)
    link = usual if topology.host_memory is None else topology.host_memory.link
    to_s, from_s = copy_seconds(link, num_bytes, devices_per_node=topology.devices_per_node)
    return MS_PER_SECOND * to_s, MS_PER_SECOND * from_s


def _over_link(num_bytes: FloatArray, link: Link, topology: Topology) -> float:
    """Return the time in which servers exchange these [servers] bytes with trainers, of which each has equally many."""
    of_trainer = float(num_bytes.sum()) / topology.num_devices
    busy = max(
        float(num_bytes.max()) / link.bandwidth_bytes_per_second,
        of_trainer / topology.inter_node.bandwidth_bytes_per_second,
    )
    return MS_PER_SECOND * (link.latency_seconds + busy)


def _on_node(
    traffic: ServerTraffic, topology: Topology, *, global_batch_size: int, costs: TransferModel
) -> ServerExchanges:
    """Return the times of all-to-alls of trainers and servers, of as many bytes as the servers send to trainers.

    Of its own columns a rank keeps a share in an all-to-all, and a server sends all: so each has fewer samples in it.
    """
    num_ranks = topology.num_devices + len(traffic.columns)
    ranks = topology.model_copy(update={"num_nodes": 1, "devices_per_node": num_ranks, "rack": None})
    samples = -(-global_batch_size // (num_ranks - 1))

    def both_ms(columns: FloatArray) -> FloatArray:
        exchange = Exchange(
            topology=ranks,
            batch_size_per_device=samples,
            mean_dim_sum=float(columns.sum()) / num_ranks,
            bytes_per_element=_VALUE_BYTES,
        )
        return exchange.times_ms(np.asarray(columns.max()), costs)

    ids_ms = float(both_ms(traffic.id_bytes / (_VALUE_BYTES * global_batch_size))[0])
    pooled_ms, gradients_ms = both_ms(traffic.columns).tolist()
    added = costs.added_collection
    if added is not None:
        ids_ms = max(ids_ms, added.indices_ms)
        pooled_ms, gradients_ms = (max(pair) for pair in zip((pooled_ms, gradients_ms), added.exchange_ms, strict=True))
    return ServerExchanges(ids_ms=ids_ms, pooled_ms=pooled_ms, gradients_ms=gradients_ms)
