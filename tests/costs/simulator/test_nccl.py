"""Latency and rate of NCCL's algorithms and protocols."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.presets import preset
from neuroshard_costs.simulator.communication import NetworkColumns
from neuroshard_costs.simulator.nccl import all_reduce_seconds, ring_rate, scatter_seconds

US = 1e-6
SWITCHES = 0.61
"""What switches reach of a link on nodes of H100."""


def network(num_nodes: int, devices_per_node: int = 8, *, slower: float = 1.0) -> NetworkColumns:
    """Return H100 nodes, with latencies this many times those of the preset."""
    topology = preset("h100-80gb").topology(num_nodes=num_nodes, devices_per_node=devices_per_node)
    links = {
        name: link.model_copy(update={"latency_seconds": link.latency_seconds * slower})
        for name, link in (("intra_node", topology.intra_node), ("inter_node", topology.inter_node))
    }
    return NetworkColumns.of(topology.model_copy(update=links))


def all_reduce_us(num_nodes: int, num_bytes: float, *, has_switches: bool = True, slower: float = 1.0) -> float:
    """Return the microseconds of one all-reduce."""
    shape = network(num_nodes, slower=slower)
    efficiency = SWITCHES if has_switches else None
    return float(all_reduce_seconds(shape, np.array(num_bytes), switch_efficiency=efficiency)) / US


@pytest.mark.parametrize(
    ("num_nodes", "microseconds"),
    [(1, 6.6 + 14 * 0.6), (2, 6.8 + 2 * (7 * 0.6 + 5.0)), (16, 6.8 + 2 * (7 * 0.6 + 4 * 5.0))],
    ids=["ring of a node", "tree of 2 nodes", "tree of 16 nodes"],
)
def test_a_small_all_reduce_takes_the_latency_of_nccls_table(num_nodes: int, microseconds: float) -> None:
    """With LL, around the node; over several nodes up and down a tree, whose hops grow with their logarithm."""
    assert all_reduce_us(num_nodes, 8) == pytest.approx(microseconds, rel=0.02)


def test_a_small_message_does_not_wait_for_every_device_of_many_nodes() -> None:
    """From 2 to 16 nodes the devices grow eightfold, and the latency by half again and twice."""
    assert 2 < all_reduce_us(16, 1024) / all_reduce_us(2, 1024) < 3


def test_large_messages_reach_the_rate_of_switches_or_rings() -> None:
    """On one node switches take a device's bytes at 0.61 of the link, a ring its pieces at 0.8: within 5 %."""
    large = 2.0**33
    sent = 2 * 7 / 8 * large

    assert all_reduce_us(1, large) == pytest.approx(large / (0.61 * 450e9) / US, rel=0.05)
    assert all_reduce_us(1, large, has_switches=False) == pytest.approx(sent / (0.8 * 450e9) / US, rel=0.05)


def test_sums_of_nodes_go_over_two_trees_of_the_cards() -> None:
    """Two nodes wait for their switches; of more each card passes its share on twice, as both trees need."""
    large = 2.0**34

    assert all_reduce_us(2, large) == pytest.approx(all_reduce_us(1, large), rel=0.02)
    for num_nodes in (4, 16):
        assert all_reduce_us(num_nodes, large) == pytest.approx(2 * large / 8 / (0.94 * 50e9) / US, rel=0.06)


@pytest.mark.parametrize(("num_nodes", "passes"), [(2, 1.0), (3, 1.5), (4, 2.0), (6, 2.0)])
def test_trees_of_few_nodes_send_less_than_rings(num_nodes: int, passes: float) -> None:
    """Of two nodes each is the end of one of both trees, so that two of them exceed what a ring gets of their cards."""
    large, cards = 2.0**34, 8 * 5e9
    topology = preset("h100-80gb").topology(num_nodes=num_nodes)
    slow = topology.inter_node.model_copy(update={"bandwidth_bytes_per_second": cards / 8})
    shape = NetworkColumns.of(topology.model_copy(update={"inter_node": slow}))
    ring = 2 * (1 - 1 / (8 * num_nodes)) * large / (0.94 * cards)
    tree = passes * large / (0.92 * 0.94 * cards)

    assert float(all_reduce_seconds(shape, np.array(large), switch_efficiency=None)) == pytest.approx(
        min(ring, tree), rel=0.03
    )


def test_messages_of_a_mebibyte_take_longer_than_latency_and_bytes() -> None:
    """The pipeline fills first: published all-reduces of 16 MiB took a quarter longer."""
    num_bytes = 2.0**24
    alone = 25 + num_bytes / (0.61 * 450e9) / US

    assert 1.1 < all_reduce_us(1, num_bytes) / alone < 1.5


def test_slower_links_have_slower_hops() -> None:
    """A network of twice the latency adds its hops once more, and no base."""
    hops = 2 * (7 * 0.6 + 4 * 5.0)

    assert all_reduce_us(16, 8, slower=2.0) - all_reduce_us(16, 8) == pytest.approx(hops, rel=0.05)


def test_two_devices_have_no_use_for_switches() -> None:
    """NCCL adds up in switches from three devices on."""
    pair = network(1, 2)
    times = [float(all_reduce_seconds(pair, np.array(1e9), switch_efficiency=each)) for each in (SWITCHES, None)]

    assert times[0] == times[1]


def test_a_ring_leaves_a_node_over_all_its_cards() -> None:
    """Its rate is that of all cards, or of the links inside where these are slower."""
    assert float(ring_rate(network(2, 4))) == pytest.approx(4 * 50e9 * 0.94)
    assert float(ring_rate(network(2))) == pytest.approx(450e9 * 0.8)
    assert float(ring_rate(network(1))) == pytest.approx(450e9 * 0.8)


@given(
    first=st.floats(1, 1e11),
    second=st.floats(1, 1e11),
    num_nodes=st.sampled_from([1, 2, 5, 64]),
    per_node=st.sampled_from([1, 2, 8]),
)
def test_more_bytes_never_take_less_time(first: float, second: float, num_nodes: int, per_node: int) -> None:
    """Whatever algorithm and protocol is the fastest for each."""
    if num_nodes * per_node == 1:
        return
    sizes = np.sort(np.array([first, second]))
    shape = network(num_nodes, per_node)

    for times in (scatter_seconds(shape, sizes), all_reduce_seconds(shape, sizes, switch_efficiency=SWITCHES)):
        assert 0 < times[0] <= times[1]
