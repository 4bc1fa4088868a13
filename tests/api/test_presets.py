"""Device presets."""

from pathlib import Path

import pytest
from neuroshard_api.documents.presets import load_presets, preset
from neuroshard_api.documents.topology import Topology

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"
NAMES = ["a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb", "gb200-nvl72"]


def test_the_presets_are_the_published_kinds() -> None:
    """Names are as in the file, in its order."""
    assert list(load_presets()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_plausible(name: str) -> None:
    """Memory is the named size within the driver's share, caches and near links are faster than memory and far ones."""
    found = preset(name)
    device = found.device

    size = name.split("-")[1].replace("nvl72", "186gb")  # the rack's name has no size
    assert device.memory_bytes == pytest.approx(float(size.removesuffix("gb")) * 1e9, rel=0.08)
    assert device.cache_bandwidth_bytes_per_second > device.memory_bandwidth_bytes_per_second
    assert found.intra_node.bandwidth_bytes_per_second > found.inter_node.bandwidth_bytes_per_second
    assert "data sheet" in device.source


def test_a_preset_makes_a_topology() -> None:
    """As many devices per node as usual, or as many as asked for."""
    assert preset("h100-80gb").topology(num_nodes=2).num_devices == 16
    assert preset("h100-80gb").topology(devices_per_node=4).num_devices == 4


@pytest.mark.parametrize(
    ("num_nodes", "of_rack", "num_domains"),
    [(1, None, 1), (12, 12, 1), (18, 18, 1), (24, 12, 2), (36, 18, 2), (19, None, 19)],
)
def test_a_preset_fills_its_racks_equally(num_nodes: int, of_rack: int | None, num_domains: int) -> None:
    """The nodes of GB200 NVL72 are in racks of at most 18, each an NVLink domain; 19 have no equal racks."""
    found = preset("gb200-nvl72").topology(num_nodes=num_nodes)

    assert (found.rack.num_nodes if found.rack else None) == of_rack
    assert (found.num_domains, found.devices_per_domain) == (num_domains, 4 * num_nodes // num_domains)


def test_host_memory_is_there_where_it_is_given() -> None:
    """Data sheets say how fast the link is, and not how much memory a node has."""
    found = preset("h100-80gb")

    assert found.topology().host_memory is None
    memory = found.topology(host_memory_bytes=10**12).host_memory
    assert memory is not None
    assert (memory.bytes_per_node, memory.link.to_device_bytes_per_second) == (10**12, 63e9)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """The message lists what can be given instead."""
    with pytest.raises(
        ValueError,
        match=r"'h300' is not known"
        r"; hint: choose one of a100-40gb, .*gb200-nvl72, or describe",
    ):
        preset("h300")


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.stem)
def test_an_example_of_a_device_described_by_numbers_is_valid(path: Path) -> None:
    """What the message points to can be copied from the examples."""
    assert Topology.read(path).device.name not in load_presets()
