"""What every backend promises. Measures nothing."""

from dataclasses import dataclass
from typing import Literal, Protocol

from neuroshard_api.records import ComputeSample
from neuroshard_api.tables import DataType, Optimizer
from neuroshard_api.topology import DeviceType

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """How often a call is timed."""

    warm_up: int = 3
    """Calls before the first that counts: memory is touched, clocks rise, kernels load."""
    least: int = 5
    """Fewest calls whose median counts."""
    most: int = 41
    """Most calls; odd, so that the median is one of them."""
    enough_ms: float = 40.0
    """Calls end once they took this long in all, so that short ones, which spread more, are repeated more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """One sample's times."""

    forward_ms: float
    """Median."""
    backward_ms: float
    """Median, the optimizer's update included."""
    spread: float
    """Interquartile range of forward + backward as a share of its median."""
    num_repeats: int


class Backend(Protocol):
    """Times fused embedding calls on one device."""

    @property
    def source(self) -> str:
        """The label of every record: ``measured:<device>``, ``cpu:<model>`` or ``simulated:<device>``."""
        ...

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
    def environment(self) -> dict[str, str]:
        """Driver, library versions and clocks, for people."""
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
            OutOfDeviceMemoryError: the sample does not fit.
        """
        ...
