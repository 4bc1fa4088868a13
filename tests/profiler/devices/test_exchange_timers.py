"""Specification of the timers of collectives; the GPU's on a stream that follows CUDA's rules (simulated)."""

from itertools import count
from types import SimpleNamespace

import pytest
from neuroshard_profiler.devices import exchange_timers
from neuroshard_profiler.devices.exchange_timers import CudaExchangeTimer, HostExchangeTimer, gpu_exchanges
from support.profiler.fake_cuda import FakeCuda


def exchange_ms(cuda: FakeCuda, timer: CudaExchangeTimer, *, offset_ms: float = 0.0, host_ms: float = 0.1) -> float:
    """Time an exchange of 0.09 ms after a barrier of 0.02 ms, each of which the host needs longer to queue."""
    return timer.time_ms(
        lambda: cuda.queued(0.02, host_ms=0.06), lambda: cuda.queued(0.09, host_ms=host_ms), offset_ms=offset_ms
    )


def test_an_exchange_takes_the_devices_time() -> None:
    """Python, torch, and the barrier are not part of it."""
    cuda = FakeCuda()
    timer = CudaExchangeTimer(cuda)

    assert exchange_ms(cuda, timer) == pytest.approx(0.09)
    assert not timer.fell_behind


def test_a_late_start_is_a_spin_on_the_device() -> None:
    """The offset is before the first event, so that each rank's time begins with its own start."""
    cuda = FakeCuda()

    assert exchange_ms(cuda, CudaExchangeTimer(cuda), offset_ms=3.0) == pytest.approx(0.09)
    assert cuda.log == ["spin 4194304", "spin 4194304", "spin 4194304", "spin 5700000"]


def test_a_late_start_is_as_late_as_it_says_whatever_the_clock() -> None:
    """The driver tells 1,980 MHz; the device runs at 1,900, and at 1,400 once its power is capped."""
    cuda = FakeCuda()
    timer = CudaExchangeTimer(cuda)
    late_ms = []
    for cycles_per_ms in (1_900_000, 1_400_000, 1_400_000):
        cuda.cycles_per_ms = cycles_per_ms
        exchange_ms(cuda, timer, offset_ms=3.0)
        late_ms.append(int(cuda.log[-1].split()[1]) / cycles_per_ms)

    assert late_ms == pytest.approx([3.0, 3.0 * 1.9 / 1.4, 3.0], rel=0.001)


def test_a_host_that_fell_behind_is_reported_until_it_spins_longer() -> None:
    """All ranks begin again together, so the timer itself repeats nothing."""
    cuda = FakeCuda()
    timer = CudaExchangeTimer(cuda)

    exchange_ms(cuda, timer, host_ms=4.0)
    assert timer.fell_behind
    assert timer.spin_longer()
    assert not timer.fell_behind
    assert exchange_ms(cuda, timer, host_ms=4.0) == pytest.approx(0.09)
    assert not timer.fell_behind


def test_a_spin_has_an_end() -> None:
    """A call that waits for the device inside is never ahead."""
    timer = CudaExchangeTimer(FakeCuda())

    assert [timer.spin_longer() for _ in range(5)] == [True, True, True, True, False]


def test_on_a_cpu_the_hosts_clock_counts_from_the_ranks_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the barrier and for the offset is not part of it. Each look at the clock takes 1 ms here."""
    now_ms = count()
    monkeypatch.setattr(exchange_timers, "time", SimpleNamespace(perf_counter=lambda: next(now_ms) / 1000))
    began_at_ms: list[int] = []

    def takes_100_ms() -> None:
        ticks = [next(now_ms) for _ in range(100)]
        began_at_ms.append(ticks[0])

    elapsed_ms = HostExchangeTimer().time_ms(takes_100_ms, takes_100_ms, offset_ms=50.0)

    assert elapsed_ms == pytest.approx(101.0)
    assert began_at_ms[1] - began_at_ms[0] >= 100 + 50


@pytest.mark.parametrize(("free_gib", "expected"), [(72, 2**31), (8, 2**30)])
def test_exchanges_are_as_large_as_a_jobs_if_they_fit(free_gib: int, expected: int) -> None:
    """DCNv2 on eight devices sends 109 MB each, larger models more than 1 GB; every buffer must fit."""
    assert gpu_exchanges(free_gib * 2**30).max_bytes == expected
