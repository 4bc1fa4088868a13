"""Every number of the device simulator that no data sheet gives: value, unit, status and source.

docs/concepts/device-simulator.md shows this table; `python -m neuroshard_costs.simulator.constants` prints it.
A calibrated constant was fitted to the published times that its source names, which are therefore no evidence for it.
"""

import sys
from enum import StrEnum
from typing import Self

from neuroshard_costs import shards


class ConstantTrust(StrEnum):
    """How far a constant can be trusted."""

    DOCUMENTED = "documented"
    """The vendor's documents or the kernels' source state it."""
    MEASURED = "measured"
    """Others measured and published it."""
    CALIBRATED = "calibrated"
    """Fitted to published times."""
    ASSUMED = "assumed"
    """An estimate without evidence."""


class Constant(float):
    """A number with its unit, its status and its source; in arithmetic it is the number."""

    unit: str
    status: ConstantTrust
    source: str

    def __new__(cls, value: float, unit: str, status: ConstantTrust, source: str) -> Self:
        """Return the constant."""
        constant = super().__new__(cls, value)
        constant.unit, constant.status, constant.source = unit, status, source
        return constant


_V100 = "times of batched embedding kernels on a V100 (v100_batched_embedding)"
_TORCHREC = "TorchRec's forward times (torchrec_split_tbe_p90)"
_REGROUP = "copy kernels on an H100 PCIe (h100_pcie_regroup)"

SECTOR_BYTES = Constant(
    32, "bytes", ConstantTrust.DOCUMENTED, "CUDA programming guide: granule of L2 and of the memory bus"
)
BURST_BYTES = Constant(64, "bytes", ConstantTrust.DOCUMENTED, "JEDEC HBM2 and HBM3: one access of a pseudo channel")
PAGE_BYTES = Constant(1024, "bytes", ConstantTrust.DOCUMENTED, "JEDEC HBM2 and HBM3: row buffer of a pseudo channel")
ROW_ACTIVATION_BYTES = Constant(
    64, "bytes", ConstantTrust.CALIBRATED, f"{_V100}: what opening a page costs, as bytes not transferred"
)
DRAM_EFFICIENCY = Constant(0.90, "of the peak", ConstantTrust.MEASURED, f"{_REGROUP}: 89 to 91 %")
CACHE_EFFICIENCY = Constant(0.68, "of the peak", ConstantTrust.CALIBRATED, f"{_TORCHREC}; gathered rows")
TURNAROUND = Constant(1.4, "times plain reads", ConstantTrust.CALIBRATED, f"{_V100}: read-modify-write of updated rows")

SUB_WARP_COLUMNS = (
    Constant(
        32, "columns", ConstantTrust.DOCUMENTED, "FBGEMM DISPATCH_OPTIMAL_FORWARD_KERNEL: up to this, 8 lanes per bag"
    ),
    Constant(
        64, "columns", ConstantTrust.DOCUMENTED, "FBGEMM DISPATCH_OPTIMAL_FORWARD_KERNEL: up to this, 16 lanes per bag"
    ),
)
"""Widest table of a call up to which 4, or 2, bags share a warp."""
WARP_COLUMNS = Constant(128, "columns", ConstantTrust.DOCUMENTED, "FBGEMM: 32 lanes read 4 elements each")
WARPS_IN_FLIGHT = Constant(32, "warps per multiprocessor", ConstantTrust.ASSUMED, "registers allow half of the 64")
CYCLES_PER_REQUEST = Constant(3, "cycles", ConstantTrust.CALIBRATED, f"{_V100}: one row read by one warp")
CYCLES_PER_BAG = Constant(
    8, "cycles", ConstantTrust.CALIBRATED, f"{_V100}: offsets, loop set-up, write of one output row"
)
CYCLES_PER_SEGMENT = Constant(12, "cycles", ConstantTrust.ASSUMED, "set-up of one distinct row in the backward kernel")
LOOKUPS_PER_WARP = Constant(
    32, "lookups", ConstantTrust.DOCUMENTED, "FBGEMM max_segment_length_per_warp: longer segments are cut"
)

INDEX_BYTES = Constant(
    shards.INDEX_BYTES, "bytes", ConstantTrust.DOCUMENTED, "KeyedJaggedTensor holds 64-bit indices and offsets"
)
PARTIAL_SUM_BYTES = Constant(4, "bytes per column", ConstantTrust.DOCUMENTED, "FBGEMM sums gradients in FP32")
SORT_PASS_BYTES = Constant(
    24, "bytes per lookup", ConstantTrust.DOCUMENTED, "CUB radix sort: 8-byte key and 4-byte payload read and written"
)
SORT_FIXED_BYTES = Constant(
    40, "bytes per lookup", ConstantTrust.ASSUMED, "linearized indices, digit counts, run lengths"
)
SORT_BITS_PER_PASS = Constant(8, "bits", ConstantTrust.DOCUMENTED, "CUB onesweep radix sort")
SORT_EFFICIENCY = Constant(
    0.6, "of the peak", ConstantTrust.ASSUMED, "writes are scattered; agrees with onesweep's rates"
)
SORT_KEY_BITS = Constant(
    4, "bits", ConstantTrust.ASSUMED, "keys number the rows of all tables of a call; some 16 tables"
)

OVERLAP_NORM = Constant(
    3, "exponent", ConstantTrust.ASSUMED, "resources overlap: infinity is perfectly (the slowest counts), 1 not at all"
)
FORWARD_HOST_SECONDS = Constant(
    300e-6, "s per call", ConstantTrust.CALIBRATED, f"{_TORCHREC} at batch 1,024: the host launches a call made alone"
)
BACKWARD_HOST_SECONDS = Constant(
    450e-6, "s per call", ConstantTrust.ASSUMED, "autograd and the sort launch about half as many kernels again"
)
FORWARD_DEVICE_SECONDS = Constant(
    15e-6, "s per call", ConstantTrust.ASSUMED, "least device time of a queued call: some 4 kernels of 3 to 4 us"
)
BACKWARD_DEVICE_SECONDS = Constant(
    45e-6, "s per call", ConstantTrust.ASSUMED, "least device time of a queued call: some 12 kernels of 3 to 4 us"
)

INTRA_NODE_EFFICIENCY = Constant(
    0.82, "of the data sheet", ConstantTrust.MEASURED, "370 of 450 GB/s over NVLink (NVIDIA/nccl-tests 212)"
)
INTER_NODE_EFFICIENCY = Constant(
    0.94, "of the data sheet", ConstantTrust.MEASURED, "46 to 48 of 50 GB/s over NDR InfiniBand (NVIDIA/nccl-tests 290)"
)
COLLECTIVE_LAUNCH_SECONDS = Constant(20e-6, "s", ConstantTrust.ASSUMED, "the collective's kernel")
PEERS_AT_ONCE = Constant(8, "peers", ConstantTrust.ASSUMED, "sends and receives that NCCL works on at the same time")
LEVEL_NORM = Constant(4, "exponent", ConstantTrust.ASSUMED, "both levels of the network work at the same time")
COPY_EFFICIENCY = Constant(0.90, "of the peak", ConstantTrust.MEASURED, f"{_REGROUP}, elements of 4 bytes")
NARROW_COPY_EFFICIENCY = Constant(0.79, "of the peak", ConstantTrust.MEASURED, f"{_REGROUP}, 16-bit elements")
COPIES = Constant(
    2,
    "copies",
    ConstantTrust.DOCUMENTED,
    "TorchRec: from blocks by sender to rows by sample, then to the features' order",
)

CODEC_EFFICIENCY = Constant(
    0.8, "of the peak", ConstantTrust.ASSUMED, "encoding and decoding read one type and write the other"
)
CODEC_LAUNCH_SECONDS = Constant(20e-6, "s per pass", ConstantTrust.ASSUMED, "the codec's kernels")

RING_INTRA_NODE_EFFICIENCY = Constant(
    0.80,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "350 to 360 of 450 GB/s: rings on an H100 node (NVIDIA/nccl 1281)",
)
RING_INTER_NODE_EFFICIENCY = Constant(
    0.86,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "86 of 100 GB/s per node: all-reduce on 2 A100 nodes (NVIDIA/nccl 1048)",
)
SHARP_EFFICIENCY = Constant(
    1.07,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "480 of 450 GB/s: all-reduce on an H100 node (NVIDIA/nccl-tests 212)",
)
GATHERED_COPY_PASSES = Constant(
    2.455, "passes over the bytes", ConstantTrust.MEASURED, "TorchRec's planner constants: BATCHED_COPY_PERF_FACTOR"
)
DENSE_UPDATE_PASSES = Constant(
    9.22,
    "passes over the gradient",
    ConstantTrust.MEASURED,
    "TorchRec's planner constants: DP_ELEMENTWISE_KERNELS_PERF_FACTOR",
)

HOST_ROW_EFFICIENCY = Constant(
    0.1,
    "of the data sheet",
    ConstantTrust.ASSUMED,
    "single rows over the host link: TorchRec's planner divides it by 10",
)
CACHE_LOOKUP_BYTES = Constant(
    12, "bytes per lookup", ConstantTrust.ASSUMED, "an index is read and its place in the cache written: 8 and 4 bytes"
)
CACHE_SET_BYTES = Constant(
    256, "bytes per distinct row", ConstantTrust.DOCUMENTED, "FBGEMM: a set of 32 tags of 8 bytes is searched for each"
)

MATRIX_OPERATIONS_PER_CYCLE = Constant(
    1024, "operations per multiprocessor and cycle", ConstantTrust.DOCUMENTED, "TF32 on an A100 (data sheet)"
)
HOPPER_MATRIX_OPERATIONS_PER_CYCLE = Constant(
    2048, "operations per multiprocessor and cycle", ConstantTrust.DOCUMENTED, "TF32 on an H100 (data sheet)"
)
MATRIX_EFFICIENCY = Constant(
    0.72, "of the peak", ConstantTrust.CALIBRATED, "TF32 products on an H100 (torch-performance-test-data 79)"
)
PRODUCT_SECONDS = Constant(
    8e-6, "s per product", ConstantTrust.CALIBRATED, "TF32 products on an H100 (torch-performance-test-data 79)"
)
DENSE_KERNEL_SECONDS = Constant(
    3e-6, "s per operation", ConstantTrust.ASSUMED, "least device time of a queued kernel, as of a lookup's call"
)
HOST_LAUNCH_SECONDS = Constant(
    3.8e-6,
    "s per kernel",
    ConstantTrust.MEASURED,
    "NVIDIA, Getting Started with CUDA Graphs: kernels of 2.9 us, launched one after the other, take 3.8 us each",
)
CPU_OPERATIONS_PER_CYCLE = Constant(
    16, "operations per core and cycle", ConstantTrust.ASSUMED, "half of what two units of AVX2 with FP32 have"
)
DENSE_OVERLAP = Constant(
    0.5, "of the compute", ConstantTrust.ASSUMED, "share of a unit's compute that hides its collectives"
)


def constants() -> dict[str, Constant]:
    """Return every constant by its name, in the order of this module."""
    found: dict[str, Constant] = {}
    for name, value in globals().items():
        if isinstance(value, Constant):
            found[name] = value
        elif name == "SUB_WARP_COLUMNS":
            found |= {f"{name}[{index}]": each for index, each in enumerate(SUB_WARP_COLUMNS)}
    return found


def markdown_table() -> str:
    """Return the table of all constants in Markdown, without a line end."""
    lines = ["| constant | value | unit | status | source |", "|---|---|---|---|---|"]
    lines += [
        f"| `{name}` | {value:g} | {value.unit} | {value.status} | {value.source} |"
        for name, value in constants().items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{markdown_table()}\n")
