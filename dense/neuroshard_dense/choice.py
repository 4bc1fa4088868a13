"""A choice of options for units of the dense part: its memory and its time."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedOption:
    """One option of a unit, as the frontier sees it."""

    kept_bytes: int
    """Memory that adds up over units; negative where it saves some of a constant."""
    transient_bytes: int
    """Memory of collectives, of which the largest of all units counts."""
    recomputed_bytes: int
    """Memory of recomputed activations, of which the largest of all units counts; it adds to that of collectives."""
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A choice for every unit that no other one beats in memory and time."""

    memory_bytes: int
    """Sum of what is kept, the largest transient of collectives, and the largest of recomputed activations."""
    ms: float
    chosen: tuple[int, ...]
    """Number of the option of each unit."""


def best(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return those that no other beats in memory and time, by memory; of equals the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.memory_bytes, each.ms)):
        if not kept or point.ms < kept[-1].ms:
            kept.append(point)
    return tuple(kept)
