"""Time of the embedding kernels of a device: demands on its resources per shard, summed per call, combined.

Formulas: docs/concepts/device-simulator-formulas.md; numbers: constants.py. Times are base units here: seconds.

Every demand is non-negative and belongs to one shard. A call's time is a monotone convex function of the sums of its
shards' demands, and never falls when its widest shard grows. The cost networks have the same form and the lower bound
of a plan relies on it.
"""

from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.arithmetic import expm1, log2, power_norm, weighted_sum
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import NUM_CALLS, OPTIMIZERS, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.cache import missed_rows
from neuroshard_costs.simulator.granules import random_bytes, sector_bytes, sorted_bytes

DEVICE_SECONDS: FloatArray = np.array([c.FORWARD_DEVICE_SECONDS, c.BACKWARD_DEVICE_SECONDS], dtype=np.float64)
"""[2] least time on the device of a forward and of a backward call, however little they do."""
HOST_SECONDS: FloatArray = np.array([c.FORWARD_HOST_SECONDS, c.BACKWARD_HOST_SECONDS], dtype=np.float64)
"""[2] what the host needs to launch a forward and a backward call."""

NUM_DEMANDS = 9
INDEX_CHECK = 3
"""Column of the demands that FBGEMM's check of the indices makes, before the forward kernel."""
_FORWARD_ISSUE, _BACKWARD_ISSUE, _WHOLE_WARPS, _BEFORE_UPDATE = 2, 6, 7, 8
_FORWARD = slice(0, 3)
_BACKWARD = slice(4, 7)
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
    """Return [m, 2] forward and backward seconds of calls with these summed demands [m, 9] and warp shares [m]."""
    busy = demands.T.copy()
    busy[_FORWARD_ISSUE] *= share
    busy[_BACKWARD_ISSUE] = busy[_BACKWARD_ISSUE] * share + busy[_WHOLE_WARPS]
    return np.stack(
        [overlapped(busy[_FORWARD]) + busy[INDEX_CHECK], overlapped(busy[_BACKWARD]) + busy[_BEFORE_UPDATE]], axis=1
    )


def overlapped(seconds: FloatArray) -> FloatArray:
    """Return the time in which all along the first axis are done, working side by side."""
    return power_norm(seconds, c.OVERLAP_NORM)


def warp_share(widest_columns: FloatArray) -> FloatArray:
    """Return the share of a warp that each bag takes in calls whose widest shard has these columns: 1/4, 1/2 or 1."""
    narrow, middle = c.SUB_WARP_COLUMNS
    return np.where(widest_columns <= narrow, 0.25, np.where(widest_columns <= middle, 0.5, 1.0))


def demand_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    """Return [n, 9]: seconds each resource would be busy for each shard alone, a whole warp to each bag.

    Columns: DRAM, cache and issue slots of the forward kernel, the check of the indices before it; the same of the
    backward kernel, issue slots of it that narrow tables do not save, and the kernels before it.
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
    cached_reads = _first_reads(shards, device.num_multiprocessors)
    forward_cache = cached_reads * sector_bytes(weight_bytes) + inputs + bags * output_bytes
    forward_cycles = c.CYCLES_PER_REQUEST * lookups * passes + c.CYCLES_PER_BAG * bags
    check_cycles = c.CHECK_CYCLES_PER_BAG * bags + c.CHECK_CYCLES_PER_LOOKUP * lookups

    gradient_repeats = np.maximum(lookups - filled_bags, 0.0)
    gradient_misses = filled_bags + gradient_repeats * (filled_bags * output_bytes) / (
        filled_bags * output_bytes + capacity
    )
    long_rows, long_segments = _long_segments(shards)
    rows = {"num_rows": shards.num_rows, "touched_rows": unique}
    updated_bytes = sorted_bytes(weight_bytes, **rows) + sorted_bytes(shards.state_row_bytes, **rows)
    # Weights and state are read and written back; partial sums of cut segments are written and read.
    update_bytes = 2 * (updated_bytes + long_segments * shards.num_columns * c.PARTIAL_SUM_BYTES)
    backward_dram = gradient_misses * random_bytes(output_bytes) + update_bytes + c.INDEX_BYTES * 2 * lookups
    backward_cache = lookups * sector_bytes(output_bytes) + update_bytes
    is_adam = shards.optimizer == OPTIMIZERS.index(Optimizer.ADAM)
    backward_cycles = c.GRADIENT_CYCLES_PER_REQUEST * lookups * passes + c.CYCLES_PER_SEGMENT * unique
    whole_warp_cycles = np.where(is_adam, c.ADAM_CYCLES_PER_SEGMENT * unique, 0.0)
    before_cycles = c.CYCLES_PER_GRADIENT * bags + long_rows * np.where(
        is_adam, c.ADAM_CYCLES_PER_LONG_SEGMENT, c.CYCLES_PER_LONG_SEGMENT
    )
    sort_passes = (log2(shards.num_rows) + c.SORT_KEY_BITS) / c.SORT_BITS_PER_PASS
    sort_bytes = lookups * c.SORT_PASS_BYTES * sort_passes
    sort_rate = device.memory_bandwidth_bytes_per_second * c.SORT_EFFICIENCY
    return np.stack(
        [
            forward_dram / dram_rate,
            forward_cache / cache_rate,
            forward_cycles / cycle_rate,
            check_cycles / cycle_rate,
            backward_dram / dram_rate,
            backward_cache / cache_rate,
            backward_cycles / cycle_rate,
            whole_warp_cycles / cycle_rate,
            before_cycles / cycle_rate + sort_bytes / sort_rate,
        ],
        axis=1,
    )


def _first_reads(shards: ShardArrays, num_multiprocessors: int) -> FloatArray:
    """Return [n] reads of a row that are a multiprocessor's first: its own cache serves the ones after."""
    first = num_multiprocessors * -expm1(-MEAN_HITS / num_multiprocessors)
    return np.minimum(shards.unique_rows * weighted_sum(shards.reuse_histogram, first), shards.lookups)


def _long_segments(shards: ShardArrays) -> tuple[FloatArray, FloatArray]:
    """Return [n] rows of more lookups than one warp sums, and [n] pieces that they are cut into."""
    is_long = MEAN_HITS > c.LOOKUPS_PER_WARP
    pieces = np.where(is_long, MEAN_HITS / c.LOOKUPS_PER_WARP, 0.0)
    long_rows = shards.unique_rows * weighted_sum(shards.reuse_histogram, is_long.astype(np.float64))
    most = shards.lookups / c.LOOKUPS_PER_WARP
    cut = shards.unique_rows * weighted_sum(shards.reuse_histogram, pieces)
    return np.minimum(long_rows, most), np.minimum(cut, most)
