"""Marks in time on the device that computes, without making the host wait for it."""

import time
from collections.abc import Sequence
from typing import Protocol

import torch

NS_PER_MS = 1e6
Mark = object
"""A moment; only the clock that made it can read it."""


class Clock(Protocol):
    """Marks moments now, and tells later when they were."""

    def mark(self) -> Mark:
        """Mark the end of everything that was asked of the device so far."""

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Return when the marks were, in milliseconds after the first. May wait for the device."""


class HostClock:
    """For computing on the CPU, where a call returns when it is done."""

    def mark(self) -> Mark:
        """Return the host's time."""
        return time.perf_counter_ns()

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Return the differences."""
        times = [mark for mark in marks if isinstance(mark, int)]
        return [(each - times[0]) / NS_PER_MS for each in times]


class CudaClock:
    """For computing on a GPU: events in the current stream, read when they are long past."""

    def mark(self) -> Mark:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
        event.record()
        return event

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Wait for the last event and return the times between them."""
        events = [mark for mark in marks if isinstance(mark, torch.cuda.Event)]
        events[-1].synchronize()
        return [events[0].elapsed_time(event) for event in events]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
