"""Clocks, that of a GPU on events which behave as torch's header says."""

import pytest
import torch
from neuroshard_trainer.ranks.clocks import CudaClock, HostClock, clock_of
from support.profiler.cuda_events import SimulatedEvent, SimulatedGpu


def test_marks_of_a_gpu_are_read_in_any_order() -> None:
    """The mark that is last in time need not be last in the sequence: every event is waited for."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event)
    marks = []
    for work_ms in (0.0, 2.0, 5.0):
        gpu.queue(work_ms)
        marks.append(clock.mark())
    first, middle, last = marks

    assert clock.read_ms([first, last, middle]) == [0.0, 7.0, 2.0]


def test_a_mark_before_the_first_of_the_sequence_has_a_negative_time() -> None:
    """Marks of a pipelined step may begin before the step does."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event)
    early = clock.mark()
    gpu.queue(3.0)

    assert clock.read_ms([clock.mark(), early]) == [0.0, -3.0]


def test_marking_does_not_wait_for_a_gpu() -> None:
    """Only reading does, and then no longer than for the last mark."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event)
    begin = clock.mark()
    gpu.queue(12.0)
    end = clock.mark()
    assert (gpu.num_waits, gpu.host_ms) == (0, 0.0)

    clock.read_ms([end, begin])

    assert (gpu.num_waits, gpu.host_ms) == (1, 12.0)


@pytest.mark.parametrize(
    ("queued_ms", "limit_ms"), [(0.0, 3.0), (2.0, 3.0), (10.0, 0.0)], ids=["idle", "caught up", "busy"]
)
def test_a_device_waits_for_the_host_no_longer_than_the_host_takes(queued_ms: float, limit_ms: float) -> None:
    """And not at all where it has not come to the begin when the host marks the end."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event, host_ns=lambda: int(gpu.host_ms * 1e6))
    gpu.queue(queued_ms)
    begin = clock.mark()
    gpu.host_ms += 3.0
    gpu.queue(1.0)
    end = clock.mark()

    assert clock.idle_limit_ms(begin, end) == limit_ms
    assert gpu.num_waits == 0
    assert HostClock().idle_limit_ms(begin, end) is None


def test_an_event_is_used_again_once_nobody_holds_its_mark() -> None:
    """And not before: a mark that is held can still be read."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event)
    held = clock.mark()
    gpu.queue(2.0)
    for _ in range(5):
        assert clock.read_ms([held, clock.mark()]) == [0.0, 2.0]

    assert gpu.num_events == 2


def test_simulated_events_refuse_what_cuda_events_refuse() -> None:
    """The simulation of the tests of GPU clocks has the three checks of ``CUDAEvent::elapsed_time``."""
    gpu = SimulatedGpu()
    begin, end = gpu.event(), gpu.event()
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    begin.record()
    gpu.queue(1.0)
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    with pytest.raises(ValueError, match="enable_timing=True"):
        begin.elapsed_time(SimulatedEvent(gpu))

    end.synchronize()

    assert begin.elapsed_time(end) == 1.0


def test_marks_of_a_cpu_are_the_hosts_times() -> None:
    """They are read without waiting."""
    clock = HostClock()
    marks = [clock.mark() for _ in range(3)]

    first, second, third = clock.read_ms(marks)

    assert 0.0 == first <= second <= third


def test_a_device_has_the_clock_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA events in the stream that computes on a GPU, the host's clock elsewhere."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")

    clock = clock_of(torch.device("cuda", 0))

    assert isinstance(clock, CudaClock)
    assert str(clock._stream) == "stream of cuda:0"
    assert isinstance(clock_of(torch.device("cpu")), HostClock)
