"""Time that tables in host memory add to a step, besides that of the same tables in device memory. Seconds.

================  ====================================================  ==============================================
kernel            forward                                               backward
================  ====================================================  ==============================================
fused_uvm         every looked-up row over the link, but repeats of     every touched row, and its state, there and
                  the hottest rows                                      back
fused_uvm_caching lookups made distinct, and sought in the cache; every the state of every touched row, there and back
                  missed row over the link, and the one that it
                  replaces back
================  ====================================================  ==============================================

A cache has sets of 32 rows. Its kernels (split_embeddings_cache of FBGEMM) sort all lookups and keep the distinct rows;
seek those by a warp each, which hashes a row to its set and compares the set's 32 tags; sort as many numbers of sets
as there are lookups; bring in what was not found; and seek every lookup again, now for its place. That is two sorts,
and a search for each lookup and each distinct row. What the host needs to launch some 20 kernels more is not in these
times, and short calls wait for it (HOST_BOUND_LOOKUPS).

Optimizer state of one number per row is in device memory (split_table_batched_embeddings_ops_training.py of FBGEMM,
construct_split_state); that of one number per column is in host memory, and not cached. All is counted one after the
other and after the kernel's own time: the trainer's pipeline does not prefetch rows. Rows in a full cache were updated
before, so that each is written back when it is replaced. A link works both ways at once, so that rows there and back
take as long as one way at a lower rate.

Times of one card were measured by others. Devices of a node share its memory: no more than an even share of what that
reads and writes is counted for each, as if all were busy at once. Numbers: constants.py.
"""

import numpy as np
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import DeviceType, HostLink

from neuroshard_costs.arithmetic import log2
from neuroshard_costs.shards import OPTIMIZERS, FloatArray, ShardArrays
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.cache import missed_rows

HOST_BOUND_LOOKUPS = 180_000
"""Of a cached call, below which the host needs longer than an H100. Published forward passes of 65,536 lookups took
0.27 ms without a missed row (recsys_h100_host), which the device would need for this number."""
_PER_ROW = OPTIMIZERS.index(Optimizer.ROWWISE_ADAGRAD)


def direct_seconds(link: HostLink, shards: ShardArrays, *, devices_per_node: int) -> FloatArray:
    """Return [n, 2] forward and backward seconds of fused_uvm shards.

    Args:
        link: between the node's memory and one device.
        shards: in host memory.
        devices_per_node: that share the memory.
    """
    near = np.full(len(shards), float(c.HOST_NEAR_BYTES))
    read_bytes = missed_rows(shards, row_bytes=shards.row_bytes, capacity_bytes=near) * shards.row_bytes
    updated_bytes = shards.unique_rows * (shards.row_bytes + host_state_row_bytes(shards))
    return np.stack(
        [read_bytes / _read_rate(link, devices_per_node), updated_bytes / _update_rate(link, devices_per_node)], axis=1
    )


def cached_seconds(
    device: DeviceType, link: HostLink, shards: ShardArrays, *, missed_rows: FloatArray, devices_per_node: int
) -> FloatArray:
    """Return [n, 2] forward and backward seconds of fused_uvm_caching shards.

    Args:
        device: searches the cache.
        link: between the node's memory and one device.
        shards: in host memory.
        missed_rows: [n] rows that a batch misses.
        devices_per_node: that share the memory.
    """
    replaced_bytes = missed_rows * shards.row_bytes
    state_bytes = shards.unique_rows * host_state_row_bytes(shards)
    rate = _update_rate(link, devices_per_node)
    return np.stack([searched_seconds(device, shards) + replaced_bytes / rate, state_bytes / rate], axis=1)


def searched_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    """Return [n] seconds in which lookups are made distinct and sought in a cache with the sets of one of all rows."""
    row_bits = log2(shards.num_rows) + c.SORT_KEY_BITS
    set_bits = np.maximum(row_bits - log2(c.CACHE_WAYS), 0.0)
    sorted_bytes = (c.CACHED_KEY_PASS_BYTES * row_bits + c.SORT_PASS_BYTES * set_bits) / c.SORT_BITS_PER_PASS
    sort_seconds = shards.lookups * sorted_bytes / (device.memory_bandwidth_bytes_per_second * c.SORT_EFFICIENCY)
    cycles = c.CACHE_SEARCH_CYCLES * (shards.lookups + shards.unique_rows)
    seconds: FloatArray = sort_seconds + cycles / (device.num_multiprocessors * device.clock_hz)
    return seconds


def host_state_row_bytes(shards: ShardArrays) -> FloatArray:
    """Return [n] bytes of a row's optimizer state that is in host memory where its weights are."""
    size: FloatArray = np.where(shards.optimizer == _PER_ROW, 0.0, shards.state_row_bytes)
    return size


def copy_seconds(link: HostLink, num_bytes: float, *, devices_per_node: int) -> tuple[float, float]:
    """Return the seconds of a copy of values to each device of a node at once, and of one from it.

    Values on the way to a device are copied to locked pages first; those from it are received there.
    """
    share = c.HOST_NODE_RATE / devices_per_node
    up, down = (
        num_bytes / min(rate * c.HOST_LINK_EFFICIENCY, share)
        for rate in (link.to_device_bytes_per_second, link.from_device_bytes_per_second)
    )
    return up + num_bytes * c.HOST_PAGES_BYTE_SECONDS, down


def _read_rate(link: HostLink, devices_per_node: int) -> float:
    """Return bytes per second of rows that are read."""
    return min(link.to_device_bytes_per_second * c.HOST_LINK_EFFICIENCY, c.HOST_NODE_RATE / devices_per_node)


def _update_rate(link: HostLink, devices_per_node: int) -> float:
    """Return bytes per second of rows that are read and written back, counted once."""
    slower = min(link.to_device_bytes_per_second, link.from_device_bytes_per_second)
    return min(slower * c.HOST_UPDATE_EFFICIENCY, c.HOST_NODE_RATE / (2 * devices_per_node))
