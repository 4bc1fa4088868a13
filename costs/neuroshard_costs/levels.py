"""Networks of three levels as two: one link in the place of those within and between racks. Computes links, no times.

A device reaches the other nodes over its network card, which has the rate of the rack's link, and the other racks over
its share of the links between racks as well. Both carry at once, so the slower of the two decides:

===========  =============================================================  ==========================================
what         rate of the one link                                           its latency
===========  =============================================================  ==========================================
all-to-all   min(rack, between * (near + far) / far) of the nodes near, in  the mean over the nodes
             the rack, and far
ring         min(rack, between * nodes of a rack): one of a rack's nodes    the mean over the hops from node to node
             sends to the next rack, over the share of all of them
===========  =============================================================  ==========================================

With equal links of both levels this is that link. Latencies stay a mean, for a device's messages follow each other.
"""

from neuroshard_api.documents.topology import Link, Topology


def exchange_link(topology: Topology) -> Link:
    """Return the one link over which an all-to-all reaches the other domains in the same time."""
    rack = topology.slower_rack
    if rack is None:
        return topology.inter_node
    near, far = rack.num_nodes - 1, topology.num_nodes - rack.num_nodes
    rate = rack.link.bandwidth_bytes_per_second
    if far:
        rate = min(rate, topology.inter_node.bandwidth_bytes_per_second * (near + far) / far)
    return Link(
        bandwidth_bytes_per_second=rate,
        latency_seconds=_mean_latency(topology, near=near, far=far),
    )


def ring_link(topology: Topology) -> Link:
    """Return the one link over which a ring or a tree of all devices goes from node to node in the same time."""
    rack = topology.slower_rack
    if rack is None:
        return topology.inter_node
    crossings = topology.num_nodes // rack.num_nodes - 1
    rate = rack.link.bandwidth_bytes_per_second
    if crossings:
        rate = min(rate, rack.num_nodes * topology.inter_node.bandwidth_bytes_per_second)
    return Link(
        bandwidth_bytes_per_second=rate,
        latency_seconds=_mean_latency(topology, near=topology.num_nodes - 1 - crossings, far=crossings),
    )


def _mean_latency(topology: Topology, *, near: int, far: int) -> float:
    rack = topology.slower_rack
    assert rack is not None, "the caller looked"
    if rack.link.latency_seconds == topology.inter_node.latency_seconds:
        return rack.link.latency_seconds
    return (near * rack.link.latency_seconds + far * topology.inter_node.latency_seconds) / (near + far)
