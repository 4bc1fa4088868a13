"""Time of the embedding kernels of a device: demands on its resources per shard, summed per call, combined.

Formulas: docs/concepts/device-simulator-formulas.md; numbers: constants.py. Times are base units here: seconds.

Every demand is non-negative and belongs to one shard. A call's time is a monotone convex function of the sums of its
shards' demands, and never falls when its widest shard grows. The cost networks have the same form and the lower bound
of a plan relies on it.
"""

from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.arithmetic import log2, power_norm, weighted_sum
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import NUM_CALLS, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.cache import missed_rows
from neuroshard_costs.simulator.granules import random_bytes, sector_bytes, sorted_bytes

DEVICE_SECONDS: FloatArray = np.array([c.FORWARD_DEVICE_SECONDS, c.BACKWARD_DEVICE_SECONDS], dtype=np.float64)
"""[2] least time on the device of a forward and of a backward call, however little they do."""
HOST_SECONDS: FloatArray = np.array([c.FORWARD_HOST_SECONDS, c.BACKWARD_HOST_SECONDS], dtype=np.float64)
"""[2] what the host needs to launch a forward and a backward call."""

NUM_DEMANDS = 7
_ISSUE = np.array([2, 5])  # of the forward and of the backward kernel
_FORWARD = slice(0, 3)
_BACKWARD = slice(3, 6)
_SORT = 6
_CHUNK = 1 << 14  # shards per step: its temporaries stay in the processor's cache


class CallTimes(NamedTuple):
    """The calls of m sets of shards, on one device each."""

    device_seconds: FloatArray
    """[m, 2] forward and backward: what the device is busy, one call after another; 0 for an empty set."""
    num_calls: IndexArray
    """[m] calls in each direction: one per family and data type."""


def set_seconds(
    device: DeviceType, shards: ShardArrays, set_index: IndexArray, num_sets: int, *, pipeline: Pipeline
) -> FloatArray:
    """Return [num_sets, 2]: forward and backward seconds of each set's calls; 0 for an empty set.

    Args:
        device: its data sheet decides all times.
        shards: of all sets, in any order.
        set_index: [n] the set that each shard belongs to.
        num_sets: sets; those that no shard belongs to are devices without tables.
        pipeline: without one the host launches each call when the one before has ended.
    """
    times = call_times(device, shards, set_index, num_sets)
    if pipeline is Pipeline.NONE:
        return overlapped(np.stack([times.device_seconds, times.num_calls[:, None] * HOST_SECONDS]))
    return times.device_seconds


def call_times(device: DeviceType, shards: ShardArrays, set_index: IndexArray, num_sets: int) -> CallTimes:
    """Return the calls of each set: the device works through one call after another."""
    call = set_index * NUM_CALLS + shards.call
    is_used = np.bincount(call, minlength=num_sets * NUM_CALLS) > 0
    kernels = kernel_seconds(device, shards, call, num_sets * NUM_CALLS) + is_used[:, None] * DEVICE_SECONDS
    return CallTimes(
        device_seconds=kernels.reshape(num_sets, NUM_CALLS, 2).sum(axis=1),
        num_calls=is_used.reshape(num_sets, NUM_CALLS).sum(axis=1),
    )


def kernel_seconds(device: DeviceType, shards: ShardArrays, call_index: IndexArray, num_calls: int) -> FloatArray:
    """Return [num_calls, 2]: seconds the kernels of each call compute, without what a call costs at least."""
    demands = demand_seconds(device, shards)
    sums: FloatArray = np.stack(
        [np.bincount(call_index, weights=column, minlength=num_calls) for column in demands.T], axis=1
    )
    widest = np.zeros(num_calls)
    np.maximum.at(widest, call_index, shards.num_columns)
    return combined_seconds(sums, warp_share(widest))


def combined_seconds(demands: FloatArray, share: FloatArray) -> FloatArray:
    """Return [m, 2] forward and backward seconds of calls with these summed demands [m, 7] and warp shares [m]."""
    busy = demands.T.copy()
    busy[_ISSUE] *= share
    return np.stack([overlapped(busy[_FORWARD]), overlapped(busy[_BACKWARD]) + busy[_SORT]], axis=1)


def overlapped(seconds: FloatArray) -> FloatArray:
    """Return the time in which all along the first axis are done, working side by side."""
    return power_norm(seconds, c.OVERLAP_NORM)


def warp_share(widest_columns: FloatArray) -> FloatArray:
    """Return the share of a warp that each bag takes in calls whose widest shard has these columns: 1/4, 1/2 or 1."""
    narrow, middle = c.SUB_WARP_COLUMNS
    return np.where(widest_columns <= narrow, 0.25, np.where(widest_columns <= middle, 0.5, 1.0))


def demand_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    """Return [n, 7]: seconds each resource would be busy for each shard alone, a whole warp to each bag.

    Columns: DRAM, cache and issue slots of the forward kernel, the same of the backward kernel, and the sort.
    """
    result = np.empty((len(shards), NUM_DEMANDS))
    for start in range(0, len(shards), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        result[chunk] = _demand_seconds(device, shards.take(np.arange(*chunk.indices(len(shards)))))
    return result


def shared_cache_bytes(device: DeviceType) -> float:
    """Return the capacity for rows that all multiprocessors read.

    Each partition of the cache may hold a copy of its own of a hot row: between a partition's size and the whole.
    """
    return device.cache_bytes * (1 + 1 / device.cache_partitions) / 2


def _demand_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    lookups, unique, bags, filled_bags = shards.lookups, shards.unique_rows, shards.bags, shards.filled_bags
    weight_bytes, output_bytes = shards.row_bytes, shards.output_row_bytes
    passes = np.maximum(1.0, shards.num_columns / c.WARP_COLUMNS)

    dram_rate = device.memory_bandwidth_bytes_per_second * c.DRAM_EFFICIENCY
    cache_rate = device.cache_bandwidth_bytes_per_second * c.CACHE_EFFICIENCY
    cycle_rate = device.num_multiprocessors * device.clock_hz
    # A call works through its tables one after another; a small batch has several tables in flight at once.
    capacity = shared_cache_bytes(device) * bags / (bags + device.num_multiprocessors * c.WARPS_IN_FLIGHT)

    missed = missed_rows(shards, row_bytes=sector_bytes(weight_bytes), capacity_bytes=capacity)
    inputs = c.INDEX_BYTES * (lookups + bags)
    forward_dram = missed * random_bytes(weight_bytes) + inputs + c.WRITE_PRICE * bags * sector_bytes(output_bytes)
    forward_cache = lookups * sector_bytes(weight_bytes) + inputs + bags * output_bytes
    forward_cycles = (c.CYCLES_PER_REQUEST * lookups + c.CYCLES_PER_BAG * bags) * passes

    gradient_repeats = np.maximum(lookups - filled_bags, 0.0)
    gradient_misses = filled_bags + gradient_repeats * (filled_bags * output_bytes) / (
        filled_bags * output_bytes + capacity
    )
    long_segments = _long_segments(shards)
    rows = {"num_rows": shards.num_rows, "touched_rows": unique}
    updated_bytes = sorted_bytes(weight_bytes, **rows) + sorted_bytes(shards.state_row_bytes, **rows)
    # Weights and state are read and written back; partial sums of cut segments are written and read.
    partial_sum_bytes = long_segments * shards.num_columns * c.PARTIAL_SUM_BYTES
    update_bytes = c.TURNAROUND * 2 * (updated_bytes + partial_sum_bytes)
    backward_dram = gradient_misses * random_bytes(output_bytes) + update_bytes + c.INDEX_BYTES * 2 * lookups
    backward_cache = lookups * sector_bytes(output_bytes) + update_bytes
    backward_cycles = (c.CYCLES_PER_REQUEST * lookups + c.CYCLES_PER_SEGMENT * (unique + long_segments)) * passes

    sort_passes = (log2(shards.num_rows) + c.SORT_KEY_BITS) / c.SORT_BITS_PER_PASS
    sort_bytes = lookups * (c.SORT_FIXED_BYTES + c.SORT_PASS_BYTES * sort_passes)
    return np.stack(
        [
            forward_dram / dram_rate,
            forward_cache / cache_rate,
            forward_cycles / cycle_rate,
            backward_dram / dram_rate,
            backward_cache / cache_rate,
            backward_cycles / cycle_rate,
            sort_bytes / (device.memory_bandwidth_bytes_per_second * c.SORT_EFFICIENCY),
        ],
        axis=1,
    )


def _long_segments(shards: ShardArrays) -> FloatArray:
    """Return [n] pieces that segments of more lookups than one warp sums are cut into."""
    pieces = np.where(MEAN_HITS > c.LOOKUPS_PER_WARP, MEAN_HITS / c.LOOKUPS_PER_WARP, 0.0)
    return np.minimum(
        shards.unique_rows * weighted_sum(shards.reuse_histogram, pieces), shards.lookups / c.LOOKUPS_PER_WARP
    )
