"""What every backend promises. Measures nothing."""

from typing import Literal, Protocol

from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import DataType, DeviceKind, Optimizer

from neuroshard_profiler.times import Repeats, Times


class LabelledBackend(Protocol):
    """What all records of one device have in common."""

    @property
    def source(self) -> str:
        """The label of every record: ``measured:<device>``, ``cpu:<model>`` or ``simulated:<device>``."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Driver, library versions and clocks, for people."""
        ...

    @property
    def repeats(self) -> Repeats:
        """How often calls are timed where nothing else is asked for."""
        ...


class Backend(LabelledBackend, Protocol):
    """Times fused embedding calls on one device."""

    @property
    def kind(self) -> DeviceKind | Literal["simulated"]:
        """What is timed on."""
        ...

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """Optimizers that can be timed, the usual one first."""
        ...

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """Types of stored weights that can be timed, the usual one first."""
        ...

    @property
    def total_memory_bytes(self) -> int:
        """Memory of the device, or of the machine that holds it; the same at any time."""
        ...

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return the device's numbers. ``num_processes`` share the memory, where they share a machine's."""
        ...

    def measure(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> Times:
        """Time forward and backward of one fused call.

        Args:
            sample: its optimizer and data types are among those offered.
            seed: of the rows that are looked up.
            repeats: how often.

        Raises:
            UnusableSampleError: the sample does not fit, or a kernel refused it or failed.
        """
        ...
