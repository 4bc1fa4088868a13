"""The price of tables on embedding servers, and what it adds to a step next to the tables on devices.

    trainers   send ids | own lookups and exchanges                     | own gradients and updates
    servers             | lookups, then pooled embeddings to trainers   | gradients from trainers, updates

The exchange of ids is exposed. What servers do in a pass after it takes the devices' time only where it is longer than
what the slowest device does in that pass; time on the link to host memory, and expansion of repeats, hide nothing.
Exchanges with GPUs have the copies between these and the memory of their node.

With lookahead all of it is next to a whole step of the devices, the dense part included: the step takes the longer, of
which both have a part that is next to nothing where they share a core (`servers.hidden_ahead_ms`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.plan_parts import CollectiveCost, DeviceCost, PlanCost, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.whole_step import WholeStep
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.exchanges import TransferModel, index_bytes, lookup_bytes
from neuroshard_costs.servers import (
    CORES_SOURCE,
    ServerTraffic,
    exchange_work_ms,
    exchanges,
    hidden_ahead_ms,
    lookup_ms,
)
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray

_VALUE_BYTES = 4


def served_cost(
    request: PlanRequest,
    far: PlanRequest,
    tables: Sequence[TablePlacement],
    costs: TransferModel,
    *,
    computed: PlanCost | None = None,
) -> PlanCost:
    """Return the cost of tables on servers, whose processes are its devices.

    Args:
        request: with the servers.
        far: of the tables on servers.
        tables: where they are.
        costs: those of the trainers' devices.
        computed: lookups of the processes by the cost models; not taken where these are of GPUs.
    """
    pool = request.servers
    assert pool is not None, "the caller looked"
    samples, num = request.global_batch_size, pool.num_processes
    lookups, row_bytes, id_bytes, columns = (np.zeros(num) for _ in range(4))
    bytes_of_lookup = lookup_bytes(far.tables.tables)
    for table, placed, of_lookup in zip(far.tables.tables, tables, bytes_of_lookup.tolist(), strict=True):
        own = samples * table.pooling_factor
        ids = index_bytes(np.array(own), np.array(float(samples * table.num_features)), of_lookup)
        for shard in placed.shards:
            lookups[shard.device] += own
            row_bytes[shard.device] += own * shard.num_columns * BYTES_PER_ELEMENT[table.data_type]
            id_bytes[shard.device] += float(ids)
            columns[shard.device] += shard.num_columns * table.num_vectors
    if request.topology.device.is_cpu and computed is not None:
        times: FloatArray = np.array([(each.forward_compute_ms, each.backward_compute_ms) for each in computed.devices])
        source = computed.source
    else:
        times, source = lookup_ms(lookups, row_bytes, cores=pool.cores_per_process), CORES_SOURCE
    traffic = ServerTraffic(id_bytes=id_bytes, columns=columns)
    found = exchanges(traffic, pool, request.topology, global_batch_size=samples, costs=costs)
    forward_ms = float(times[:, 0].max())
    devices = tuple(
        DeviceCost(
            forward_compute_ms=forward,
            backward_compute_ms=backward,
            wait_ms=forward_ms - forward,
            input_communication_ms=found.ids_ms,
            forward_communication_ms=found.pooled_ms,
            backward_communication_ms=found.gradients_ms,
            collectives=(
                CollectiveCost(
                    kind=CollectiveKind.INDICES,
                    family=None,
                    forward_ms=found.ids_ms,
                    backward_ms=0.0,
                    num_bytes=round(id_bytes[process]),
                ),
                CollectiveCost(
                    kind=CollectiveKind.ALL_TO_ALL,
                    family=Family.COLUMNS,
                    forward_ms=found.pooled_ms,
                    backward_ms=found.gradients_ms,
                    num_bytes=round(_VALUE_BYTES * samples * columns[process]),
                ),
            ),
            embedding_dim_sum=round(columns[process]),
        )
        for process, (forward, backward) in enumerate(times.tolist())
    )
    return PlanCost(total_ms=max(each.total_ms for each in devices), source=source, devices=devices)


class Ahead(NamedTuple):
    """A step that lookahead hides servers behind."""

    other_ms: float
    """Of the step, besides tables."""
    work_ms: float
    """Of exchanges with servers, which hides nowhere (`servers.exchange_work_ms`)."""


def ahead_of(request: PlanRequest, step: WholeStep | None, servers: PlanCost, costs: TransferModel) -> Ahead | None:
    """Return the step behind which servers hide. None: the request does not look ahead, or its step is not known."""
    if step is None or not request.looks_ahead:
        return None
    return Ahead(step.total_ms - step.embedding_ms, exchange_work_ms(servers, request.topology, costs))


def hidden_ms(devices: PlanCost, servers: PlanCost, ahead: Ahead | None) -> float:
    """Return the part of the servers' time that the devices do not wait for.

    Args:
        devices: cost of their own tables.
        servers: cost of the other tables.
        ahead: what else lookahead hides them behind. None: no row is looked up ahead.
    """
    if ahead is not None:
        return hidden_ahead_ms(servers.total_ms, devices.total_ms + ahead.other_ms, work_ms=ahead.work_ms)
    slowest, far = max(devices.devices, key=lambda each: each.total_ms), servers.devices[0]
    backward_ms = max(each.backward_compute_ms for each in servers.devices)
    passes = (
        (
            far.forward_compute_ms + far.wait_ms + far.forward_communication_ms,
            slowest.input_communication_ms
            + slowest.forward_compute_ms
            + slowest.wait_ms
            + slowest.forward_communication_ms,
        ),
        (
            far.backward_communication_ms + backward_ms,
            slowest.backward_communication_ms + slowest.backward_compute_ms + slowest.dense_update_ms,
        ),
    )
    return sum(min(pair) for pair in passes)


def next_to_servers(devices: PlanCost, servers: PlanCost, ahead: Ahead | None) -> PlanCost:
    """Return the cost of the tables on devices with what servers add to it. ``ahead`` is that of `hidden_ms`."""
    hidden = hidden_ms(devices, servers, ahead)
    changed = {"server_ms": servers.total_ms, "server_hidden_ms": hidden}
    return devices.model_copy(
        update={
            "total_ms": devices.total_ms + servers.total_ms - hidden,
            "devices": tuple(each.model_copy(update=changed) for each in devices.devices),
        }
    )
