"""Versions, properties, rates of copies and matrix products, and launches of one GPU."""

import os
import platform
import time
from functools import partial
from importlib import metadata

import torch

from benchmarks.gpu.rows import CPU, Timer, attempt, emit, events, spin

NAMES = (
    "torch",
    "triton",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "torchrec",
    "tensordict",
    "torchmetrics",
    "numpy",
    "pydantic",
)
_SPIN_CYCLES = 2**24
_LAUNCHES = 2000


def facts() -> None:
    """Emit all of them."""
    emit(
        versions=dict(map(_version, NAMES)),
        python=platform.python_version(),
        cuda=torch.version.cuda,
        cpus=os.cpu_count(),
    )
    if CPU:
        return
    found = torch.cuda.get_device_properties(0)
    fields = [each for each in dir(found) if not each.startswith("_")]
    emit(properties={each: str(getattr(found, each)) for each in fields}, memory=torch.cuda.mem_get_info())
    attempt("nccl", lambda: emit(nccl=torch.cuda.nccl.version()))  # type: ignore[no-untyped-call] # torch's
    timer = Timer()
    for mib in (8, 32, 1024):
        _copy(timer, mib)
    for pinned in (False, True):
        _transfers(timer, pinned=pinned)
    for name, pinned in (("fresh pageable", False), ("fresh pinned", True)):
        _staging(name, pinned=pinned)
    for name, kind, tf32 in (
        ("bf16", torch.bfloat16, False),
        ("tf32", torch.float32, True),
        ("fp32", torch.float32, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        _matrices(timer, name, kind)
    _launches()
    start, end = events()
    start.record()
    spin(_SPIN_CYCLES)
    end.record()
    torch.cuda.synchronize()
    clock = str(getattr(found, "clock_rate", None))
    emit(spin_cycles=_SPIN_CYCLES, ms=start.elapsed_time(end), clock_khz_of_properties=clock)


def _version(name: str) -> tuple[str, str | None]:
    try:
        return name, metadata.version(name)
    except metadata.PackageNotFoundError:
        return name, None


def _copy(timer: Timer, mib: int) -> None:
    source = torch.randint(0, 255, (mib * 2**20,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    (ms,) = timer.ms(lambda: target.copy_(source))
    emit(copy_mib=mib, ms=ms, gb_per_s_read_and_written=2 * mib * 2**20 / ms / 1e6)


def _transfers(timer: Timer, *, pinned: bool) -> None:
    host = torch.empty(2**26, dtype=torch.float32, pin_memory=pinned)
    there = torch.empty(2**26, dtype=torch.float32, device="cuda")
    for way, target, source in (("h2d", there, host), ("d2h", host, there)):
        (ms,) = timer.ms(partial(target.copy_, source, non_blocking=True), repeats=5, warm=1, cold=False)
        emit(transfer=way, pinned=pinned, gb_per_s=4 * 2**26 / ms / 1e6)


def _staging(name: str, *, pinned: bool) -> None:
    """Copy into fresh memory, as the first checkpoint in the background does."""
    there = torch.empty(2**28, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    begun = time.perf_counter()
    torch.empty(2**28, dtype=torch.float32, pin_memory=pinned).copy_(there)
    torch.cuda.synchronize()
    emit(staging=name, gb_per_s=4 * 2**28 / (time.perf_counter() - begun) / 1e9)


def _matrices(timer: Timer, name: str, kind: torch.dtype, side: int = 4096) -> None:
    a, b = (torch.randn(side, side, device="cuda").to(kind) for _ in range(2))
    (ms,) = timer.ms(lambda: a @ b, repeats=9)
    emit(matrix=name, side=side, tflop_per_s=2 * side**3 / ms / 1e9)


def _launches() -> None:
    one = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(_LAUNCHES):
        one.add_(1)
    queued = time.perf_counter() - begun
    torch.cuda.synchronize()
    emit(
        launch_us_host=1e6 * queued / _LAUNCHES,
        launch_us_with_sync=1e6 * (time.perf_counter() - begun) / _LAUNCHES,
    )
