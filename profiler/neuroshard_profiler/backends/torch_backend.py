"""What the torch backends have in common: a device, and the calls that it times. Knows no kernels."""

from abc import ABC, abstractmethod

from neuroshard_api.kernels import DataType, DeviceKind, Optimizer
from neuroshard_api.records import ComputeSample
from neuroshard_api.topology import DeviceType

from neuroshard_profiler.backends.base import Repeats, Times
from neuroshard_profiler.devices.base import EmbeddingCall, TimedDevice


class TorchBackend(ABC):
    """Times embedding calls on one core or one GPU."""

    optimizers: tuple[Optimizer, ...]
    data_types: tuple[DataType, ...]

    def __init__(self, device: TimedDevice, packages: tuple[str, ...]) -> None:
        self.device = device
        self.environment = device.environment(packages)

    @property
    def kind(self) -> DeviceKind:
        """What is timed on."""
        return self.device.kind

    @property
    def source(self) -> str:
        """The label of every record."""
        return self.device.source

    @property
    def repeats(self) -> Repeats:
        """How often calls are timed where nothing else is asked for."""
        return self.device.repeats

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the device, or of the machine that holds it."""
        return self.device.total_memory_bytes

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return the device's numbers."""
        return self.device.describe(num_processes=num_processes)

    def measure(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> Times:
        """Time the calls of a sample. Raises UnusableSampleError."""
        return self.device.measure(sample, lambda: self.calls(sample, seed=seed), repeats)

    @abstractmethod
    def calls(self, sample: ComputeSample, *, seed: int) -> EmbeddingCall:
        """Make the sample's tables, and the batches that are looked up in turn."""
