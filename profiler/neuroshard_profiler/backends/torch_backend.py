"""What the torch backends have in common: a device, and the calls that it times. Knows no kernels."""

from abc import ABC, abstractmethod

from neuroshard_api.documents.records import ComputeSample, ExpansionSample, LaunchTimes, MatrixSample
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import DataType, DeviceKind, Optimizer
from torch import Tensor

from neuroshard_profiler.backends.ahead import Drawing
from neuroshard_profiler.backends.expansion_call import ExpansionCall
from neuroshard_profiler.backends.lookups import draw_batches
from neuroshard_profiler.backends.matrix_call import MatrixCall
from neuroshard_profiler.devices.base import EmbeddingCall, TimedDevice
from neuroshard_profiler.times import Repeats, Times


class TorchBackend(ABC):
    """Times embedding calls on one core or one GPU."""

    optimizers: tuple[Optimizer, ...]
    data_types: tuple[DataType, ...]

    def __init__(self, device: TimedDevice, packages: tuple[str, ...]) -> None:
        self.device = device
        self.draw: Drawing = draw_batches
        """Makes the rows that calls look up."""
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

    def measure_launch(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> tuple[LaunchTimes, str | None]:
        """Time one call of a sample, the same of an idle device, and two calls of half the tables each.

        Returns the times, and what disturbed them (None: nothing did). Raises UnusableSampleError.
        """
        halves = [sample.model_copy(update={"tables": sample.tables[first::2]}) for first in (0, 1)]
        one = self.device.measure(sample, lambda: self.calls(sample, seed=seed), repeats)
        two = self.device.measure(sample, lambda: TwoCalls(*(self.calls(half, seed=seed) for half in halves)), repeats)
        alone = None
        if self.kind == "cuda":
            times = self.device.measure(sample, lambda: self.calls(sample, seed=seed), repeats, is_idle=True)
            alone = (times.forward_ms, times.backward_ms)
        found = LaunchTimes(
            one_call_ms=(one.forward_ms, one.backward_ms),
            two_calls_ms=(two.forward_ms, two.backward_ms),
            alone_ms=alone,
        )
        return found, one.disturbance or two.disturbance

    def measure_expansion(self, sample: ExpansionSample, *, repeats: Repeats) -> Times:
        """Time copies of pooled embeddings to repeated lists, which were exchanged just before: caches are warm.

        Raises UnusableSampleError.
        """
        return self.device.measure(
            sample, lambda: ExpansionCall(sample, device=self.device.torch), repeats, is_cold=False
        )

    def measure_matrix(self, sample: MatrixSample, *, repeats: Repeats) -> Times:
        """Time a layer whose inputs were computed just before: caches are warm. Raises UnusableSampleError."""
        return self.device.measure(sample, lambda: MatrixCall(sample, device=self.device.torch), repeats, is_cold=False)

    @abstractmethod
    def calls(self, sample: ComputeSample, *, seed: int) -> EmbeddingCall:
        """Make the sample's tables, and the batches that are looked up in turn."""


class TwoCalls:
    """Two calls, one directly after the other."""

    def __init__(self, first: EmbeddingCall, second: EmbeddingCall) -> None:
        self._first = first
        self._second = second
        self._pooled: Tensor | None = None
        """Of the first call, until its backward call."""

    def forward(self, number: int) -> Tensor:
        """Return the pooled embeddings of the second call."""
        self._pooled = self._first.forward(number)
        return self._second.forward(number)

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Bring the gradient, which is as wide for both calls, back into the tables of both."""
        assert self._pooled is not None, "forward comes first"
        self._first.backward(self._pooled, gradient)
        self._second.backward(pooled, gradient)
