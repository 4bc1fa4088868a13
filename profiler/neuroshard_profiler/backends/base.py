"""What every backend promises. Measures nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kernels import DataType, DeviceKind, Optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """How often a call is timed."""

    warm_up: int = 3
    """Fewest calls before the first that counts: memory is touched, kernels load."""
    warm_up_ms: float = 0.0
    """Least time of these calls: clocks rise."""
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
    disturbance: str | None = None
    """What makes all of them those of another device: throttling, other work, or a host that is too slow. None: nothing
    does."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Clocks and throttling when they were taken."""

    @property
    def fields(self) -> dict[str, float | int | str | None]:
        """The same as fields of a record."""
        return {
            "forward_ms": self.forward_ms,
            "backward_ms": self.backward_ms,
            "spread": self.spread,
            "num_repeats": self.num_repeats,
            "disturbance": self.disturbance,
        }

    def under(self, conditions: Mapping[str, str]) -> "Times":
        """Return the same times with further conditions that they were taken under."""
        return replace(self, conditions={**self.conditions, **conditions})


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
