"""The device simulator as a backend: where there is no GPU, and in tests. Its records are labelled simulated."""

from importlib.metadata import version
from typing import Literal

import numpy as np
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import TRAINING_KERNELS
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.shards import weights_bytes
from neuroshard_costs.simulator.device import DeviceSimulator

from neuroshard_profiler.devices.timing import median_times
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from neuroshard_profiler.times import Repeats, Times

NOISE = 0.01
"""Standard deviation of the logarithm of a time: about what repeats of a GPU kernel spread."""


class SimulatedBackend:
    """Times of one device type's simulator. Equal samples of equal seeds give equal times."""

    def __init__(self, device: DeviceType) -> None:
        self.device = device
        self.kind: Literal["simulated"] = "simulated"
        self.optimizers = TRAINING_KERNELS["cuda"].optimizers
        self.data_types = TRAINING_KERNELS["cuda"].weight_types
        self.repeats = Repeats(warm_up=0, least=5, most=5)
        self.environment = {"simulator": version("neuroshard-operator")}

    @property
    def source(self) -> str:
        """The label of every record."""
        return f"simulated:{self.device.product}"

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the device."""
        return self.device.memory_bytes

    def describe(self, *, num_processes: int) -> DeviceType:  # noqa: ARG002 - a GPU's memory is its own
        """Return the simulated device."""
        return self.device

    def measure(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> Times:
        """Return simulated times. Raises OutOfDeviceMemoryError where the weights exceed the device's memory."""
        num_bytes = sum(map(weights_bytes, sample.tables))
        if num_bytes > self.device.memory_bytes:
            raise OutOfDeviceMemoryError(f"tables of {num_bytes} bytes on {self.device.memory_bytes} bytes")
        simulator = DeviceSimulator(self.device, noise=NOISE, seed=seed)
        shards = sample_shards(sample)
        one_set = np.zeros(len(shards), dtype=np.int64)

        def call(_: int) -> tuple[float, float]:
            forward_ms, backward_ms = simulator.compute_ms(shards, one_set, 1, pipeline=Pipeline.SPARSE_DIST)[0]
            return float(forward_ms), float(backward_ms)

        return median_times(call, repeats)
