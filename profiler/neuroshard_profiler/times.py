"""How often a call is timed, and the times of one sample. Measures nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
