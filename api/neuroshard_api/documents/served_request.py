"""A request with embedding servers as two without: of the tables on devices, and of those on servers."""

from collections.abc import Iterable
from math import ceil

from neuroshard_api.documents.dense_profile import features_sha256
from neuroshard_api.documents.request import Constraints, MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kinds import ShardingType

PROCESS_BYTES = 1536 * 2**20
"""Memory of a server's process before it has tables: torch, TorchRec, and FBGEMM take 0.9 GiB, the groups' buffers and
threads the rest."""
ID_BYTES, VALUE_BYTES = 8, 4
"""Of an id, and of a number of a pooled embedding."""
_SERVER = DeviceType(
    name="cpu-server",
    product="a server's processor",
    memory_bytes=1,
    memory_bandwidth_bytes_per_second=1e11,
    cache_bytes=2**25,
    cache_bandwidth_bytes_per_second=1e12,
    num_multiprocessors=1,
    clock_hz=2.5e9,
    source="assumed; it prices nothing",
)
"""Of trainers on other devices than CPUs; each process has a memory of its own."""


def without_tables(request: PlanRequest, names: Iterable[str]) -> PlanRequest:
    """Return the request of the tables on devices, without servers.

    A device keeps memory free for ids and pooled embeddings of its samples that it exchanges with servers, and with
    lookahead for those of the next batch. The dense part is that of all tables.
    """
    far = frozenset(names)
    kept = tuple(table for table in request.tables.tables if table.name not in far)
    exchanged = sum(
        _exchanged_bytes(table, looks_ahead=request.looks_ahead) for table in request.tables.tables if table.name in far
    )
    reserve = request.memory.reserve_bytes + ceil(request.batch_size_per_device * exchanged)
    dense = request.dense
    if dense is not None:
        dense = dense.model_copy(update={"features_sha256": features_sha256(kept)})
    return request.model_copy(
        update={
            "tables": request.tables.model_copy(update={"tables": kept}),
            "memory": request.memory.model_copy(update={"reserve_bytes": reserve}),
            "dense": dense,
            "servers": None,
        }
    )


def _exchanged_bytes(table: Table, *, looks_ahead: bool) -> float:
    """Return the bytes of a sample's ids, and of its pooled embeddings and their gradients as sent and as joined."""
    batches, tensors = (2, 6) if looks_ahead else (1, 4)
    return batches * ID_BYTES * table.pooling_factor + tensors * VALUE_BYTES * table.embedding_dim * table.num_features


def request_of_servers(request: PlanRequest, names: Iterable[str]) -> PlanRequest:
    """Return the request of the tables on servers, whose processes take the place of devices.

    They look up for the batches of all trainers, of which each has an equal part. A checkpoint copies one shard after
    the other: memory for a copy of the largest table is kept free, or half of what there is for tables, in which no
    shard is larger than the other half. With lookahead they hold the ids of two batches.
    """
    pool = request.servers
    assert pool is not None, "the caller looked"
    far = frozenset(names)
    kept = tuple(table for table in request.tables.tables if table.name in far)
    largest = max(VALUE_BYTES * table.num_embeddings * table.embedding_dim for table in kept)
    copied = min(largest, max(0, pool.bytes_per_process - PROCESS_BYTES) // 2)
    ahead = ID_BYTES * request.global_batch_size * sum(table.pooling_factor for table in kept)
    processor = request.topology.device if request.topology.device.is_cpu else _SERVER
    device = processor.model_copy(update={"memory_bytes": pool.bytes_per_process})
    link = pool.used_link(request.topology)
    return request.model_copy(
        update={
            "tables": request.tables.model_copy(update={"tables": kept}),
            "topology": request.topology.model_copy(
                update={
                    "num_nodes": 1,
                    "devices_per_node": pool.num_processes,
                    "device": device,
                    "intra_node": link,
                    "rack": None,
                    "host_memory": None,
                }
            ),
            "batch_size_per_device": ceil(request.global_batch_size / pool.num_processes),
            "pipeline": Pipeline.NONE,
            "memory": MemorySettings(
                dense_bytes=0, reserve_bytes=PROCESS_BYTES + copied + (ceil(ahead) if request.looks_ahead else 0)
            ),
            "constraints": Constraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)),
            "dense": None,
            "dense_choices": None,
            "dense_memory": None,
            "dense_matrices": None,
            "remarks": None,
            "servers": None,
        }
    )
