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


def all_reduce_seconds(
    network: NetworkColumns, num_bytes: FloatArray, *, switch_efficiency: float | None
) -> FloatArray:
    """Return the seconds of an all-reduce of these bytes over all devices.

    Args:
        network: its links work both ways at once.
        num_bytes: of each device.
        switch_efficiency: what the switches of its nodes reach of a link where they add up (NVLink SHARP). None: they
            do not.
    """
    num_devices = network.num_nodes * network.devices_per_node
    sent = 2 * (num_devices - 1) / num_devices * num_bytes
    times = [*_rings(network, sent, passes=2), *_trees(network, num_bytes)]
    if switch_efficiency is not None:
        times.append(_switches(network, num_bytes, switch_efficiency))
    return _fastest(iter(times))


def ring_rate(network: NetworkColumns) -> FloatArray:
    """Return bytes per second of a ring over all devices."""
    rate: FloatArray = np.minimum(*_ring_rates(network))
    return rate


def _ring_rates(network: NetworkColumns) -> tuple[FloatArray, FloatArray]:
    """Return bytes per second inside nodes and between them: a ring leaves a node over the cards of all its devices."""
    inside = network.intra_bandwidth_bytes_per_second * c.RING_INTRA_NODE_EFFICIENCY
    between = network.devices_per_node * network.inter_bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY
    return np.where(network.devices_per_node > 1, inside, np.inf), np.where(network.num_nodes > 1, between, np.inf)


def _node_passes(num_nodes: FloatArray) -> FloatArray:
    """Return the times that the busiest node sends its bytes in two trees with half of them each (src/graph/trees.cc).

    Of two nodes each sends up in one tree and down in the other: once, so that such an all-reduce is faster than a ring
    over the same cards. Of three, one is in the middle of a tree, where it sends up and to a child, and at the end of
    the other: one and a half times. Of more, a node has two children in one tree and none in the other: twice.
    """
    passes: FloatArray = np.where(num_nodes > 1, np.minimum(num_nodes / 2, 2), 0.0)
    return passes


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
    """Yield the times of trees with each protocol: up and down a chain of the node and a tree of nodes.

    A device of the chain passes everything on in both directions; a node sends less (see _node_passes).
    """
    hop, network_hop = _hop_scales(network)
    levels = np.floor(log2(network.num_nodes))
    inside, between = _ring_rates(network)
    full = np.minimum(inside, between * 2 / np.maximum(_node_passes(network.num_nodes), 1)) * c.TREE_SHARE
    ll128_share = np.where(network.num_nodes == 1, c.LL128_TREE_SHARES[0], c.LL128_TREE_SHARES[1])
    rates = (_ll_rate(network, full * c.LL_TREE_SHARE), full * ll128_share * c.TREE_CORRECTION, full)
    for protocol, rate in enumerate(rates):
        node_hops = (network.devices_per_node - 1) * c.TREE_NODE_HOP_SECONDS[protocol] * hop
        network_hops = levels * c.TREE_NETWORK_HOP_SECONDS[protocol] * network_hop
        yield _piped(c.TREE_BASE_SECONDS[protocol] + 2 * (node_hops + network_hops), 2 * num_bytes / rate)


def _switches(network: NetworkColumns, num_bytes: FloatArray, switch_efficiency: float) -> FloatArray:
    """Return the time in which the switches of a node add up, and trees the sums of nodes (NVLSTree).

    Inside a node every device sends its bytes once and receives the sum once, however many devices there are. Between
    nodes the card of each device has an equal share of the bytes. Both go on at the same time.
    """
    _, network_hop = _hop_scales(network)
    levels = np.floor(log2(network.num_nodes))
    latency = c.SWITCH_SECONDS + 2 * levels * c.SWITCH_NETWORK_HOP_SECONDS * network_hop
    inside = num_bytes / (network.intra_bandwidth_bytes_per_second * switch_efficiency)
    card_rate = network.inter_bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY
    between = _node_passes(network.num_nodes) * num_bytes / network.devices_per_node / card_rate
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
