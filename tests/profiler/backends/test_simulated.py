"""Specification of the simulated backend."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Pipeline
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_profiler.backends.simulated import SimulatedBackend
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from support.builders import device_type, table
from support.profiler.profiler_builders import QUICK, compute_sample


def test_times_are_the_simulators_within_its_noise() -> None:
    """Labelled simulated, and the same for the same seed."""
    backend, sample = SimulatedBackend(device_type()), compute_sample()
    true_ms = DeviceSimulator(device_type()).compute_ms(
        sample_shards(sample), np.zeros(2, dtype=np.int64), 1, pipeline=Pipeline.SPARSE_DIST
    )[0]
    first, second = (backend.measure(sample, seed=1, repeats=QUICK) for _ in range(2))

    assert (first.forward_ms, first.backward_ms) == pytest.approx(tuple(true_ms), rel=0.05)
    assert first == second
    assert backend.source == "simulated:Test Device 80GB"


def test_tables_beyond_the_devices_memory_do_not_fit() -> None:
    """As on a real device."""
    backend = SimulatedBackend(device_type(memory_bytes=10**6))

    with pytest.raises(OutOfDeviceMemoryError):
        backend.measure(compute_sample(table(num_embeddings=10**6)), seed=0, repeats=QUICK)
