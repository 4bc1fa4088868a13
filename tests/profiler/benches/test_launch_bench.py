"""Specification of how launches are measured; the GPU is a stream that follows CUDA's rules (simulated)."""

from pathlib import Path

import pytest
import torch
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_costs.fitting.launches import fitted_launch
from neuroshard_profiler.backends.torch_backend import TorchBackend
from neuroshard_profiler.benches.launch import collect_launches, launch_samples
from neuroshard_profiler.devices.cuda import CudaDevice
from neuroshard_profiler.errors import KernelError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats
from support.profiler.fake_cuda import FakeCuda

pytestmark = pytest.mark.torch
QUICK = Repeats(warm_up=1, least=3, most=3)
HOST_MS = (0.3, 0.45)


class FakeCalls:
    """A call that takes the device 0.01 ms, and each of its tables 0.004 ms forward and 0.006 ms backward."""

    def __init__(self, cuda: FakeCuda, sample: ComputeSample) -> None:
        self.cuda = cuda
        self.sample = sample
        self._rows = f"rows of {[table.name for table in sample.tables]}"

    def forward(self, number: int) -> torch.Tensor:
        """Queue the lookup."""
        self.cuda.kernel(f"{self._rows} {number}", cold_ms=self._ms(0.004), warm_ms=0.0, host_ms=HOST_MS[0])
        return torch.zeros(1, len(self.sample.tables))

    def backward(self, pooled: torch.Tensor, gradient: torch.Tensor) -> None:
        """Queue the update."""
        assert gradient.shape == pooled.shape
        self.cuda.kernel(self._rows, cold_ms=self._ms(0.006), warm_ms=0.0, host_ms=HOST_MS[1])

    def _ms(self, per_table_ms: float) -> float:
        return 0.01 + per_table_ms * len(self.sample.tables)


class FakeGpu(TorchBackend):
    """Calls on a fake stream; ``refused`` tables or more have no kernel."""

    optimizers = (Optimizer.SGD,)
    data_types = (DataType.FP32,)

    def __init__(self, *, refused: int = 100) -> None:
        self.cuda = FakeCuda()
        self.refused = refused
        super().__init__(CudaDevice(cuda=self.cuda, repeats=QUICK), ())

    def calls(self, sample: ComputeSample, *, seed: int) -> FakeCalls:  # noqa: ARG002 - it draws no rows
        """Make the calls."""
        if len(sample.tables) >= self.refused:
            raise KernelError("no kernel for so many tables")
        return FakeCalls(self.cuda, sample)


def test_the_hosts_launch_and_the_devices_are_told_apart(tmp_path: Path) -> None:
    """A second call costs the device 0.01 ms; the host takes 0.3 and 0.45 ms, which no busy device waits for."""
    backend = FakeGpu()
    with RecordsFile(tmp_path / "launch.jsonl", source=backend.source) as file:
        collect_launches(backend, Optimizer.SGD, file)
    launch = fitted_launch(file.records)

    assert launch is not None
    assert launch.device_ms == pytest.approx((0.01, 0.01))
    assert launch.host_ms == pytest.approx(HOST_MS, rel=0.15)
    assert all(record.launch_times and record.launch_times.alone_ms for record in file.records)


def test_a_stopped_collection_resumes_and_a_refused_call_keeps_its_reason(tmp_path: Path) -> None:
    """Nothing is measured twice, and the other calls still have times."""
    samples = list(launch_samples(Optimizer.SGD, DataType.FP32))
    for backend in (FakeGpu(refused=8), FakeGpu()):
        with RecordsFile(tmp_path / "launch.jsonl", source=backend.source) as file:
            collect_launches(backend, Optimizer.SGD, file)

    assert [record.launch for record in file.records] == samples
    assert {record.failure for record in file.records if record.launch and len(record.launch.tables) == 8} == {
        "no kernel for so many tables"
    }
    assert sum(record.is_usable for record in file.records) == 6
