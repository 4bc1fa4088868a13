"""Time of one fused embedding call on a device: demands on its resources per shard, summed over the set, combined.

Formulas and their sources: docs/concepts/device-simulator.md. Times are base units here: seconds.

Every demand is non-negative and belongs to one shard; a set's time is a monotone convex function of the sums of its
shards' demands. The cost networks have the same form and the lower bound of a plan relies on it.
"""

import numpy as np
from neuroshard_api.topology import DeviceType

from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator.cache import missed_rows

DRAM_EFFICIENCY = 0.90  # of the peak: TorchRec's copy kernels reach 89-91 % on an H100 (h100_pcie_regroup)
CACHE_EFFICIENCY = 0.68  # of the peak for gathered rows; calibrated
ROW_ACTIVATION_BYTES = 64.0  # what opening a random row of DRAM costs, as bytes not transferred; calibrated
TURNAROUND = 1.4  # of read-modify-write: the memory bus changes direction; calibrated
SECTOR_BYTES = 32.0  # granule of L2 and of the memory bus
BURST_BYTES = 64.0  # granule of an HBM access

WARP_ELEMENTS = 128.0  # one pass of a warp: 32 lanes of 4 elements
WARPS_IN_FLIGHT = 32.0  # per multiprocessor; registers allow half of the 64; assumed
CYCLES_PER_REQUEST = 3.0  # of a multiprocessor for one row read by one warp: address, load, accumulate; calibrated
CYCLES_PER_BAG = 8.0  # offsets, loop set-up and the write of one output row; calibrated
CYCLES_PER_SEGMENT = 12.0  # set-up of one unique row in the backward kernel; assumed
LOOKUPS_PER_WARP = 32.0  # FBGEMM cuts longer segments of equal rows and reduces them by several blocks

INDEX_BYTES = 8.0
GRADIENT_ELEMENT_BYTES = 4.0  # pooled embeddings and their gradients, FP32
SORT_PASS_BYTES = 24.0  # read and write of an 8-byte key and a 4-byte payload
SORT_FIXED_BYTES = 40.0  # linearise the indices, histogram of the digits, run-length encoding
SORT_BITS_PER_PASS = 8.0
SORT_EFFICIENCY = 0.6  # of the memory peak, writes are scattered; assumed
SET_KEY_BITS = 4.0  # keys are numbered through over all tables of the call; some 16 tables assumed

LAUNCH_SECONDS = np.array([300e-6, 450e-6])
"""What the host needs to launch a forward and a backward call, once per call; hidden behind longer kernels.

Forward: TorchRec's times at a small batch (torchrec_split_tbe_p90). Backward is assumed: autograd and the sort launch
about half as many kernels again.
"""
OVERLAP_NORM = 3.0
"""Resources work at the same time: infinity is perfect overlap (the slowest counts), 1 none (times add). Assumed."""

_FORWARD = 3
_SORT = 6
NUM_DEMANDS = 7
_CHUNK = 1 << 14  # shards per step: its temporaries stay in the processor's cache

# Bytes of optimizer state per unique row: elements per column, and fixed; in the order of OPTIMIZERS.
_STATE_PER_COLUMN = np.array([0.0, 0.0, 4.0, 8.0])
_STATE_PER_ROW = np.array([0.0, 4.0, 0.0, 0.0])


def demand_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    """Return [n, 7]: seconds each resource would be busy for each shard alone.

    Columns: DRAM, cache and issue slots of the forward kernel, the same of the backward kernel, and the sort.
    """
    result = np.empty((len(shards), NUM_DEMANDS))
    for start in range(0, len(shards), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        result[chunk] = _demand_seconds(device, shards.take(np.arange(*chunk.indices(len(shards)))))
    return result


def call_seconds(demands: FloatArray, set_index: IndexArray, num_sets: int) -> FloatArray:
    """Return [num_sets, 2]: forward and backward seconds of one fused call per set; 0 for an empty set."""
    kernels = kernel_seconds(demands, set_index, num_sets)
    is_used = np.bincount(set_index, minlength=num_sets) > 0
    return np.where(
        is_used[:, None], _overlapped(np.stack([kernels, np.broadcast_to(LAUNCH_SECONDS, kernels.shape)])), 0.0
    )


def kernel_seconds(demands: FloatArray, set_index: IndexArray, num_sets: int) -> FloatArray:
    """Return [num_sets, 2]: seconds the device computes for each set, whatever the host needs to launch it."""
    sums: FloatArray = np.stack([np.bincount(set_index, weights=column, minlength=num_sets) for column in demands.T])
    return np.stack([_overlapped(sums[:_FORWARD]), _overlapped(sums[_FORWARD:_SORT]) + sums[_SORT]], axis=1)


def _overlapped(seconds: FloatArray) -> FloatArray:
    """Return the time in which all along the first axis are done, working side by side."""
    total: FloatArray = (seconds**OVERLAP_NORM).sum(axis=0) ** (1 / OVERLAP_NORM)
    return total


def _demand_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    lookups, unique, bags = shards.lookups, shards.unique_rows, shards.batch_size
    weight_bytes = shards.num_columns * shards.bytes_per_element
    output_bytes = shards.num_columns * GRADIENT_ELEMENT_BYTES
    passes = np.maximum(1.0, shards.num_columns / WARP_ELEMENTS)
    filled_bags = bags * -np.expm1(-shards.pooling_factor)

    dram_rate = device.memory_bandwidth_bytes_per_second * DRAM_EFFICIENCY
    cache_rate = device.cache_bandwidth_bytes_per_second * CACHE_EFFICIENCY
    cycle_rate = device.num_multiprocessors * device.clock_hz
    # A call works through its tables one after another; a small batch has several tables in flight at once.
    capacity = device.cache_bytes * bags / (bags + device.num_multiprocessors * WARPS_IN_FLIGHT)

    missed = missed_rows(shards, row_bytes=_rounded(weight_bytes, SECTOR_BYTES), capacity_bytes=capacity)
    inputs = INDEX_BYTES * (lookups + bags)
    forward_dram = missed * _random_bytes(weight_bytes) + inputs + bags * _rounded(output_bytes, SECTOR_BYTES)
    forward_cache = lookups * _rounded(weight_bytes, SECTOR_BYTES) + inputs + bags * output_bytes
    forward_cycles = (CYCLES_PER_REQUEST * lookups + CYCLES_PER_BAG * bags) * passes

    gradient_repeats = np.maximum(lookups - filled_bags, 0.0)
    gradient_misses = filled_bags + gradient_repeats * (filled_bags * output_bytes) / (
        filled_bags * output_bytes + capacity
    )
    long_segments = _long_segments(shards)
    state_bytes = _STATE_PER_COLUMN[shards.optimizer] * shards.num_columns + _STATE_PER_ROW[shards.optimizer]
    state_random = np.where(state_bytes > 0, _random_bytes(state_bytes), 0.0)
    # Weights and state are read and written back; partial sums of cut segments are written and read.
    update_bytes = (
        TURNAROUND * 2 * (unique * (_random_bytes(weight_bytes) + state_random) + long_segments * output_bytes)
    )
    backward_dram = gradient_misses * _random_bytes(output_bytes) + update_bytes + INDEX_BYTES * 2 * lookups
    backward_cache = lookups * _rounded(output_bytes, SECTOR_BYTES) + update_bytes
    backward_cycles = (CYCLES_PER_REQUEST * lookups + CYCLES_PER_SEGMENT * (unique + long_segments)) * passes

    sort_passes = (np.log2(shards.num_rows) + SET_KEY_BITS) / SORT_BITS_PER_PASS
    sort_bytes = lookups * (SORT_FIXED_BYTES + SORT_PASS_BYTES * sort_passes)
    return np.stack(
        [
            forward_dram / dram_rate,
            forward_cache / cache_rate,
            forward_cycles / cycle_rate,
            backward_dram / dram_rate,
            backward_cache / cache_rate,
            backward_cycles / cycle_rate,
            sort_bytes / (device.memory_bandwidth_bytes_per_second * SORT_EFFICIENCY),
        ],
        axis=1,
    )


def _long_segments(shards: ShardArrays) -> FloatArray:
    """Return [n] pieces that segments of more lookups than one warp sums are cut into."""
    pieces = np.where(MEAN_HITS > LOOKUPS_PER_WARP, MEAN_HITS / LOOKUPS_PER_WARP, 0.0)
    return np.minimum(shards.unique_rows * (shards.reuse_histogram @ pieces), shards.lookups / LOOKUPS_PER_WARP)


def _rounded(num_bytes: FloatArray, granule: float) -> FloatArray:
    result: FloatArray = np.ceil(num_bytes / granule) * granule
    return result


def _random_bytes(num_bytes: FloatArray) -> FloatArray:
    """Return what one random access of a row costs in DRAM: whole bursts, and opening the row."""
    return _rounded(num_bytes, BURST_BYTES) + ROW_ACTIVATION_BYTES
