"""A stream that follows CUDA's rules on a clock of its own, for code that times a GPU. Its times are simulated.

The rules, from c10/cuda/CUDAEvent.h and the CUDA programming guide: queueing returns at once and costs the host alone;
the device runs what is queued in order, not before it was queued; an event is complete once the device has reached it;
elapsed_time raises unless both events are complete.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

NOT_COMPLETE = "Both events must be completed before calculating elapsed time."
CYCLES_PER_MS = 1_900_000


@dataclass
class FakeEvent:
    """A point in the stream."""

    cuda: "FakeCuda"
    at_ms: float | None = None

    def record(self) -> None:
        """Queue the event."""
        self.at_ms = self.cuda.queued(0.0, host_ms=self.cuda.record_ms)

    def query(self) -> bool:
        """Return whether the device has reached it by now."""
        assert self.at_ms is not None, "was recorded"
        return self.at_ms <= self.cuda.host_ms

    def elapsed_time(self, end_event: "FakeEvent", /) -> float:
        """Return the milliseconds between two events that are complete."""
        if not (self.query() and end_event.query()):
            raise RuntimeError(NOT_COMPLETE)
        assert self.at_ms is not None, "was recorded"
        assert end_event.at_ms is not None, "was recorded"
        return end_event.at_ms - self.at_ms


@dataclass
class FakeCuda:
    """One GPU with a cache: work that finds its data there is faster."""

    index: int = 0
    host_ms: float = 0.0
    device_ms: float = 0.0
    record_ms: float = 0.005
    cycles_per_ms: int = CYCLES_PER_MS
    cached: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=lambda: {"driver": "580.1", "cuda": "13.0", "nccl": "2.27.5"})

    @property
    def properties(self) -> SimpleNamespace:
        """What the driver tells."""
        return SimpleNamespace(
            name="NVIDIA Fake 80GB",
            uuid="01234567",
            total_memory=80 * 2**30,
            L2_cache_size=50 * 2**20,
            multi_processor_count=132,
            clock_rate=1_980_000,
        )

    @property
    def free_bytes(self) -> int:
        """Memory that nobody has taken."""
        return 72 * 2**30

    def queued(self, device_ms: float, *, host_ms: float) -> float:
        """Queue work; return when the device will have done it."""
        self.host_ms += host_ms
        self.device_ms = max(self.device_ms, self.host_ms) + device_ms
        return self.device_ms

    def kernel(self, data: str, *, cold_ms: float, warm_ms: float, host_ms: float) -> None:
        """Queue a kernel that reads data."""
        self.log.append(data)
        self.queued(warm_ms if data in self.cached else cold_ms, host_ms=host_ms)
        self.cached.add(data)

    def event(self) -> FakeEvent:
        """Return an event."""
        return FakeEvent(self)

    def spin(self, cycles: int) -> None:
        """Queue a kernel that spins."""
        self.log.append(f"spin {cycles}")
        self.queued(cycles / self.cycles_per_ms, host_ms=0.01)

    def flush(self, num_bytes: int) -> None:
        """Queue a read; one as large as the cache replaces all of it."""
        self.log.append("flush")
        self.queued(num_bytes / 3e9, host_ms=0.01)
        if num_bytes >= self.properties.L2_cache_size:
            self.cached.clear()

    def copier(self, num_bytes: int) -> Callable[[], object]:
        """Return a function that queues a copy: 3 TB/s, or 6 TB/s within the cache."""
        bandwidth = 6e9 if num_bytes < self.properties.L2_cache_size else 3e9
        return lambda: self.queued(2 * num_bytes / bandwidth, host_ms=0.01)

    def synchronize(self) -> None:
        """Wait for the device."""
        self.host_ms = max(self.host_ms, self.device_ms)

    def empty_cache(self) -> None:
        """Give memory back."""
        self.log.append("empty cache")
