"""Marks in time on the device that computes, without making the host wait for it."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self, cast

import torch

NS_PER_MS = 1e6
Mark = object
"""A moment; only the clock that made it can read it."""


class Clock(Protocol):
    """Marks moments now, and reads later when they were."""

    def mark(self) -> Mark:
        """Mark the end of everything that was asked of the device so far."""

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Return the times of the marks, in milliseconds after the first of the sequence.

        The marks may be in any order: a mark that was made before the first one has a negative time. Waits until the
        device has passed every one of them, whichever was made last.
        """

    def read_processor_ms(self, marks: Sequence[Mark]) -> list[float] | None:
        """Return likewise the processor time of the thread that marked. None: it is not what computes, or not known."""

    def idle_limit_ms(self, begin: Mark, end: Mark) -> float | None:
        """Return the longest time for which the device can have waited for the host between two marks.

        Asked right after the end was marked. A device that has not come to the begin by then has all work in between
        in its queue, and waits for nobody: 0. Otherwise it can have waited as long as the host took from one mark to
        the other, and no longer: then everything was in its queue. None: the host is what computes.
        """


class TimedEvent(Protocol):
    """The part of torch.cuda.Event that a clock needs; c10/cuda/CUDAEvent.h has its contract."""

    def record(self, stream: torch.cuda.Stream | None = None) -> None:
        """Record the event in a stream. If unset: the current one."""

    def synchronize(self) -> None:
        """Wait until the event is completed."""

    def query(self) -> bool:
        """Return whether the event is completed, without waiting."""

    def elapsed_time(self, end: Self, /) -> float:
        """Return the milliseconds to another event. Raises RuntimeError unless both are completed."""


class HostMark(NamedTuple):
    """Nanoseconds of the host's clock, and of the thread's processor time."""

    ns: int
    processor_ns: int


class HostClock:
    """For computing on the CPU, where a call returns when it is done, and where programs wait for processors."""

    def mark(self) -> Mark:
        """Return the host's time."""
        return HostMark(time.perf_counter_ns(), time.thread_time_ns())

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Return the differences."""
        times = cast("Sequence[HostMark]", marks)
        return [(each.ns - times[0].ns) / NS_PER_MS for each in times]

    def read_processor_ms(self, marks: Sequence[Mark]) -> list[float] | None:
        """Return the differences. None: a subclass made the marks, and knows no processor time."""
        times = [mark.processor_ns for mark in marks if isinstance(mark, HostMark)]
        return [(each - times[0]) / NS_PER_MS for each in times] if len(times) == len(marks) else None

    def idle_limit_ms(self, begin: Mark, end: Mark) -> float | None:  # noqa: ARG002 - any clock's signature
        """Return None: there is no device that could wait."""
        return None


class CudaMark:
    """An event and the host's time at its record. The event is used again once nobody holds the mark.

    Making an event costs the host about as much as recording it.
    """

    __slots__ = ("_unused", "event", "host_ns")

    def __init__(self, event: TimedEvent, host_ns: int, unused: list[TimedEvent]) -> None:
        self.event = event
        self.host_ns = host_ns
        self._unused = unused

    def __del__(self) -> None:
        """Give the event back."""
        self._unused.append(self.event)


def cuda_event() -> TimedEvent:
    """Return a new CUDA event for timing."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's


class CudaClock:
    """For computing on a GPU: events in one stream, read when they are long past.

    Args:
        stream: that computes. A pipeline asks for batches within another stream, whose events would tell of its own
            work. If unset: the stream that is current at each mark.
        new_event: makes the events.
        host_ns: the host's time, in nanoseconds.
    """

    def __init__(
        self,
        stream: torch.cuda.Stream | None = None,
        *,
        new_event: Callable[[], TimedEvent] = cuda_event,
        host_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._stream = stream
        self._new_event = new_event
        self._host_ns = host_ns
        self._unused: list[TimedEvent] = []

    def mark(self) -> CudaMark:
        """Record an event."""
        event = self._unused.pop() if self._unused else self._new_event()
        event.record(self._stream)
        return CudaMark(event, self._host_ns(), self._unused)

    def read_processor_ms(self, marks: Sequence[Mark]) -> None:  # noqa: ARG002 - any clock's signature
        """Return None: the device computes."""
        return

    def idle_limit_ms(self, begin: Mark, end: Mark) -> float:
        """Return the host's time between the marks, or 0 where the begin's event is not completed."""
        first, last = cast("tuple[CudaMark, CudaMark]", (begin, end))
        return (last.host_ns - first.host_ns) / NS_PER_MS if first.event.query() else 0.0

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Wait for every event and return the times between them."""
        events = [each.event for each in cast("Sequence[CudaMark]", marks)]
        for event in events:  # a completed one costs about a microsecond
            event.synchronize()
        return [events[0].elapsed_time(event) for event in events]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(torch.cuda.current_stream(device)) if device.type == "cuda" else HostClock()
