"""Specification of the document of a measured device."""

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.topology import DeviceType, Link
from support.builders import device_type

NVLINK = Link(bandwidth_bytes_per_second=3.6e11, latency_seconds=5e-6)
NETWORK = Link(bandwidth_bytes_per_second=4e10, latency_seconds=2e-5)


def hardware(device: DeviceType, *, intra: Link | None, inter: Link | None) -> Hardware:
    """Return the hardware measured on nodes of eight devices."""
    return Hardware(
        fingerprint="0" * 64,
        source="measured:a device",
        device=device,
        intra_node=intra,
        inter_node=inter,
        devices_per_node=8,
    )


def test_a_network_that_was_not_measured_is_the_usual_one_of_the_device() -> None:
    """The link inside the node, seven times as fast, is never taken for the network between nodes."""
    h100 = preset("h100-80gb")

    topology = hardware(h100.device, intra=NVLINK, inter=None).topology(num_nodes=2, devices_per_node=8)

    assert topology.intra_node == NVLINK
    assert topology.inter_node == h100.inter_node


def test_a_network_that_was_measured_is_kept() -> None:
    """Measurements come before data sheets."""
    topology = hardware(preset("h100-80gb").device, intra=NVLINK, inter=NETWORK).topology(
        num_nodes=2, devices_per_node=8
    )

    assert (topology.intra_node, topology.inter_node) == (NVLINK, NETWORK)


def test_a_network_that_is_neither_measured_nor_known_is_asked_for() -> None:
    """A plan for two nodes must not be made from the numbers of one."""
    with pytest.raises(DocumentError, match=r"inter_node: was not measured, and no usual one is known .* on two nodes"):
        hardware(device_type(), intra=NVLINK, inter=None).topology(num_nodes=2, devices_per_node=8)
    with pytest.raises(DocumentError, match=r"intra_node: was not measured"):
        hardware(device_type(), intra=None, inter=None).topology(num_nodes=1, devices_per_node=2)


def test_a_level_over_which_nothing_passes_needs_no_measurement() -> None:
    """One node of an unknown device has no network, and one device not even a neighbor."""
    assert hardware(device_type(), intra=NVLINK, inter=None).topology(num_nodes=1, devices_per_node=8).num_devices == 8
    assert hardware(device_type(), intra=None, inter=None).topology(num_nodes=1, devices_per_node=1).num_devices == 1


@pytest.mark.parametrize(("inter", "between"), [(NVLINK, None), (NETWORK, NETWORK), (None, None)])
def test_racks_are_those_of_the_device_with_the_measured_link(inter: Link | None, between: Link | None) -> None:
    """Two measured nodes of one NVLink domain say nothing of the network between racks, which is the usual one then."""
    usual = preset("gb200-nvl72")
    topology = hardware(usual.device, intra=NVLINK, inter=inter).topology(num_nodes=36, devices_per_node=4)

    assert (topology.num_domains, topology.devices_per_domain) == (2, 72)
    assert topology.rack is not None
    assert topology.rack.link == NVLINK
    assert topology.inter_node == (between or usual.inter_node)
