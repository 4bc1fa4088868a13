"""Specification of the training samples."""

import numpy as np
import pytest
from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.request import Pipeline
from neuroshard_costs.pretrain.datasets import (
    COMMUNICATION_VALIDITY,
    COMPUTE_VALIDITY,
    communication_samples,
    compute_samples,
)
from neuroshard_costs.simulator.compute import DEVICE_SECONDS
from neuroshard_costs.simulator.device import DeviceSimulator


@pytest.fixture(scope="module")
def device() -> DevicePreset:
    """A preset; which one does not matter."""
    return preset("a100-80gb")


def test_equal_seeds_draw_equal_samples(device: DevicePreset) -> None:
    """Another seed draws others."""
    first, same, other = (compute_samples(device, num_samples=20, seed=seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(first.times_ms, same.times_ms)
    assert not np.array_equal(first.times_ms, other.times_ms)


def test_compute_samples_lie_within_the_stated_ranges(device: DevicePreset) -> None:
    """What the manifest states as valid is what was drawn."""
    samples = compute_samples(device, num_samples=500, seed=0)
    shards = samples.shards
    sizes = np.bincount(samples.set_index)
    for name, values in {
        "num_embeddings": shards.num_rows,
        "embedding_dim": shards.num_columns,
        "pooling_factor": shards.pooling_factor,
        "bytes_per_element": shards.bytes_per_element,
        "output_bytes_per_element": shards.output_bytes_per_element,
        "tables_per_device": sizes,
    }.items():
        limits = COMPUTE_VALIDITY[name]
        assert limits.low <= values.min() <= values.max() <= limits.high, name
    assert (shards.num_columns % 4 == 0).all()
    assert (shards.lookups >= 1).all()
    assert shards.bags.min() >= COMPUTE_VALIDITY["global_batch_size"].low
    assert shards.bags.max() <= COMPUTE_VALIDITY["global_batch_size"].high * COMPUTE_VALIDITY["num_features"].high
    assert (shards.unique_rows <= shards.lookups * (1 + 1e-9)).all()
    np.testing.assert_allclose(shards.reuse_histogram.sum(axis=1), 1.0)


def test_one_set_has_one_output_type_and_one_optimizer(device: DevicePreset) -> None:
    """A device's calls belong to one training step."""
    samples = compute_samples(device, num_samples=100, seed=0)
    for values in (samples.shards.output_bytes_per_element, samples.shards.optimizer):
        first = values[np.searchsorted(samples.set_index, np.arange(100))]
        np.testing.assert_array_equal(values, first[samples.set_index])


def test_times_are_the_simulators(device: DevicePreset) -> None:
    """Targets are exact: the simulator without noise, the fixed time of all calls but the first apart."""
    samples = compute_samples(device, num_samples=40, seed=0)
    shards = samples.shards
    expected = DeviceSimulator(device.device).compute_ms(shards, samples.set_index, 40, pipeline=Pipeline.SPARSE_DIST)
    types = [len(set(shards.data_type[samples.set_index == index].tolist())) for index in range(40)]

    np.testing.assert_allclose(samples.times_ms + 1000 * np.outer(np.array(types) - 1, DEVICE_SECONDS), expected)
    assert max(types) > 1


def test_communication_samples_lie_within_the_stated_ranges(device: DevicePreset) -> None:
    """From 2 to 1,024 devices, and the fullest device holds at least the mean."""
    samples = communication_samples(device, num_samples=2000, seed=0)
    collectives = samples.collectives
    for name, values in {
        "num_devices": collectives.num_nodes * collectives.devices_per_node,
        "mean_dim_sum": collectives.mean_dim_sum,
        "intra_node.bandwidth_bytes_per_second": collectives.intra_bandwidth,
        "inter_node.latency_seconds": collectives.inter_latency,
    }.items():
        limits = COMMUNICATION_VALIDITY[name]
        assert limits.low <= values.min() <= values.max() <= limits.high, name
    assert (samples.max_dim_sum >= collectives.mean_dim_sum).all()
    assert (samples.times_ms > 0).all()
