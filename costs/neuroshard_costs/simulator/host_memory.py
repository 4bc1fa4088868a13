"""Time that tables in host memory add to a step, besides that of the same tables in device memory. Seconds.

================  ====================================================  ==============================================
kernel            forward                                               backward
================  ====================================================  ==============================================
fused_uvm         every looked-up row over the link                     every touched row, and its state, there and back
fused_uvm_caching the cache is searched; every missed row over the      the state of every touched row, there and back
                  link, and the one that it replaces back
================  ====================================================  ==============================================

Optimizer state of one number per row is in device memory (split_table_batched_embeddings_ops_training.py of FBGEMM,
construct_split_state); that of one number per column is in host memory, and not cached. All is counted one after the
other and after the kernel's own time: the trainer's pipeline does not prefetch rows. Rows in a full cache were updated
before, so that each is written back when it is replaced.

Numbers: constants.py. No time here was measured.
"""

import numpy as np
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import DeviceType, HostLink

from neuroshard_costs.shards import OPTIMIZERS, FloatArray, ShardArrays
from neuroshard_costs.simulator import constants as c

_PER_ROW = OPTIMIZERS.index(Optimizer.ROWWISE_ADAGRAD)


def direct_seconds(link: HostLink, shards: ShardArrays) -> FloatArray:
    """Return [n, 2] forward and backward seconds of fused_uvm shards."""
    read, both = _seconds_per_byte(link)
    updated_bytes = shards.row_bytes + host_state_row_bytes(shards)
    return np.stack([shards.lookups * shards.row_bytes * read, shards.unique_rows * updated_bytes * both], axis=1)


def cached_seconds(device: DeviceType, link: HostLink, shards: ShardArrays, *, missed_rows: FloatArray) -> FloatArray:
    """Return [n, 2] forward and backward seconds of fused_uvm_caching shards, of which a batch misses [n] rows."""
    _, both = _seconds_per_byte(link)
    searched_bytes = c.CACHE_LOOKUP_BYTES * shards.lookups + c.CACHE_SET_BYTES * shards.unique_rows
    search = searched_bytes / (device.memory_bandwidth_bytes_per_second * c.DRAM_EFFICIENCY)
    forward = search + missed_rows * shards.row_bytes * both
    return np.stack([forward, shards.unique_rows * host_state_row_bytes(shards) * both], axis=1)


def host_state_row_bytes(shards: ShardArrays) -> FloatArray:
    """Return [n] bytes of a row's optimizer state that is in host memory where its weights are."""
    size: FloatArray = np.where(shards.optimizer == _PER_ROW, 0.0, shards.state_row_bytes)
    return size


def _seconds_per_byte(link: HostLink) -> tuple[float, float]:
    """Return seconds per byte of rows that are read, and of rows that are read and written back."""
    read = 1 / (link.to_device_bytes_per_second * c.HOST_ROW_EFFICIENCY)
    return read, read + 1 / (link.from_device_bytes_per_second * c.HOST_ROW_EFFICIENCY)
