"""A GPU's queue and events without a GPU: they behave as c10/cuda/CUDAEvent.h of torch 2.14 says.

The host puts work into one stream and goes on; the work runs in order, each piece after the one before. An event is
completed when the stream has come past its record. ``elapsed_time`` refuses events that were not made for timing, were
not recorded, or are not completed; ``synchronize`` makes the host wait. What is measured with them is simulated.
"""


class SimulatedGpu:
    """One stream, and the host's own time; both in milliseconds."""

    def __init__(self, *, work_before_event_ms: float = 0.0) -> None:
        self.host_ms = 0.0
        """What the host's clock shows: calls take it no time, only waiting does."""
        self.num_waits = 0
        """How often the host had to wait for the device."""
        self.num_events = 0
        """Events that were made."""
        self.num_records = 0
        """Records of them."""
        self._work_before_event_ms = work_before_event_ms
        self.busy_until_ms = 0.0
        """When the stream has done all work."""

    def queue(self, work_ms: float) -> None:
        """Put work into the stream, as a kernel's launch does."""
        self.busy_until_ms = max(self.busy_until_ms, self.host_ms) + work_ms

    def event(self) -> "SimulatedEvent":
        """Return a new event for timing; before its record there is the work that the GPU was made with."""
        self.num_events += 1
        return SimulatedEvent(self, enable_timing=True)

    def record_ms(self) -> float:
        """Return the time at which a record that is put into the stream now will be passed."""
        self.num_records += 1
        self.queue(self._work_before_event_ms)
        return self.busy_until_ms

    def wait_until(self, moment_ms: float) -> None:
        """Let the host wait for the stream to pass a moment."""
        self.num_waits += moment_ms > self.host_ms
        self.host_ms = max(self.host_ms, moment_ms)


class SimulatedEvent:
    """``torch.cuda.Event``, as far as clocks need it."""

    def __init__(self, gpu: SimulatedGpu, *, enable_timing: bool = False) -> None:
        self._gpu = gpu
        self._enable_timing = enable_timing
        self._at_ms: float | None = None

    def record(self, stream: object = None) -> None:
        """Record the event in the stream; a later record replaces an earlier one."""
        assert stream is None, "this GPU has one stream"
        self._at_ms = self._gpu.record_ms()

    def query(self) -> bool:
        """Return whether the stream is past the record; one that was never recorded counts as completed."""
        return self._at_ms is None or self._at_ms <= self._gpu.host_ms

    def synchronize(self) -> None:
        """Wait for the stream to pass the record; one that was never recorded is not waited for."""
        if self._at_ms is not None:
            self._gpu.wait_until(self._at_ms)

    def elapsed_time(self, end: "SimulatedEvent") -> float:
        """Return the milliseconds from this event to another, as they were on the device."""
        if not (self._enable_timing and end._enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at_ms is None or end._at_ms is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end._at_ms - self._at_ms
