"""Specification of a GPU as a device, on a stream that follows CUDA's rules (simulated); tensors are the CPU's."""

import itertools
import re
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from neuroshard_profiler.devices.cuda import CudaDevice
from neuroshard_profiler.devices.cuda_runtime import cuda_versions
from neuroshard_profiler.devices.nvml import Clocks
from neuroshard_profiler.devices.timing import HOST_BOUND
from neuroshard_profiler.errors import DeviceLostError, KernelError, OutOfDeviceMemoryError
from neuroshard_profiler.times import Repeats
from support.profiler.fake_cuda import FakeCuda
from support.profiler.profiler_builders import compute_sample

pytestmark = pytest.mark.torch
THREE = Repeats(warm_up=1, least=3, most=3)


class Lookups:
    """A lookup of 0.08 ms and an update of 0.12 ms of cold rows."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def forward(self, number: int) -> torch.Tensor:
        """Queue the lookup."""
        self.cuda.kernel(f"rows {number % 3}", cold_ms=0.08, warm_ms=0.03, host_ms=0.3)
        return torch.zeros(2, 4)

    def backward(self, pooled: torch.Tensor, gradient: torch.Tensor) -> None:
        """Queue the update."""
        assert gradient.shape == pooled.shape
        self.cuda.kernel("rows", cold_ms=0.12, warm_ms=0.05, host_ms=0.4)


def test_a_sample_gets_the_devices_own_times_and_its_conditions() -> None:
    """Medians of the device's time, with the clock under which they were taken."""
    cuda = FakeCuda()
    device = CudaDevice(cuda=cuda, clocks=lambda: Clocks(mhz=1755, held_down_by=("applications_clocks",)))

    times = device.measure(compute_sample(), lambda: Lookups(cuda), THREE)

    assert (times.forward_ms, times.backward_ms) == pytest.approx((0.08, 0.12))
    assert times.conditions == {"clock_mhz": "1755", "throttled": "applications_clocks", "timed": "device"}
    assert times.disturbance is None
    assert cuda.log[-1] == "empty cache"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), OutOfDeviceMemoryError),
        (RuntimeError('"forward" not implemented for emb_t BFloat16\nmore'), KernelError),
        (NotImplementedError("Could not run 'fbgemm::x' with arguments from the 'CUDA' backend"), KernelError),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), DeviceLostError),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors"), OutOfDeviceMemoryError),
    ],
    ids=["memory", "kernel", "not implemented", "device", "pinned memory"],
)
def test_a_failing_kernel_ends_its_sample_only(raised: Exception, expected: type[Exception]) -> None:
    """The first line of the message is the reason; only the driver's own errors lose the device."""
    cuda = FakeCuda()

    def build() -> Lookups:
        raise raised

    with pytest.raises(expected) as caught:
        CudaDevice(cuda=cuda).measure(compute_sample(), build, THREE)

    assert type(caught.value) is expected
    assert str(caught.value) == str(raised).splitlines()[0]
    assert cuda.log == ["empty cache"]


def test_calls_under_a_power_cap_are_repeated_and_told_where_they_do_not_end() -> None:
    """The GPU is asked before and after each call; a record of throttled calls alone is disturbed."""
    cuda, readings = FakeCuda(), itertools.cycle(["power_cap", None, None])

    def clocks() -> Clocks:
        reason = next(readings)
        return Clocks(mhz=1400, held_down_by=() if reason is None else (reason,))

    now_and_then = CudaDevice(cuda=cuda, clocks=clocks).measure(compute_sample(), lambda: Lookups(cuda), THREE)
    capped = CudaDevice(cuda=cuda, clocks=lambda: Clocks(mhz=1400, held_down_by=("power_cap",)))
    always = capped.measure(compute_sample(), lambda: Lookups(cuda), THREE)

    assert (now_and_then.num_repeats, now_and_then.disturbance) == (3, None)
    assert now_and_then.conditions["slowed_calls"] == "5 of 8"
    assert (always.num_repeats, always.disturbance) == (9, "slowed by power_cap")


def test_times_that_wait_for_the_host_are_disturbed_unless_that_is_what_is_timed() -> None:
    """A call that waits for the device inside is never ahead of it; a launch of an idle device waits by intent."""
    cuda = FakeCuda()

    class Waiting(Lookups):
        def forward(self, number: int) -> torch.Tensor:
            self.cuda.synchronize()
            return super().forward(number)

    busy, idle = (
        CudaDevice(cuda=cuda).measure(compute_sample(), lambda: Waiting(cuda), THREE, is_idle=is_idle)
        for is_idle in (False, True)
    )

    assert (busy.disturbance, busy.conditions["timed"]) == (HOST_BOUND, "host")
    assert (idle.disturbance, idle.conditions["timed"]) == (None, "host")


class Tables:
    """What a sample holds on the device."""


def test_nothing_of_a_failed_sample_is_alive_when_its_memory_is_given_back() -> None:
    """The allocator gives back what no tensor holds; a traceback's frames hold the tables that were made first.

    A frame that holds its exception is a cycle, which counting references does not free.
    """
    alive: list[weakref.ref[Tables]] = []
    found: list[bool] = []

    class Watched(FakeCuda):
        def empty_cache(self) -> None:
            found.append(alive[-1]() is not None)

    def build() -> Lookups:
        tables = Tables()
        alive.append(weakref.ref(tables))
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        raise error

    with pytest.raises(OutOfDeviceMemoryError) as caught:
        CudaDevice(cuda=Watched()).measure(compute_sample(), build, THREE)

    assert found == [False]
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_an_unknown_gpu_is_described_by_driver_and_copies() -> None:
    """Bandwidths are those of copies on the device, whatever their calls take the host."""
    device = CudaDevice(cuda=FakeCuda(), repeats=THREE).describe(num_processes=8)

    assert device.name == "nvidia-fake-80gb"
    assert device.memory_bandwidth_bytes_per_second == pytest.approx(3e12, rel=0.01)
    assert device.cache_bandwidth_bytes_per_second == pytest.approx(6e12, rel=0.01)
    assert (device.cache_bytes, device.clock_hz) == (50 * 2**20, 1.98e9)


def test_describing_a_gpu_leaves_none_of_its_memory_taken() -> None:
    """The process that describes it stays alive while others profile the same GPU."""
    alive: list[weakref.ref[Tables]] = []
    taken: list[bool] = []

    class Copying(FakeCuda):
        def copier(self, num_bytes: int) -> Callable[[], object]:
            arrays, copy = Tables(), super().copier(num_bytes)
            alive.append(weakref.ref(arrays))
            return lambda: (arrays, copy())

        def empty_cache(self) -> None:
            taken.append(alive[-1]() is not None)

    CudaDevice(cuda=Copying(), repeats=THREE).describe(num_processes=1)

    assert taken == [False, False]


def test_records_name_the_gpu() -> None:
    """Source, driver, CUDA, NCCL, and the highest clock."""
    device = CudaDevice(cuda=FakeCuda())
    environment = device.environment(())

    assert device.source == "measured:NVIDIA Fake 80GB"
    assert [environment[name] for name in ("driver", "cuda", "nccl")] == ["580.1", "13.0", "2.27.5"]
    assert environment["max_clock_mhz"] == "1980"


def test_versions_are_those_of_the_installed_torch() -> None:
    """Its NCCL answers without a GPU; a torch for CPUs has none."""
    versions = cuda_versions()

    assert versions["cuda"] == (torch.version.cuda or "unknown")
    assert re.fullmatch(r"\d+\.\d+\.\d+" if dist.is_nccl_available() else "none", versions["nccl"])
