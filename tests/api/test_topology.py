"""Devices and links."""

import pytest
from hypothesis import given
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.topology import Rack, Topology
from pydantic import ValidationError
from support.builders import data_with, topology
from support.strategies import topologies


@given(topologies)
def test_any_topology_survives_json(devices: Topology) -> None:
    """Reading what was written gives an equal value."""
    assert Topology.from_json(devices.to_json()) == devices


def test_devices_are_counted_over_all_nodes() -> None:
    """Four nodes of eight devices are 32 devices."""
    assert topology(32, num_nodes=4).num_devices == 32
    assert topology(32, num_nodes=4).devices_per_node == 8


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("num_nodes", 0),
        ("devices_per_node", -1),
        ("device.memory_bytes", 0),
        ("device.memory_bytes", 2**53 + 1),
        ("device.cache_bytes", 2**53 + 1),
        ("device.memory_bandwidth_bytes_per_second", 0.0),
        ("device.clock_hz", -1.0),
        ("device.name", ""),
        ("intra_node.bandwidth_bytes_per_second", 0.0),
        ("inter_node.latency_seconds", 2.0),
    ],
)
def test_an_impossible_number_is_refused_by_name(path: str, value: object) -> None:
    """Every number of a data sheet is positive, and latencies are below a second."""
    with pytest.raises(DocumentError, match=f"document: {path}: "):
        Topology.from_data(data_with(topology(), path, value))


def in_racks(num_nodes: int, of_rack: int, *, is_fast: bool) -> Topology:
    """Return nodes of two devices in racks whose link is that inside a node, or that between nodes."""
    plain = topology(2 * num_nodes, num_nodes=num_nodes)
    rack = Rack(num_nodes=of_rack, link=plain.intra_node if is_fast else plain.inter_node)
    return topology(2 * num_nodes, num_nodes=num_nodes, rack=rack)


def test_a_rack_with_the_link_of_a_node_is_a_domain() -> None:
    """Its devices count as those of one node; a slower rack changes no node."""
    fast, slow = in_racks(6, 3, is_fast=True), in_racks(6, 3, is_fast=False)

    assert (fast.num_domains, fast.devices_per_domain, fast.slower_rack) == (2, 6, None)
    assert (slow.num_domains, slow.devices_per_domain, slow.slower_rack) == (6, 2, slow.rack)
    assert fast.by_domains() == topology(12, num_nodes=2)
    assert slow.by_domains() == slow


def test_racks_of_unequal_nodes_are_refused() -> None:
    """With both numbers."""
    with pytest.raises(ValidationError, match=r"must divide num_nodes, .* \(found 4 and 6\)"):
        in_racks(6, 4, is_fast=True)


@pytest.mark.parametrize(("num_nodes", "of_rack"), [(12, 6), (3, 3), (8, 4), (7, None), (1, None)])
def test_more_or_fewer_nodes_are_in_equal_racks(num_nodes: int, of_rack: int | None) -> None:
    """As large as before if possible, of one node never."""
    found = in_racks(6, 6, is_fast=False).with_nodes(num_nodes)

    assert found.num_nodes == num_nodes
    assert (found.rack.num_nodes if found.rack else None) == of_rack
