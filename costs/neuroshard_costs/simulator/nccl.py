"""Times of NCCL's ring, tree and switch collectives, each with its protocols, of which NCCL takes the fastest. Seconds.

NCCL's own tuning model (src/graph/tuning.cc, ncclTopoTuneModel) gives each algorithm and protocol a latency: a base,
and the hops that follow each other. A ring has a hop for every device, a tree a chain inside a node and the logarithm
of the nodes, a switch none. The protocol LL waits for no flag of a whole message and reaches a fraction of the rate,
LL128 most of it, Simple all of it. Filling the pipeline adds to both: pieces of the best size, of a message that takes
x and has a latency of t, take 2 sqrt(t x) more, of which a share of the latency counts (PIPELINE_FILL).

Hops are those of NCCL's table where a link has the latency of the presets, and grow with it. Rates are measured ones of
the data sheet's links (constants.py), not NCCL's estimates.
"""

from collections.abc import Iterator

import numpy as np

from neuroshard_costs.arithmetic import log2
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.communication import NetworkColumns

LL, LL128, SIMPLE = range(3)
"""Positions of the protocols in the tuples of latencies."""

_LEAST_SWITCHED_DEVICES = 3  # NCCL does not use switches for two


def scatter_seconds(network: NetworkColumns, num_bytes: FloatArray) -> FloatArray:
    """Return the seconds of a reduce-scatter or an all-gather of these bytes over all devices: rings alone."""
    num_devices = network.num_nodes * network.devices_per_node
    return _fastest(_rings(network, (num_devices - 1) / num_devices * num_bytes, passes=1))


def all_reduce_seconds(network: NetworkColumns, num_bytes: FloatArray, *, has_switches: bool) -> FloatArray:
    """Return the seconds of an all-reduce of these bytes over all devices.

    Args:
        network: its links work both ways at once.
        num_bytes: of each device.
        has_switches: whether the switches of its nodes add up (NVLink SHARP).
    """
    num_devices = network.num_nodes * network.devices_per_node
    sent = 2 * (num_devices - 1) / num_devices * num_bytes
    times = [*_rings(network, sent, passes=2), *_trees(network, num_bytes)]
    if has_switches:
        times.append(_switches(network, num_bytes))
    return _fastest(iter(times))


def ring_rate(network: NetworkColumns) -> FloatArray:
    """Return bytes per second of a ring over all devices: it leaves a node over the cards of all its devices."""
    inside = network.intra_bandwidth_bytes_per_second * c.RING_INTRA_NODE_EFFICIENCY
    between = network.devices_per_node * network.inter_bandwidth_bytes_per_second * c.RING_INTER_NODE_EFFICIENCY
    rate: FloatArray = np.minimum(
        np.where(network.devices_per_node > 1, inside, np.inf), np.where(network.num_nodes > 1, between, np.inf)
    )
    return rate


def _rings(network: NetworkColumns, sent_bytes: FloatArray, *, passes: int) -> Iterator[FloatArray]:
    """Yield the times of rings with each protocol: a hop for every device but one in each pass."""
    hop, network_hop = _hop_scales(network)
    is_one_node = network.num_nodes == 1
    num_devices = network.num_nodes * network.devices_per_node
    network_hops = passes * (network.num_nodes - 1)
    node_hops = passes * (num_devices - 1) - network_hops
    full = ring_rate(network)
    rates = (_ll_rate(network, full * c.LL_RING_SHARE), full * c.LL128_SHARE, full)
    for protocol, rate in enumerate(rates):
        posted = np.where(is_one_node, 0.0, c.NETWORK_POST_SECONDS * (c.SIMPLE_POSTS if protocol == SIMPLE else 1))
        each = np.maximum(c.RING_NODE_HOP_SECONDS[protocol] * hop, posted)
        latency = (
            c.RING_BASE_SECONDS[protocol]
            + node_hops * each
            + network_hops * c.RING_NETWORK_HOP_SECONDS[protocol] * network_hop
        )
        if protocol == SIMPLE and passes > 1:
            latency = latency * np.where(is_one_node, 1.0, c.RING_PLATEAU)
        yield _piped(latency, sent_bytes / rate)


def _trees(network: NetworkColumns, num_bytes: FloatArray) -> Iterator[FloatArray]:
    """Yield the times of trees with each protocol: up and down a chain of the node and a tree of nodes."""
    hop, network_hop = _hop_scales(network)
    levels = np.floor(log2(network.num_nodes))
    full = ring_rate(network) * c.TREE_SHARE
    ll128_share = np.where(network.num_nodes == 1, c.LL128_TREE_SHARES[0], c.LL128_TREE_SHARES[1])
    rates = (_ll_rate(network, full * c.LL_TREE_SHARE), full * ll128_share * c.TREE_CORRECTION, full)
    for protocol, rate in enumerate(rates):
        node_hops = (network.devices_per_node - 1) * c.TREE_NODE_HOP_SECONDS[protocol] * hop
        network_hops = levels * c.TREE_NETWORK_HOP_SECONDS[protocol] * network_hop
        yield _piped(c.TREE_BASE_SECONDS[protocol] + 2 * (node_hops + network_hops), 2 * num_bytes / rate)


def _switches(network: NetworkColumns, num_bytes: FloatArray) -> FloatArray:
    """Return the time in which the switches of a node add up, and trees the sums of nodes (NVLSTree).

    Inside a node every device sends its bytes once and receives the sum once, however many devices there are. Between
    nodes the card of each device has an equal share of the bytes: of two nodes it passes the share on once, of more the
    two trees, in which each node has two children once, pass it on twice. Both go on at the same time.
    """
    _, network_hop = _hop_scales(network)
    levels = np.floor(log2(network.num_nodes))
    latency = c.SWITCH_SECONDS + 2 * levels * c.SWITCH_NETWORK_HOP_SECONDS * network_hop
    inside = num_bytes / (network.intra_bandwidth_bytes_per_second * c.SHARP_EFFICIENCY)
    passes = np.minimum(network.num_nodes - 1, 2)
    card_rate = network.inter_bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY
    between = passes * num_bytes / network.devices_per_node / card_rate
    seconds: FloatArray = np.where(
        network.devices_per_node >= _LEAST_SWITCHED_DEVICES, _piped(latency, np.maximum(inside, between)), np.inf
    )
    return seconds


def _ll_rate(network: NetworkColumns, rate: FloatArray) -> FloatArray:
    """Return the part of this rate that LL reaches: no more than processors copy with flags."""
    most = np.where(
        network.num_nodes == 1, network.intra_bandwidth_bytes_per_second * c.LL_NODE_SHARE, c.LL_NETWORK_RATE
    )
    limited: FloatArray = np.minimum(rate, most)
    return limited


def _hop_scales(network: NetworkColumns) -> tuple[FloatArray, FloatArray]:
    """Return the latencies of the links over those that NCCL's table is of."""
    return (
        network.intra_latency_seconds / c.NODE_LINK_SECONDS,
        network.inter_latency_seconds / c.NETWORK_LINK_SECONDS,
    )


def _piped(latency: FloatArray, transfer: FloatArray) -> FloatArray:
    """Return latency, transfer, and what filling the pipeline takes."""
    seconds: FloatArray = latency + transfer + 2 * np.sqrt(c.PIPELINE_FILL * latency * transfer)
    return seconds


def _fastest(times: Iterator[FloatArray]) -> FloatArray:
    fastest: FloatArray = np.stack(np.broadcast_arrays(*times)).min(axis=0)
    return fastest
