"""Features of shards and of collectives: what the networks read, in one explicit, versioned order. Predicts nothing.

A bundle stores the version it was trained with; another version is refused. Any change of the names, their order or
their formulas is a new version.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.tables import REUSE_BINS
from numpy.typing import NDArray

from neuroshard_costs.arithmetic import log2
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.levels import exchange_link
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import NUM_CALLS, OPTIMIZERS, FloatArray, ShardArrays
from neuroshard_costs.simulator.cache import missed_rows
from neuroshard_costs.simulator.constants import BURST_BYTES, SECTOR_BYTES, SUB_WARP_COLUMNS
from neuroshard_costs.simulator.granules import sector_bytes, sorted_bytes

Float32Array = NDArray[np.float32]

FEATURE_VERSION = 2

CACHE_MIB = (4, 16, 32, 64, 128)
"""Caches for which the row reads that miss are features: around the last-level caches of today's devices."""

COMPUTE_FEATURES = (
    "log2_num_rows",
    "log2_num_columns",
    "log2_row_bytes",
    "log2_bytes_per_element",
    "log2_output_bytes_per_element",
    "log2_pooling_factor",
    "log2_bags",
    "log2_lookups",
    "log2_unique_rows",
    "log2_hits_per_unique_row",
    "log2_lookup_bytes",
    "log2_unique_bytes",
    "log2_row_sectors",
    "log2_row_bursts",
    "log2_output_sectors",
    "log2_output_bursts",
    "log2_filled_bag_bytes",
    "log2_sorted_row_bytes",
    "log2_sorted_state_bytes",
    *(f"log2_rows_missing_{size}_mib" for size in CACHE_MIB),
    *(f"optimizer_{optimizer.value}" for optimizer in OPTIMIZERS),
    *(f"reuse_bin_{index}" for index in range(REUSE_BINS)),
    *(f"lookup_bin_{index}" for index in range(REUSE_BINS)),
)
"""Columns of compute_features, in this order."""

COMMUNICATION_FEATURES = (
    "log2_mean_bytes_per_peer",
    "log2_num_devices",
    "log2_devices_per_node",
    "log2_num_nodes",
    "log2_intra_node_bandwidth",
    "log2_inter_node_bandwidth",
    "log2_intra_node_latency",
    "log2_inter_node_latency",
    "log2_bytes_per_element",
    "log2_total_bytes",
    "log2_intra_node_transfer_seconds",
    "log2_inter_node_transfer_seconds",
    "log2_intra_node_latencies_seconds",
    "log2_inter_node_latencies_seconds",
)
"""Columns of communication_features, in this order. The largest message enters behind the network, as a ratio."""

_LEAST_SECONDS = 1e-8  # what takes no time, such as a link without peers, is read as ten nanoseconds
_LEAST_BYTES = 1.0
_CACHE_BYTES: FloatArray = np.array(CACHE_MIB)[:, None] * 2.0**20


def compute_features(shards: ShardArrays) -> FloatArray:
    """Return [n, len(COMPUTE_FEATURES)]: logarithms of what a shard holds and serves, and how its rows repeat."""
    row_bytes, output_bytes = shards.row_bytes, shards.output_row_bytes
    touched = {"num_rows": shards.num_rows, "touched_rows": shards.unique_rows}
    logs = log2(
        [
            shards.num_rows,
            shards.num_columns,
            row_bytes,
            shards.bytes_per_element,
            shards.output_bytes_per_element,
            shards.pooling_factor,
            shards.bags,
            shards.lookups,
            shards.unique_rows,
            shards.lookups / shards.unique_rows,
            shards.lookups * row_bytes,
            shards.unique_rows * row_bytes,
            np.ceil(row_bytes / SECTOR_BYTES),
            np.ceil(row_bytes / BURST_BYTES),
            np.ceil(output_bytes / SECTOR_BYTES),
            np.ceil(output_bytes / BURST_BYTES),
            shards.filled_bags * output_bytes,
            sorted_bytes(row_bytes, **touched),
            np.maximum(sorted_bytes(shards.state_row_bytes, **touched), _LEAST_BYTES),
            *missed_rows(shards, row_bytes=sector_bytes(row_bytes), capacity_bytes=_CACHE_BYTES),
        ]
    )
    one_hot = np.arange(len(OPTIMIZERS)) == shards.optimizer[:, None]
    hits = shards.reuse_histogram * MEAN_HITS
    lookup_bins = hits / hits.sum(axis=1, keepdims=True)
    return np.concatenate((logs.T, one_hot, shards.reuse_histogram, lookup_bins), axis=1)


NUM_CALL_COUNTS = NUM_CALLS + len(SUB_WARP_COLUMNS)
"""Columns of call_counts."""


def call_counts(shards: ShardArrays) -> FloatArray:
    """Return [n, NUM_CALL_COUNTS]: what each shard adds to the counts that decide its device's calls and their lanes.

    Summed over a device: the shards of each family and data type (a call for each pair that occurs), and the shards
    wider than 32 and than 64 columns. Counts add up, unlike the presence of a type or the widest shard, and a running
    sum that shards are taken out of stays exact.
    """
    by_call = np.arange(NUM_CALLS) == shards.call[:, None]
    wider = shards.num_columns[:, None] > np.array(SUB_WARP_COLUMNS, dtype=np.float64)
    return np.concatenate((by_call, wider), axis=1, dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """n all-to-alls, one row each: everything about them but the largest device's share."""

    mean_dim_sum: FloatArray
    """[n] columns per device, averaged over the devices."""
    batch_size_per_device: FloatArray
    """[n] samples that a device keeps."""
    bytes_per_element: FloatArray
    """[n] of the pooled embeddings on the wire."""
    num_nodes: FloatArray
    """[n]"""
    devices_per_node: FloatArray
    """[n]"""
    intra_bandwidth: FloatArray
    """[n] bytes per second, per device and direction."""
    inter_bandwidth: FloatArray
    """[n] the same between nodes."""
    intra_latency: FloatArray
    """[n] seconds."""
    inter_latency: FloatArray
    """[n] seconds."""

    def __len__(self) -> int:
        return len(self.mean_dim_sum)

    @classmethod
    def of_exchange(cls, exchange: Exchange) -> "Collectives":
        """Return the collectives of an exchange, one for each mean of its columns."""
        topology, inter = exchange.topology, exchange_link(exchange.topology)
        means = np.asarray(exchange.mean_dim_sum, dtype=np.float64).ravel()

        def one(value: float) -> FloatArray:
            return np.full(len(means), value, dtype=np.float64)

        return cls(
            mean_dim_sum=means,
            batch_size_per_device=one(exchange.batch_size_per_device),
            bytes_per_element=one(exchange.bytes_per_element),
            num_nodes=one(topology.num_domains),
            devices_per_node=one(topology.devices_per_domain),
            intra_bandwidth=one(topology.intra_node.bandwidth_bytes_per_second),
            inter_bandwidth=one(inter.bandwidth_bytes_per_second),
            intra_latency=one(topology.intra_node.latency_seconds),
            inter_latency=one(inter.latency_seconds),
        )


def communication_features(collectives: Collectives) -> FloatArray:
    """Return [n, len(COMMUNICATION_FEATURES)].

    A single node has no link between nodes, and a node of one device none inside: the link that is not used is read
    as the one that is, so that its numbers cannot matter.
    """
    one_node = collectives.num_nodes == 1
    one_device = collectives.devices_per_node == 1
    intra_bandwidth = np.where(one_device, collectives.inter_bandwidth, collectives.intra_bandwidth)
    inter_bandwidth = np.where(one_node, collectives.intra_bandwidth, collectives.inter_bandwidth)
    intra_latency = np.where(one_device, collectives.inter_latency, collectives.intra_latency)
    inter_latency = np.where(one_node, collectives.intra_latency, collectives.inter_latency)
    mean_bytes = collectives.mean_dim_sum * collectives.batch_size_per_device * collectives.bytes_per_element
    num_devices = collectives.num_nodes * collectives.devices_per_node
    intra_peers = collectives.devices_per_node - 1
    inter_peers = num_devices - collectives.devices_per_node
    logs = log2(
        [
            np.maximum(mean_bytes, _LEAST_BYTES),
            num_devices,
            collectives.devices_per_node,
            collectives.num_nodes,
            intra_bandwidth,
            inter_bandwidth,
            np.maximum(intra_latency, _LEAST_SECONDS),
            np.maximum(inter_latency, _LEAST_SECONDS),
            collectives.bytes_per_element,
            np.maximum(mean_bytes * num_devices, _LEAST_BYTES),
            np.maximum(mean_bytes * intra_peers / intra_bandwidth, _LEAST_SECONDS),
            np.maximum(mean_bytes * inter_peers / inter_bandwidth, _LEAST_SECONDS),
            np.maximum(intra_latency * intra_peers, _LEAST_SECONDS),
            np.maximum(inter_latency * inter_peers, _LEAST_SECONDS),
        ]
    )
    return np.ascontiguousarray(logs.T)
