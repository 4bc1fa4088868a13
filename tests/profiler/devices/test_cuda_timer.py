"""Specification of the timer of GPU calls, on a stream that follows CUDA's rules (simulated)."""

import pytest
from neuroshard_profiler.devices.timing import CudaTimer, IdleCudaTimer
from support.profiler.fake_cuda import NOT_COMPLETE, FakeCuda


def timed(cuda: FakeCuda, timer: CudaTimer | IdleCudaTimer, *, host_ms: float = 0.3) -> tuple[float, float]:
    """Time a lookup of 0.08 ms and an update of 0.12 ms, which the host needs longer to call than the device to run."""
    return timer.time_ms(
        lambda: cuda.kernel("rows", cold_ms=0.08, warm_ms=0.03, host_ms=host_ms),
        lambda _: cuda.kernel("rows", cold_ms=0.12, warm_ms=0.05, host_ms=host_ms),
    )


def test_events_raise_until_the_device_has_reached_both() -> None:
    """The fake stream keeps the rule that makes a timer wait."""
    cuda = FakeCuda()
    first, last = cuda.event(), cuda.event()
    first.record()
    cuda.spin(10**7)
    last.record()

    with pytest.raises(RuntimeError, match=NOT_COMPLETE):
        first.elapsed_time(last)
    cuda.synchronize()
    assert first.elapsed_time(last) == pytest.approx(10 / 1.9, abs=0.02)


def test_launch_time_of_the_host_is_not_counted() -> None:
    """Kernels shorter than their call from Python get their own times, without a gap between them."""
    cuda = FakeCuda()

    assert timed(cuda, CudaTimer(cuda)) == pytest.approx((0.08, 0.12))


def test_an_idle_device_waits_for_the_launch() -> None:
    """Both calls take the host's 0.3 ms and then the device's own time, with cold caches."""
    cuda = FakeCuda(record_ms=0.0)

    assert timed(cuda, IdleCudaTimer(cuda)) == pytest.approx((0.38, 0.42))
    assert cuda.log == ["flush", "rows", "flush", "rows"]


def test_both_calls_find_cold_caches_in_every_repeat() -> None:
    """The update does not find the rows of its own lookup in the cache, nor the lookup those of the update before."""
    cuda = FakeCuda()
    timer = CudaTimer(cuda)
    times = [timed(cuda, timer) for _ in range(3)]

    assert times == [pytest.approx((0.08, 0.12))] * 3
    assert [entry for entry in cuda.log if not entry.startswith("spin")][:4] == ["flush", "rows", "flush", "rows"]


def test_a_host_slower_than_the_spin_makes_it_spin_longer() -> None:
    """Once it spins long enough, the later calls do so at once."""
    cuda = FakeCuda()
    timer = CudaTimer(cuda)

    assert timed(cuda, timer, host_ms=3.0) == pytest.approx((0.08, 0.12))
    repeated = len(cuda.log)
    assert timed(cuda, timer, host_ms=3.0) == pytest.approx((0.08, 0.12))
    assert len(cuda.log) - repeated == 5
    assert not timer.is_host_bound


def test_a_host_that_never_gets_ahead_is_reported() -> None:
    """A call that waits for the device inside cannot be queued; its times are kept and marked."""
    cuda = FakeCuda()
    timer = CudaTimer(cuda)

    def waiting() -> None:
        cuda.synchronize()
        cuda.kernel("rows", cold_ms=0.08, warm_ms=0.03, host_ms=0.3)

    forward_ms, _ = timer.time_ms(waiting, lambda _: None)

    assert timer.is_host_bound
    assert forward_ms > 0.3
