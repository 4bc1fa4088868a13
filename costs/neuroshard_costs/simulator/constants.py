"""Every number of the device simulator that no data sheet gives: value, unit, status and source.

docs/concepts/device-simulator-formulas.md shows this table; `python -m neuroshard_costs.simulator.constants` prints it.
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
_H200 = "484 of 675 calls measured on an H200 (benchmarks/data/h200)"
_REGROUP = "copy kernels on an H100 PCIe (h100_pcie_regroup)"

_HOST = "FBGEMM's kernels on one H100 (recsys_h100_host, recsys_h100_one_table)"
_TUNING = "NCCL 2.30, src/graph/tuning.cc"


def _of_h200(value: float, unit: str, what: str) -> Constant:
    """Return a constant that is fitted to the measured H200."""
    return Constant(value, unit, ConstantTrust.CALIBRATED, f"{_H200}: {what}")


def _by_protocol(what: str, *microseconds: float) -> tuple[Constant, ...]:
    """Return NCCL's latencies with LL, LL128 and Simple."""
    names = ("LL", "LL128", "Simple")
    return tuple(
        Constant(value * 1e-6, "s", ConstantTrust.DOCUMENTED, f"{_TUNING}: {what}, {name}")
        for name, value in zip(names, microseconds, strict=True)
    )


SECTOR_BYTES = Constant(
    32, "bytes", ConstantTrust.DOCUMENTED, "CUDA programming guide: granule of L2 and of the memory bus"
)
BURST_BYTES = Constant(64, "bytes", ConstantTrust.DOCUMENTED, "JEDEC HBM2 and HBM3: one access of a pseudo channel")
PAGE_BYTES = Constant(1024, "bytes", ConstantTrust.DOCUMENTED, "JEDEC HBM2 and HBM3: row buffer of a pseudo channel")
ROW_ACTIVATION_BYTES = Constant(
    32,
    "bytes",
    ConstantTrust.CALIBRATED,
    f"{_V100} and on an H100: what opening a page costs, as bytes not transferred",
)
DRAM_EFFICIENCY = Constant(0.90, "of the peak", ConstantTrust.MEASURED, f"{_REGROUP}: 89 to 91 %")
WRITE_PRICE = Constant(
    1.17,
    "times plain reads",
    ConstantTrust.MEASURED,
    "copies against reads on H100 and A100 (azure_h100, azure_a100): 0.77 and 0.90 of the peak",
)
CACHE_EFFICIENCY = _of_h200(0.83, "of the peak", "gathered rows")

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
CYCLES_PER_REQUEST = _of_h200(4.7, "cycles", "one row read by one warp")
CYCLES_PER_BAG = _of_h200(59, "cycles", "offsets, loop set-up, write of one output row")
CHECK_CYCLES_PER_BAG = _of_h200(61, "cycles", "bounds_check_indices, a warp for each bag")
CHECK_CYCLES_PER_LOOKUP = _of_h200(2.6, "cycles", "bounds_check_indices, 32 indices at once")
GRADIENT_CYCLES_PER_REQUEST = _of_h200(24, "cycles", "one row of gradients found and read by one warp")
CYCLES_PER_SEGMENT = _of_h200(137, "cycles", "set-up and update of one distinct row in the backward kernel")
ADAM_CYCLES_PER_SEGMENT = _of_h200(315, "cycles", "bias correction, which whole warps do whatever the width")
CYCLES_PER_LONG_SEGMENT = _of_h200(1740, "cycles", "a row of more lookups than a warp sums takes a block")
ADAM_CYCLES_PER_LONG_SEGMENT = _of_h200(13400, "cycles", "the same with Adam")
CYCLES_PER_GRADIENT = _of_h200(28, "cycles", "numbers of bags and lookups by sorted index, of one bag")
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
SORT_BITS_PER_PASS = Constant(8, "bits", ConstantTrust.DOCUMENTED, "CUB onesweep radix sort")
SORT_EFFICIENCY = _of_h200(0.25, "of the peak", "the sort and the small kernels around it")
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
FORWARD_DEVICE_SECONDS = _of_h200(13e-6, "s per call", "least device time of a queued call, 3 kernels")
BACKWARD_DEVICE_SECONDS = _of_h200(91e-6, "s per call", "least device time of a queued call, some 20 kernels")

INTRA_NODE_EFFICIENCY = Constant(
    0.82, "of the data sheet", ConstantTrust.MEASURED, "370 of 450 GB/s over NVLink (NVIDIA/nccl-tests 212)"
)
INTER_NODE_EFFICIENCY = Constant(
    0.94,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "46 to 48 of 50 GB/s over NDR InfiniBand, by rings too (NVIDIA/nccl-tests 290)",
)
COLLECTIVE_LAUNCH_SECONDS = Constant(
    10e-6,
    "s",
    ConstantTrust.CALIBRATED,
    "small collectives of a node: 5 us above the latencies on bare metal (deepep_h20), 18 and 29 us in virtual machines"
    " (azure_h100, azure_a100)",
)
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

ELEMENTWISE_EFFICIENCY = Constant(
    0.8, "of the peak", ConstantTrust.ASSUMED, "passes that read one tensor and write another, such as a scaling"
)


def _codec(what: str, encode: float, decode: float) -> tuple[Constant, Constant]:
    """Return the rates of a codec's passes, which read one type and write the other.

    Geometric means of 131,072 rows of 64 and of 256 values; wide rows are encoded up to a third faster.
    """

    def rate(value: float, way: str) -> Constant:
        source = f"FBGEMM's codec on an H200 (benchmarks/data/h200): {what}, {way}"
        return Constant(value, "of the peak", ConstantTrust.MEASURED, source)

    return rate(encode, "encoding"), rate(decode, "decoding")


SIXTEEN_BIT_CODEC_EFFICIENCY = _codec("FP16 and BF16", 0.37, 0.52)
INT8_CODEC_EFFICIENCY = _codec("INT8", 0.118, 0.44)
FP8_CODEC_EFFICIENCY = _codec("FP8", 0.121, 0.178)
MX4_CODEC_EFFICIENCY = _codec("MX4", 0.29, 0.71)
SPARSE_CODEC_EFFICIENCY = (
    Constant(0.03, "of the peak", ConstantTrust.ASSUMED, "largest values: torch's topk of groups of 128, and copies"),
    Constant(0.2, "of the peak", ConstantTrust.ASSUMED, "largest values: zeros, then values put at their places"),
)
CODEC_LAUNCH_SECONDS = Constant(
    5e-6, "s per pass", ConstantTrust.MEASURED, "FBGEMM's codecs of 64 x 64 values on an H200 (benchmarks/data/h200)"
)

RING_INTRA_NODE_EFFICIENCY = Constant(
    0.80,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "350 to 360 of 450 GB/s: rings on an H100 node (NVIDIA/nccl 1281)",
)
SHARP_EFFICIENCY = Constant(
    0.61,
    "of the data sheet",
    ConstantTrust.MEASURED,
    "bytes of a device over time, 275 of 450 GB/s: all-reduce on an H100 node (NVIDIA/nccl-tests 212)",
)
BLACKWELL_SHARP_SHARE = Constant(
    0.74 / 0.85, "of SHARP_EFFICIENCY", ConstantTrust.DOCUMENTED, f"{_TUNING}: nvlsEfficiency of Blackwell and Hopper"
)
NODE_LINK_SECONDS = Constant(
    3e-6, "s", ConstantTrust.ASSUMED, "latency of the presets' links inside a node, at which hops take NCCL's times"
)
NETWORK_LINK_SECONDS = Constant(
    10e-6, "s", ConstantTrust.ASSUMED, "latency of the presets' links between nodes, at which hops take NCCL's times"
)
RING_BASE_SECONDS = _by_protocol("base of rings", 6.6, 14.0, 8.4)
RING_NODE_HOP_SECONDS = _by_protocol("hop of a ring over NVLink", 0.6, 1.9, 3.4)
RING_NETWORK_HOP_SECONDS = _by_protocol("hop of a ring between nodes", 2.7, 4.0, 14.0)
TREE_BASE_SECONDS = _by_protocol("base of trees", 6.8, 14.0, 8.4)
TREE_NODE_HOP_SECONDS = _by_protocol("hop of a tree over NVLink", 0.6, 1.25, 4.0)
TREE_NETWORK_HOP_SECONDS = _by_protocol("hop of a tree between nodes", 5.0, 8.5, 14.0)
SWITCH_SECONDS = Constant(25e-6, "s", ConstantTrust.DOCUMENTED, f"{_TUNING}: NVLS inside a node")
SWITCH_NETWORK_HOP_SECONDS = Constant(20.9e-6, "s", ConstantTrust.DOCUMENTED, f"{_TUNING}: NVLSTree between nodes")
NETWORK_POST_SECONDS = Constant(
    1e-6, "s per hop", ConstantTrust.DOCUMENTED, f"{_TUNING}: least of any hop of a ring over several nodes"
)
SIMPLE_POSTS = Constant(3, "posts per hop", ConstantTrust.DOCUMENTED, f"{_TUNING}: of Simple")
RING_PLATEAU = Constant(
    1.4, "times the latency", ConstantTrust.DOCUMENTED, f"{_TUNING}: Simple rings of all-reduces over several nodes"
)
LL_RING_SHARE = Constant(0.5, "of a ring's rate", ConstantTrust.DOCUMENTED, f"{_TUNING}: flags are half of the bytes")
LL_TREE_SHARE = Constant(1 / 3.8, "of a tree's rate", ConstantTrust.DOCUMENTED, _TUNING)
LL_NODE_SHARE = Constant(
    0.3, "of the data sheet", ConstantTrust.DOCUMENTED, f"{_TUNING}: 141 of 450 GB/s (Hopper), 88 of 300 GB/s (Ampere)"
)
LL_NETWORK_RATE = Constant(20.4e9, "bytes/s", ConstantTrust.DOCUMENTED, f"{_TUNING}: LL over more than two nodes")
LL128_SHARE = Constant(0.92, "of a ring's rate", ConstantTrust.DOCUMENTED, f"{_TUNING}: 120 of 128 bytes are data")
TREE_SHARE = Constant(0.92, "of a ring's rate", ConstantTrust.DOCUMENTED, _TUNING)
LL128_TREE_SHARES = (
    Constant(7 / 9, "of a tree's rate", ConstantTrust.DOCUMENTED, f"{_TUNING}: inside a node"),
    Constant(120 / 128, "of a tree's rate", ConstantTrust.DOCUMENTED, f"{_TUNING}: over several nodes"),
)
TREE_CORRECTION = Constant(
    0.6, "of the rate", ConstantTrust.DOCUMENTED, f"{_TUNING}: treeCorrectionFactor of LL128 from 64 KiB to 2 MiB"
)
PIPELINE_FILL = Constant(
    0.1,
    "of the latency",
    ConstantTrust.CALIBRATED,
    "all-reduces of 1 MiB to 8 GiB on a node (azure_h100, azure_a100): what filling the pipeline takes",
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

HOST_LINK_EFFICIENCY = Constant(
    0.81, "of the data sheet", ConstantTrust.MEASURED, "copies to and from one H100 or A100 (azure_h100, azure_a100)"
)
HOST_UPDATE_EFFICIENCY = Constant(
    0.69,
    "of the data sheet, in each direction at once",
    ConstantTrust.CALIBRATED,
    f"{_HOST}: rows read and written back",
)
HOST_NEAR_BYTES = Constant(
    2**17, "bytes", ConstantTrust.CALIBRATED, f"{_HOST}: hot rows whose repeated reads do not pass over the link"
)
HOST_NODE_RATE = Constant(
    400e9,
    "bytes/s",
    ConstantTrust.ASSUMED,
    "read and written by all devices of a node: two sockets with eight channels of DDR4-3200 have 410 GB/s",
)
HOST_PAGES_BYTE_SECONDS = Constant(
    1e-10, "s per byte", ConstantTrust.ASSUMED, "a core copies to locked pages: some 10 GB/s, read and written"
)
CACHED_KEY_PASS_BYTES = Constant(
    16, "bytes per lookup", ConstantTrust.DOCUMENTED, "FBGEMM get_unique_indices: 8-byte keys read and written"
)
CACHE_WAYS = Constant(32, "rows", ConstantTrust.DOCUMENTED, "FBGEMM: rows of a set of the cache, a warp's lanes")
CACHE_SEARCH_CYCLES = Constant(
    149,
    "cycles",
    ConstantTrust.CALIBRATED,
    "a million cached lookups on one H100 (recsys_h100_host): a warp hashes a row and compares the tags of its set",
)

MATRIX_OPERATIONS_PER_CYCLE = Constant(
    1024, "operations per multiprocessor and cycle", ConstantTrust.DOCUMENTED, "TF32 on an A100 (data sheet)"
)
HOPPER_MATRIX_OPERATIONS_PER_CYCLE = Constant(
    2048, "operations per multiprocessor and cycle", ConstantTrust.DOCUMENTED, "TF32 on an H100 (data sheet)"
)
BLACKWELL_MATRIX_OPERATIONS_PER_CYCLE = Constant(
    4096, "operations per multiprocessor and cycle", ConstantTrust.DOCUMENTED, "TF32 on a B200 (data sheet)"
)
MATRIX_EFFICIENCY = Constant(
    0.72, "of the peak", ConstantTrust.CALIBRATED, "TF32 products on an H100 (torch-performance-test-data 79)"
)
PRODUCT_SECONDS = Constant(
    8e-6, "s per product", ConstantTrust.CALIBRATED, "TF32 products on an H100 (torch-performance-test-data 79)"
)
DENSE_KERNEL_SECONDS = Constant(
    3e-6, "s per operation", ConstantTrust.ASSUMED, "least device time of a queued kernel that does little"
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
_SERVER_CORE = "FBGEMM 1.9, row-wise Adagrad, one core of an x86-64 virtual machine; other processors differ"
SERVER_FORWARD_SECONDS = Constant(90e-9, "core s per lookup", ConstantTrust.ASSUMED, _SERVER_CORE)
SERVER_FORWARD_BYTE_SECONDS = Constant(0.2e-9, "core s per byte of a row", ConstantTrust.ASSUMED, _SERVER_CORE)
SERVER_BACKWARD_SECONDS = Constant(300e-9, "core s per lookup", ConstantTrust.ASSUMED, _SERVER_CORE)
SERVER_BACKWARD_BYTE_SECONDS = Constant(1.9e-9, "core s per byte of a row", ConstantTrust.ASSUMED, _SERVER_CORE)
DENSE_OVERLAP = Constant(
    0.5, "of the compute", ConstantTrust.ASSUMED, "share of a unit's compute that hides its collectives"
)


def constants() -> dict[str, Constant]:
    """Return every constant by its name, in the order of this module."""
    found: dict[str, Constant] = {}
    for name, value in globals().items():
        if isinstance(value, Constant):
            found[name] = value
        elif isinstance(value, tuple):
            found |= {f"{name}[{index}]": each for index, each in enumerate(value)}
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
