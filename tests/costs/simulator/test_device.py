"""The device simulator as others use it."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.communication import NetworkColumns
from neuroshard_costs.simulator.device import DeviceSimulator
from support.builders import device_type, table, table_set, topology

SHARDS = shard_arrays(
    table_set(table("a"), table("b", embedding_dim=128), table("c", zipf_exponent=1.3)),
    global_batch_size=65536,
    optimizer=Optimizer.SGD,
)


def simulator(**settings: Any) -> DeviceSimulator:
    """Return a simulator of the tests' device."""
    return DeviceSimulator(device_type(), **settings)


def collective_ms(device: DeviceSimulator) -> FloatArray:
    """Return the times of three collectives."""
    return device.communication_ms(
        NetworkColumns.of(topology(8)),
        max_dim_sum=np.array([100.0, 200.0, 400.0]),
        mean_dim_sum=100.0,
        batch_size_per_device=8192,
        bytes_per_element=4,
        direction="forward",
    )


def test_sets_are_timed_apart_and_an_empty_one_costs_nothing() -> None:
    """Each set has the time of its own shards, whatever their order; a device without tables costs 0.0."""
    together = simulator().compute_ms(SHARDS, np.array([2, 0, 2]), 4, pipeline=Pipeline.NONE)
    pair = simulator().compute_ms(SHARDS.take(np.array([2, 0])), np.array([0, 0]), 1, pipeline=Pipeline.NONE)
    single = simulator().compute_ms(SHARDS.take(np.array([1])), np.array([0]), 1, pipeline=Pipeline.NONE)

    assert together.shape == (4, 2)
    assert together[[1, 3]].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert together[2] == pytest.approx(pair[0], rel=1e-12)
    assert together[0] == pytest.approx(single[0], rel=1e-12)


def test_more_shards_than_one_step_holds_are_all_timed() -> None:
    """Large requests are worked through in steps; the steps leave no trace in the times."""
    count = 40_000
    many = SHARDS.take(np.arange(count) % 3)

    times = simulator().compute_ms(many, np.arange(count), count, pipeline=Pipeline.NONE)

    assert times.reshape(-1, 2)[:3] == pytest.approx(times[count - count % 3 - 3 : count - count % 3])


def test_without_noise_equal_calls_give_equal_times() -> None:
    """The model itself draws nothing."""
    device = simulator()

    assert (collective_ms(device) == collective_ms(device)).all()


def test_noise_is_seeded() -> None:
    """Equal seeds give equal times, other seeds others, and a repeat on one simulator differs."""
    device = simulator(noise=0.05, seed=3)
    first = collective_ms(device)

    assert (first == collective_ms(simulator(noise=0.05, seed=3))).all()
    assert (first != collective_ms(simulator(noise=0.05, seed=4))).all()
    assert (first != collective_ms(device)).all()


def test_noise_is_relative_and_keeps_the_median() -> None:
    """The logarithm of the times is spread by the noise about the noiseless time; an empty set stays 0."""
    index = np.zeros(3, dtype=np.int64)
    device = simulator(noise=0.05)
    factors = np.array([device.compute_ms(SHARDS, index, 2, pipeline=Pipeline.NONE) for _ in range(2000)])
    logs = np.log(factors[:, 0] / simulator().compute_ms(SHARDS, index, 2, pipeline=Pipeline.NONE)[0])

    assert logs.mean() == pytest.approx(0.0, abs=0.005)
    assert logs.std() == pytest.approx(0.05, rel=0.05)
    assert not factors[:, 1].any()


def test_noise_beyond_a_share_is_refused() -> None:
    """Two per cent is 0.02; 2 is a mistake."""
    with pytest.raises(ValueError, match="noise: must be a share between 0 and 1, found 2"):
        simulator(noise=2)


def test_times_are_labelled_simulated() -> None:
    """Nothing from the simulator may pass for a measurement."""
    assert simulator().source == "simulated:test-80gb"
