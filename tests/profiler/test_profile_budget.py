"""What a GPU measures within the budget of a profile, on a stream that follows CUDA's rules (simulated)."""

import os
from functools import partial
from pathlib import Path

import pytest
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler import profile
from neuroshard_profiler.backends.fbgemm import FbgemmBackend
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.devices.cuda import CudaDevice
from neuroshard_profiler.profile import measure_compute
from neuroshard_profiler.settings import MeasuringProcess, ProfileSettings
from neuroshard_profiler.times import Times
from rich.progress import Progress
from support.profiler.fake_cuda import FakeCuda

pytestmark = [pytest.mark.torch, pytest.mark.torchrec]
BUDGET_SECONDS, CALL_SECONDS = 30.0, 0.25
FIXED = ("launch", "matrices", "codecs")


class TimedGpu(CudaDevice):
    """A GPU on which warm-up and repeats of every call take a quarter of a second, as on a real one."""

    def measure(self, *_: object, **__: object) -> Times:
        """Pass the time; the kernels themselves are not asked for."""
        assert isinstance(self.cuda, FakeCuda)
        self.cuda.queued(1e3 * CALL_SECONDS, host_ms=0.0)
        self.cuda.synchronize()
        return Times(forward_ms=0.1, backward_ms=0.2, spread=0.0, num_repeats=101)


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *, index: int) -> tuple[float, dict[str, int]]:
    """Return the seconds that one of two GPUs measured, and its records by kind."""
    cuda = FakeCuda()
    monkeypatch.setattr(profile, "Budget", partial(Budget, clock=lambda: cuda.host_ms / 1e3))
    settings = ProfileSettings(out=folder, part=MeasuringProcess(index=index, count=2))
    backend = FbgemmBackend(TimedGpu(cuda=cuda))
    measure_compute(settings, backend, folder / "compute.jsonl", BUDGET_SECONDS, Progress(disable=True))
    return cuda.host_ms / 1e3, {each.stem: len(read_records(each)) for each in folder.glob("*.jsonl")}


def test_samples_that_every_profile_has_are_part_of_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first GPU measures launches, layers, and codecs in the time in which the others measure table sets alone."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # no other process draws rows ahead

    first_seconds, first = measured(tmp_path / "0", monkeypatch, index=0)
    second_seconds, second = measured(tmp_path / "1", monkeypatch, index=1)

    assert first_seconds == second_seconds == pytest.approx(BUDGET_SECONDS, abs=CALL_SECONDS)
    assert second == {"compute": BUDGET_SECONDS / CALL_SECONDS}
    calls = 3 * first["launch"] + first["matrices"] + first["codecs"]  # a launch is timed in three ways
    assert min(first[name] for name in FIXED) > 0
    assert first["compute"] == second["compute"] - calls
