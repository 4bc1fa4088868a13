"""Specification of the networks at plan time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_costs.features import COMMUNICATION_FEATURES, COMPUTE_FEATURES, Float32Array
from neuroshard_costs.networks import CommunicationNetwork, ComputeNetwork
from support.planner.bundle_builders import NUM_DEMANDS, NUM_UNITS, collectives, compute_weights, mlp_weights

demands = st.lists(st.floats(min_value=0, max_value=1e4, width=32), min_size=NUM_DEMANDS, max_size=NUM_DEMANDS).map(
    lambda values: np.array(values, dtype=np.float32)
)
NUM_FEATURES = len(COMPUTE_FEATURES)
seeds = st.integers(0, 20)
shares = st.sampled_from((0.25, 0.5, 1.0))


@given(first=demands, more=demands, share=shares, seed=seeds)
def test_more_demand_never_costs_less(first: Float32Array, more: Float32Array, share: float, seed: int) -> None:
    """Both times are non-decreasing in the sums: a device costs at least what a part of its shards costs."""
    network = ComputeNetwork.from_weights(compute_weights(seed=seed))
    part, whole = network.times_ms(np.stack((first, first + more)), share)

    assert (whole >= part * (1 - 1e-6)).all()


@given(first=demands, second=demands, share=st.floats(0, 1), seed=seeds)
def test_a_mixture_never_costs_more_than_the_mixed_times(
    first: Float32Array, second: Float32Array, share: float, seed: int
) -> None:
    """Both times are convex in the sums, so the mean over devices bounds the slowest device from below."""
    network = ComputeNetwork.from_weights(compute_weights(seed=seed))
    mixed = (share * first + (1 - share) * second).astype(np.float32)
    times = network.times_ms(np.stack((first, second, mixed)), 1.0)

    assert (times[2] <= (share * times[0] + (1 - share) * times[1]) * (1 + 1e-5)).all()


@given(sums=demands, seed=seeds)
def test_wider_calls_never_cost_less(sums: Float32Array, seed: int) -> None:
    """A bag that takes a whole warp costs no less than one that takes a quarter."""
    network = ComputeNetwork.from_weights(compute_weights(seed=seed))
    quarter, half, whole = network.times_ms(np.stack([sums] * 3), np.array([0.25, 0.5, 1.0], dtype=np.float32))

    assert (quarter <= half * (1 + 1e-6)).all()
    assert (half <= whole * (1 + 1e-6)).all()


def test_demands_are_positive_and_finite_far_outside() -> None:
    """Whatever the features, a shard's demand can be summed."""
    network = ComputeNetwork.from_weights(compute_weights())
    features = np.random.default_rng(0).normal(0, 1e6, (100, NUM_FEATURES))
    demand = network.demands(features)

    assert (demand > 0).all()
    assert np.isfinite(network.times_ms(demand, 1.0)).all()


@pytest.mark.parametrize(
    ("name", "position"), [("head_in", (0, 0)), ("head_out", (0, 0)), ("head_bias", (0,)), ("head_bias", (-1,))]
)
def test_a_head_that_could_fall_is_refused(name: str, position: tuple[int, ...]) -> None:
    """A negative weight would void the search's bounds."""
    weights = compute_weights()
    weights[name][position] = -0.1

    with pytest.raises(ValueError, match="must be monotone"):
        ComputeNetwork.from_weights(weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_out": np.ones((NUM_UNITS, 3), dtype=np.float32)}, r"'head_out' as float32\[3, 3\]"),
        ({"head_bias": np.ones(2, dtype=np.float32)}, "'head_bias'"),
        ({"shard.layer1.bias": np.full(NUM_DEMANDS, np.nan, dtype=np.float32)}, "not finite"),
        ({"shard.around": np.ones((3, NUM_DEMANDS), dtype=np.float32)}, "'around'"),
        ({"lane_share": np.full(NUM_DEMANDS, 1.5, dtype=np.float32)}, "'lane_share' that do not lie between 0 and 1"),
        ({"shard.std": np.zeros(NUM_FEATURES, dtype=np.float32)}, "'std' that are not positive"),
        ({"shard.layer0.weight": np.ones((NUM_FEATURES, 7), dtype=np.float64)}, "float64"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: dict[str, Float32Array], message: str) -> None:
    """The array is named with what it is and what was expected."""
    with pytest.raises(ValueError, match=message):
        ComputeNetwork.from_weights(compute_weights() | change)


def test_missing_weights_are_named() -> None:
    """Each array that a network needs is asked for by name."""
    weights = compute_weights()
    del weights["head_in"]

    with pytest.raises(ValueError, match="lacks the array 'head_in'"):
        ComputeNetwork.from_weights(weights)
    with pytest.raises(ValueError, match="holds no layers"):
        ComputeNetwork.from_weights({})


@given(seed=seeds, loads=st.lists(st.floats(1, 64), min_size=2, max_size=8))
def test_a_wider_fullest_device_never_speeds_the_all_to_all_up(seed: int, loads: list[float]) -> None:
    """Transfer time is non-decreasing in the largest dimension sum, for any weights."""
    network = CommunicationNetwork.from_weights(mlp_weights(len(COMMUNICATION_FEATURES), 3, seed=seed))
    times = network.transfer_ms(512.0 * np.sort(loads), collectives())

    assert (np.diff(times) >= 0).all()


def test_one_device_sends_nothing() -> None:
    """A single device has no all-to-all."""
    network = CommunicationNetwork.from_weights(mlp_weights(len(COMMUNICATION_FEATURES), 3))
    single = collectives(num_nodes=1.0, devices_per_node=1.0)

    assert network.transfer_ms(np.array([512.0]), single).tolist() == [0.0]


def test_communication_outputs_must_fill_the_terms() -> None:
    """Every load term takes as many outputs as the others."""
    with pytest.raises(ValueError, match="multiple of 3"):
        CommunicationNetwork.from_weights(mlp_weights(len(COMMUNICATION_FEATURES), 4))
