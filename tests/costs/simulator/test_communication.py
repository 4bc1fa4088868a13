"""The all-to-all of the device simulator."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.communication import (
    Direction,
    NetworkColumns,
    Numbers,
    all_to_all_seconds,
    with_start_skew,
)
from support.builders import device_type, topology

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


def seconds(
    *,
    max_dim_sum: Numbers = 1000.0,
    mean_dim_sum: Numbers = 1000.0,
    num_devices: int = 8,
    num_nodes: int = 1,
    direction: Direction = "forward",
    **fields: Any,
) -> FloatArray:
    """Return the time of a collective with 8,192 samples per device in FP32, but for the given fields."""
    return all_to_all_seconds(
        device_type(),
        NetworkColumns.of(topology(num_devices, num_nodes=num_nodes)),
        **{"batch_size_per_device": 8192, "bytes_per_element": 4, **fields},
        max_dim_sum=max_dim_sum,
        mean_dim_sum=mean_dim_sum,
        direction=direction,
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_largest_dim_sum_decides(direction: Direction) -> None:
    """Moving columns onto one device slows the collective down although the same bytes are sent in all."""
    balanced = seconds(max_dim_sum=1000.0, direction=direction)
    lopsided = seconds(max_dim_sum=3000.0, direction=direction)

    assert lopsided > 1.5 * balanced


@pytest.mark.parametrize("load", [1.5, 4.0, 8.0])
def test_a_skewed_collective_takes_as_long_as_its_fullest_device(load: float) -> None:
    """Links work both ways at once: the bytes of the fullest device at the link's rate are a floor."""
    largest = 1000.0 * load
    floor = 7 * largest * 8192 * 4 / (0.82 * topology(8).intra_node.bandwidth_bytes_per_second)

    assert seconds(max_dim_sum=largest) > floor


@pytest.mark.parametrize(("num_nodes", "link", "efficiency"), [(1, "intra_node", 0.82), (8, "inter_node", 0.94)])
def test_large_messages_reach_the_published_rate_of_their_link(num_nodes: int, link: str, efficiency: float) -> None:
    """What another 10,000 columns take is their bytes at 82 % of NVLink, or at 94 % of InfiniBand; copies apart."""
    rate = efficiency * getattr(topology(8, num_nodes=num_nodes), link).bandwidth_bytes_per_second
    more, base = (seconds(max_dim_sum=width, num_nodes=num_nodes) for width in (20_000.0, 10_000.0))

    assert more - base == pytest.approx(7 * 10_000 * 8192 * 4 / rate, rel=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(mean=st.floats(0, 1e5), surplus=st.floats(0, 1e5), more=st.floats(0, 1e4))
def test_more_columns_never_make_it_faster(direction: Direction, mean: float, surplus: float, more: float) -> None:
    """The time grows with the mean and with the largest dim sum."""
    base = seconds(max_dim_sum=mean + surplus, mean_dim_sum=mean, direction=direction)

    assert seconds(max_dim_sum=mean + surplus + more, mean_dim_sum=mean, direction=direction) >= base
    assert seconds(max_dim_sum=mean + surplus + more, mean_dim_sum=mean + more, direction=direction) >= base


def test_devices_on_several_nodes_are_slower() -> None:
    """Eight devices on two or eight nodes send most of their data over the slow link."""
    times = [seconds(num_nodes=num_nodes) for num_nodes in (1, 2, 8)]

    assert all(fast < slow for fast, slow in pairwise(times))
    assert times[1] > 2.5 * times[0]


def test_an_empty_collective_costs_latency_that_grows_with_the_peers() -> None:
    """No columns, no bytes: what remains is linear in the number of peers beyond the launch."""
    times = [seconds(max_dim_sum=0.0, mean_dim_sum=0.0, num_devices=count) for count in (9, 17, 33)]

    assert times[0] > 0
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]))


def test_a_single_device_sends_nothing() -> None:
    """Without peers there is no collective."""
    assert seconds(num_devices=1) == 0


def test_half_the_bytes_per_element_take_a_little_more_than_half() -> None:
    """16-bit elements halve the transfer; the copies reach less of the memory's peak."""
    assert 0.5 < seconds(bytes_per_element=2) / seconds(bytes_per_element=4) < 0.6


def test_backward_costs_more_than_forward() -> None:
    """TorchRec divides the received gradients by the number of devices: one more pass over them."""
    assert seconds(direction="backward") > seconds(direction="forward")


def test_samples_and_networks_broadcast() -> None:
    """One call serves many samples, each with its own topology."""
    found = all_to_all_seconds(
        device_type(),
        NetworkColumns(
            num_nodes=np.array([1.0, 2.0]),
            devices_per_node=np.array([8.0, 4.0]),
            intra_bandwidth_bytes_per_second=np.array([400e9]),
            intra_latency_seconds=np.array([10e-6]),
            inter_bandwidth_bytes_per_second=np.array([50e9]),
            inter_latency_seconds=np.array([20e-6]),
        ),
        max_dim_sum=np.array([1000.0]),
        mean_dim_sum=1000.0,
        batch_size_per_device=8192,
        bytes_per_element=4,
        direction="forward",
    )

    assert found == pytest.approx([float(seconds()), float(seconds(num_nodes=2))])


def test_a_collective_waits_for_the_last_device_to_start() -> None:
    """The device that starts first waits longest; the last one waits for none."""
    found = with_start_skew(np.array([[0.0, 3.0, 5.0], [1.0, 1.0, 1.0]]), np.array([2.0, 4.0]))

    assert found.tolist() == [[7.0, 4.0, 2.0], [4.0, 4.0, 4.0]]
