"""Devices and links."""

import pytest
from hypothesis import given
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.topology import Topology
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
