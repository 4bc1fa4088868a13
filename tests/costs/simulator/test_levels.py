"""Networks of three levels: nodes, racks, and what is between racks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.topology import Link, Rack, Topology
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import Exchange, Reduction
from neuroshard_costs.levels import exchange_link, ring_link
from neuroshard_costs.simulator.device import DeviceSimulator
from support import builders
from support.depth import generated

GB = 1e9
NODE = Link(bandwidth_bytes_per_second=450 * GB, latency_seconds=3e-6)


def three_levels(num_nodes: int, of_rack: int, *, rack: Link, between: Link, per_node: int = 8) -> Topology:
    """Return nodes in racks."""
    return builders.topology(
        num_nodes * per_node,
        num_nodes=num_nodes,
        intra_node=NODE,
        inter_node=between,
        rack=Rack(num_nodes=of_rack, link=rack),
    )


def link(gb_per_second: float, latency_us: float = 10.0) -> Link:
    """Return a link."""
    return Link(bandwidth_bytes_per_second=gb_per_second * GB, latency_seconds=latency_us * 1e-6)


def times_ms(topology: Topology) -> list[Any]:
    """Return the times of an all-to-all and of each family's collectives."""
    costs = DeviceSimulator(topology.device)
    exchange = Exchange(topology=topology, batch_size_per_device=4096, mean_dim_sum=500.0, bytes_per_element=4)
    reductions = [
        costs.reduction_ms(np.array(2.0**30), Reduction(topology=topology, family=each))
        for each in Family
        if each is not Family.COLUMNS
    ]
    return [costs.transfer_ms(np.array(700.0), exchange).tolist(), *(each.tolist() for each in reductions)]


def test_an_all_to_all_is_bound_by_the_cards_or_by_the_links_between_racks() -> None:
    """Four racks of four nodes, 12 of 15 peers are far: they decide at a quarter of the rate, else the card."""
    slow = three_levels(16, 4, rack=link(50, 10), between=link(12.5, 25))
    fast = three_levels(16, 4, rack=link(50, 10), between=link(45, 25))

    assert exchange_link(slow).bandwidth_bytes_per_second == pytest.approx(12.5 * GB * 15 / 12)
    assert exchange_link(slow).latency_seconds == pytest.approx((3 * 10e-6 + 12 * 25e-6) / 15)
    assert exchange_link(fast).bandwidth_bytes_per_second == 50 * GB


def test_a_ring_crosses_racks_over_the_links_of_all_their_nodes() -> None:
    """Each rack sends what one node does, over the share of four; at an eighth of the rate these are half of it."""
    slow = three_levels(16, 4, rack=link(50, 10), between=link(6.25, 25))

    assert ring_link(slow).bandwidth_bytes_per_second == 4 * 6.25 * GB
    assert ring_link(slow).latency_seconds == pytest.approx((12 * 10e-6 + 3 * 25e-6) / 15)
    assert ring_link(three_levels(16, 4, rack=link(50), between=link(25))).bandwidth_bytes_per_second == 50 * GB
    assert ring_link(three_levels(4, 4, rack=link(50), between=link(1))).bandwidth_bytes_per_second == 50 * GB


def test_rows_of_all_devices_take_what_a_ring_over_the_slower_racks_takes() -> None:
    """By hand: 127/128 of the bytes, over eight cards' share of half a card, of which a ring reaches 86 %."""
    found = three_levels(16, 4, rack=link(50), between=link(6.25))
    rows = Reduction(topology=found, family=Family.ROWS)
    forward, _ = DeviceSimulator(found.device).reduction_ms(np.array(2.0**35), rows)

    assert forward == pytest.approx(127 / 128 * 2**35 / (8 * 25 * GB * 0.86) * 1e3, rel=0.06)


_racks = st.tuples(st.integers(1, 4), st.integers(2, 5), st.sampled_from([1, 2, 8]), st.floats(1.0, 100.0))


@generated(25, 500)
@given(shape=_racks)
def test_racks_with_the_link_that_is_between_them_are_no_level(shape: tuple[int, int, int, float]) -> None:
    """Three levels whose upper links are equal cost what two do."""
    num_racks, of_rack, per_node, rate = shape
    upper = link(rate)
    three = three_levels(num_racks * of_rack, of_rack, rack=upper, between=upper, per_node=per_node)
    two = three.model_copy(update={"rack": None})

    assert times_ms(three) == times_ms(two)


@generated(25, 500)
@given(shape=_racks)
def test_racks_with_the_link_of_a_node_are_large_nodes(shape: tuple[int, int, int, float]) -> None:
    """An NVLink domain of several nodes costs what a node of as many devices does, for every collective."""
    num_racks, of_rack, per_node, rate = shape
    three = three_levels(num_racks * of_rack, of_rack, rack=NODE, between=link(rate), per_node=per_node)
    large = builders.topology(three.num_devices, num_nodes=num_racks, intra_node=NODE, inter_node=link(rate))

    assert times_ms(three) == times_ms(large)


@generated(25, 500)
@given(shape=_racks, slower=st.floats(1.0, 50.0))
def test_no_collective_is_faster_over_slower_links_between_racks(
    shape: tuple[int, int, int, float], slower: float
) -> None:
    """And none is faster than with the rack's link everywhere."""
    num_racks, of_rack, per_node, rate = shape
    rack, between = link(rate), link(rate / slower, 10.0 * slower)
    nodes = num_racks * of_rack
    times = [
        np.concatenate(
            [
                np.ravel(each)
                for each in times_ms(three_levels(nodes, of_rack, rack=rack, between=upper, per_node=per_node))
            ]
        )
        for upper in (rack, between, link(rate / slower / 2, 10.0 * slower))
    ]

    assert (times[0] <= times[1] * (1 + 1e-9)).all()
    assert (times[1] <= times[2] * (1 + 1e-9)).all()


def test_the_networks_of_a_bundle_price_racks_by_the_same_link() -> None:
    """Trained on two levels, they are asked for the one link in place of both."""
    found = three_levels(16, 4, rack=link(50, 10), between=link(12.5, 25))
    as_two = found.model_copy(update={"rack": None, "inter_node": exchange_link(found)})
    bundle = bundled_bundle("h100-80gb")
    times = [
        bundle.transfer_ms(
            np.array(700.0),
            Exchange(topology=each, batch_size_per_device=4096, mean_dim_sum=500.0, bytes_per_element=4),
        ).tolist()
        for each in (found, as_two)
    ]

    assert times[0] == times[1]
