"""What the tests' stand-ins for CUDA promise, asked of the real one."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.rows import CPU, attempt, emit, events, spin

_CODEC_SHAPE = (4096, 256)


def contracts() -> None:
    """Emit the answers."""
    if CPU:
        emit(skipped="no GPU")
        return
    from neuroshard_profiler.devices.cuda import CudaDevice
    from neuroshard_profiler.devices.cuda_runtime import TorchCuda, cuda_versions
    from neuroshard_profiler.devices.exchange_timers import gpu_exchanges
    from neuroshard_profiler.devices.nvml import clocks_of
    from neuroshard_trainer.measure.device_memory import measured_memory
    from neuroshard_trainer.ranks.devices import Cuda

    attempt("Cuda.here", lambda: emit(here=Cuda.here().versions()))
    attempt("cuda_versions", lambda: emit(cuda_versions=cuda_versions()))
    attempt("memory", lambda: emit(memory=measured_memory(torch.device("cuda", 0))))
    cuda = TorchCuda(0)
    attempt("unfinished events", _unfinished_event)
    uuid = cuda.properties.uuid
    attempt("nvml", lambda: emit(conditions=dict(clocks_of(uuid)().conditions), uuid=str(uuid)))
    gpu = CudaDevice.of_this_node(0)
    attempt("describe", lambda: emit(describe=gpu.describe(num_processes=1).model_dump(mode="json")))
    attempt("driver's numbers", lambda: emit(described=gpu._described("this-gpu").model_dump(mode="json")))
    attempt("environment", lambda: emit(environment=gpu.environment(("fbgemm-gpu", "torchrec")), source=gpu.source))
    attempt("exchanges", lambda: emit(exchanges=str(gpu_exchanges(cuda.free_bytes))))
    attempt("CudaClock", _clock)
    attempt("timer", lambda: _agreement(cuda))
    attempt("flushes", lambda: _flushes(cuda))
    attempt("page locks", _page_lock)
    attempt("codecs", _codecs)


def _unfinished_event() -> None:
    start, end = events()
    start.record()
    spin(2**26)
    end.record()
    try:
        found = start.elapsed_time(end)
    except RuntimeError as error:
        found = f"RuntimeError: {error}"[:200]
    emit(elapsed_time_of_an_unfinished_event=found, query=end.query())
    torch.cuda.synchronize()


def _clock() -> None:
    from neuroshard_trainer.ranks.clocks import clock_of

    marks = clock_of(torch.device("cuda", 0))
    first = marks.mark()
    spin(2**24)
    second = marks.mark()
    spin(2**24)
    third = marks.mark()
    emit(clock_ms=marks.read_ms([second, first, third]))


def _agreement(cuda: Any) -> None:
    """Compare the profiler's timer with the kernels' own durations."""
    from neuroshard_profiler.devices.timing import CudaTimer
    from torch.autograd import DeviceType  # type: ignore[attr-defined] # torch documents it here
    from torch.profiler import ProfilerActivity, profile

    a = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    b = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    grad = torch.randn(4096, 1024, device="cuda")
    timer = CudaTimer(cuda, is_cold=True)
    timed = [timer.time_ms(lambda: a @ b, lambda out: torch.autograd.grad(out, (a, b), grad)) for _ in range(20)][5:]
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(10):
            torch.autograd.grad(a @ b, (a, b), grad)
        torch.cuda.synchronize()
    of_device = [each for each in trace.key_averages() if each.device_type != DeviceType.CPU]
    total = sum(each.self_device_time_total for each in of_device) / 10 / 1000
    medians = [statistics.median(column) for column in zip(*timed, strict=True)]
    emit(timer_ms=medians, kernels_ms=total, spin_cycles=timer._spin_cycles, host_bound=timer.is_host_bound)


def _flushes(cuda: Any) -> None:
    """Time a short copy after nothing, after a write that leaves dirty lines in L2, and after the profiler's flush."""
    size = 2 * cuda.properties.L2_cache_size
    written = torch.zeros(size, dtype=torch.uint8, device="cuda")
    for mib in (1, 4, 16):
        source = torch.ones(mib * 2**18, device="cuda")
        target = torch.empty_like(source)
        preparations: dict[str, Callable[[], object]] = {
            "warm": lambda: None,
            "after a write": written.zero_,
            "after the profiler's flush": lambda: cuda.flush(size),
        }
        emit(copy_mib=mib, us={name: _copy_us(source, target, before) for name, before in preparations.items()})


def _copy_us(source: torch.Tensor, target: torch.Tensor, before: Callable[[], object]) -> float:
    times = []
    for _ in range(25):
        spin(2**20)
        before()
        start, end = events()
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 1e3 * float(statistics.median(times[5:]))


def _page_lock() -> None:
    """Copy a state twice as a checkpoint in the background does: into fresh memory, then into locked pages."""
    import time

    from neuroshard_trainer.state.staging import staging_for

    staging = staging_for(torch.device("cuda", 0))
    state = {"w": torch.ones(2**28, device="cuda")}
    rates = []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        copied = staging.copy(state)
        rates.append(4 * 2**28 / (time.perf_counter() - begun) / 1e9)
        staging.keep(copied)
    emit(checkpoint_copies_gb_per_s=rates)


def _codecs() -> None:
    from neuroshard_api.documents.communication import WireType

    values = torch.randn(*_CODEC_SHAPE, device="cuda")
    for kind in WireType:
        if kind is not WireType.FP32:
            attempt(f"codec {kind}", partial(_codec, kind, values))


def _codec(kind: Any, values: torch.Tensor) -> None:
    from neuroshard_api.documents.communication import WireTypes
    from neuroshard_trainer.communication.codecs import SwitchableCodec, wire_codecs

    forward, _ = wire_codecs(WireTypes(forward=kind, backward=kind), torch.device("cuda", 0))
    codec = SwitchableCodec(forward)
    context = codec.create_context()
    encoded = codec.encode(values, context)
    decoded = codec.decode(encoded, context).view(-1)
    error = float((decoded - values.view(-1)).norm() / values.norm())
    num_bytes = encoded.numel() * encoded.element_size()
    emit(codec=kind.value, written=codec.wire_type.value, bytes=num_bytes, deviation=error)
