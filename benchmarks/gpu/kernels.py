"""Records of a GPU: the profiler's samples, shapes of publications, fused calls, and tables in host memory."""

import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.correct import tables
from benchmarks.gpu.rows import CPU, DATA, Timer, attempt, emit

_NUM_DRAWN = 600
_DRAWN_RANGES = ((50, 40_000_000), (1024, 131_072))
"""Of rows, and of samples in a batch; the logarithm is drawn evenly."""
_DRAWN_WIDTHS = (4, 8, 16, 32, 64, 128, 256, 12, 20, 100, 132)
_ONE_HOT_SHARE = 0.4
_MOST_DRAWN_LOOKUPS = 2e7
_MOST_DRAWN_WEIGHTS = 1e9


def _backend() -> Any:
    from neuroshard_profiler.backends.select import make_backend

    return make_backend("fbgemm", kind="cpu" if CPU else "cuda")


def _sample(
    rows: int,
    width: int,
    count: int,
    batch: int,
    pooling: float,
    *,
    optimizer: str = "rowwise_adagrad",
    data_type: str = "FP32",
    zipf: float = 0.0,
) -> Any:
    from neuroshard_api.documents.records import ComputeSample
    from neuroshard_api.documents.tables import DataType, Optimizer, Table

    if CPU:
        rows, batch = min(rows, 1000), min(batch, 64)
    tables = tuple(
        Table(
            name=f"t{index}",
            num_embeddings=rows,
            embedding_dim=width,
            pooling_factor=pooling,
            data_type=DataType(data_type),
            zipf_exponent=zipf,
        )
        for index in range(count)
    )
    return ComputeSample(tables=tables, batch_size=batch, optimizer=Optimizer(optimizer))


def kernels(budget_s: float) -> None:
    """Table sets of stated shapes, timed as the profiler does and once more independently; records in kernels.jsonl."""
    shapes = [
        # published: rows, width, tables, batch, pooling
        *[(1_000, width, 4, 1024, 10.0) for width in (16, 64, 256)],
        *[(100_000, width, 16, 131_072, 10.0) for width in (16, 32, 64, 128)],
        *[(500_000, 128, 32, 4096, pooling) for pooling in (16.0, 64.0)],
        # a recommender of today: 8 devices of 8,192 samples
        (10_000_000, 128, 1, 65_536, 1.0),
        (10_000_000, 128, 1, 65_536, 20.0),
        (10_000_000, 32, 1, 65_536, 20.0),
        (1_000_000, 128, 4, 65_536, 10.0),
        (40_000_000, 128, 1, 65_536, 3.0),
    ]
    work = [(*shape, "rowwise_adagrad", "FP32", zipf) for shape in shapes for zipf in (0.0, 1.05)]
    base = (1_000_000, 128, 4, 65_536, 10.0)
    work += [(*base, optimizer, kind, 1.05) for optimizer in ("sgd", "adagrad", "adam") for kind in ("FP32",)]
    work += [(*base, "rowwise_adagrad", "FP16", 1.05)]
    _timed_samples(
        "kernels.jsonl",
        [_sample(r, w, c, b, p, optimizer=o, data_type=d, zipf=z) for r, w, c, b, p, o, d, z in work],
        budget_s,
    )


def fusion(budget_s: float) -> None:
    """One call of several tables against the sum of calls of one each."""
    work = [
        _sample(rows, width, count, batch, pooling, zipf=1.05)
        for rows, width, batch, pooling in ((1_000_000, 128, 65_536, 1.0), (1_000_000, 64, 16_384, 10.0))
        for count in (1, 2, 4, 8, 16, 32)
    ]
    _timed_samples("fusion.jsonl", work, budget_s)


def drawn(budget_s: float) -> None:
    """Sets of equal tables drawn over all that moves a price, as many as there is time for; records in drawn.jsonl."""
    random = np.random.default_rng(20261127)
    work: list[Any] = []
    while len(work) < _NUM_DRAWN:
        rows, batch = (int(np.exp(random.uniform(np.log(low), np.log(high)))) for low, high in _DRAWN_RANGES)
        width = int(random.choice(_DRAWN_WIDTHS))
        count = int(2 ** random.uniform(0, 5))
        pooling = 1.0 if random.random() < _ONE_HOT_SHARE else float(np.exp(random.uniform(0, np.log(64))))
        zipf = float(random.choice((0.0, random.uniform(0.0, 1.4))))
        data_type = str(random.choice(("FP32", "FP16"), p=(0.8, 0.2)))
        optimizer = str(random.choice(("rowwise_adagrad", "sgd", "adagrad", "adam"), p=(0.58, 0.14, 0.14, 0.14)))
        if count * batch * pooling <= _MOST_DRAWN_LOOKUPS and count * rows * width <= _MOST_DRAWN_WEIGHTS:
            more: dict[str, Any] = {"optimizer": optimizer, "data_type": data_type, "zipf": zipf}
            work.append(_sample(rows, width, count, batch, pooling, **more))
    _timed_samples("drawn.jsonl", work, budget_s)


def _timed_samples(name: str, samples: list[Any], budget_s: float) -> None:
    from neuroshard_profiler.backends.ahead import drawing_ahead
    from neuroshard_profiler.benches.compute import measured_record
    from neuroshard_profiler.records import RecordsFile
    from neuroshard_profiler.times import Repeats

    backend = _backend()
    if CPU:
        samples = [each for each in samples[:4] if each.optimizer in backend.optimizers]
    repeats = (
        Repeats(warm_up=1, warm_up_ms=0, least=3, most=5, enough_ms=5)
        if CPU
        else Repeats(warm_up=3, warm_up_ms=60.0, least=5, most=41, enough_ms=60.0)
    )
    ends = time.monotonic() + budget_s
    DATA.mkdir(parents=True, exist_ok=True)
    with (
        RecordsFile(DATA / name, source=backend.source) as file,
        drawing_ahead(backend, [(each, 7) for each in samples], num_processes=_num_drawing()),
    ):
        for number, sample in enumerate(samples):
            if time.monotonic() > ends:
                emit(stopped=f"{number} of {len(samples)}: out of time")
                return

            def one(sample: Any = sample, number: int = number) -> None:
                times = backend.measure(sample, seed=7, repeats=repeats)
                file.append(measured_record(backend, sample, times))
                first = sample.tables[0]
                row = {
                    "rows": first.num_embeddings,
                    "width": first.embedding_dim,
                    "tables": len(sample.tables),
                    "batch": sample.batch_size,
                    "pooling": first.pooling_factor,
                    "type": first.data_type,
                    "zipf": first.zipf_exponent,
                    "optimizer": sample.optimizer,
                    "forward_ms": times.forward_ms,
                    "backward_ms": times.backward_ms,
                    "spread": times.spread,
                    "conditions": dict(times.conditions),
                }
                if number % 6 == 0:  # the same by a timer of this script
                    timer = Timer()
                    row["own_timer_ms"] = _own_times(backend.calls(sample, seed=7), timer)
                    row["own_timer_host_bound"] = timer.host_bound
                emit(**row)

            attempt(f"sample {number}", one)


def _own_times(calls: Any, timer: Timer) -> list[float]:
    """Return the milliseconds of forward and backward by this script's own timer."""
    kept = [calls.forward(0)]
    gradient = torch.full_like(kept[0], 1e-3)

    def forward() -> None:
        kept[0] = calls.forward(0)

    return timer.ms(forward, lambda: calls.backward(kept[0], gradient), repeats=11)


def records(budget_s: float) -> None:
    """The profiler's own compute records, launches, layers, and codecs, by its own command."""
    from neuroshard_costs.fitting.records import ended_records
    from neuroshard_profiler.profile import checked_backend, measure_compute
    from neuroshard_profiler.settings import ProfileSettings
    from rich.progress import Progress

    folder = DATA / "records"
    settings = ProfileSettings(
        out=DATA, backend="fbgemm", device_kind="cpu" if CPU else "cuda", max_records=3 if CPU else None
    )
    attempt(
        "records",
        lambda: measure_compute(
            settings, checked_backend(settings), folder / "compute.jsonl", budget_s, Progress(disable=True)
        ),
    )
    for path in sorted(folder.glob("*.jsonl")):
        found, _ = ended_records(path)
        failures = [each.failure for each in found if each.failure]
        disturbed = [each.disturbance for each in found if each.disturbance]
        emit(
            file=path.name,
            records=len(found),
            out_of_memory=sum(each.out_of_memory for each in found),
            failed=len(failures),
            failures=failures[:5],
            disturbed=len(disturbed),
            disturbances=sorted(set(disturbed))[:5],
        )


def _num_drawing() -> int:
    from neuroshard_profiler.backends.ahead import drawing_processes

    return drawing_processes(num_cores=len(os.sched_getaffinity(0)), num_devices=1)


def host() -> None:
    """Tables in host memory: mapped, and cached at two sizes; the host's share counts, since lookups wait for it."""
    if CPU:
        emit(skipped="no GPU")
        return
    shapes, batch, pooling = [(1_000_000, 128)] * 4, 16_384, 10
    random = np.random.default_rng(0)
    lookups = []
    for _ in range(4):
        ranks = np.minimum(random.zipf(1.05, (len(shapes), batch * pooling)) - 1, 10**9) % shapes[0][0]
        lookups.append(torch.from_numpy(ranks.flatten() * 2654435761 % shapes[0][0]).to("cuda"))
    offsets = torch.arange(0, len(shapes) * batch * pooling + 1, pooling, device="cuda")
    for name, more in (
        ("DEVICE", {}),
        ("MANAGED", {"location": "MANAGED"}),
        ("MANAGED_CACHING 0.1", {"location": "MANAGED_CACHING", "cache_load_factor": 0.1}),
        ("MANAGED_CACHING 0.3", {"location": "MANAGED_CACHING", "cache_load_factor": 0.3}),
    ):

        def one(name: str = name, more: dict[str, Any] = more) -> None:
            module = tables(shapes, "EXACT_ROWWISE_ADAGRAD", "FP32", "FP32", **more)
            times: dict[str, list[float]] = {"forward": [], "backward": []}
            gradient = None
            for number in range(14):
                torch.cuda.synchronize()
                begun = time.perf_counter()
                pooled = module(lookups[number % 4], offsets)
                torch.cuda.synchronize()
                middle = time.perf_counter()
                gradient = torch.full_like(pooled, 1e-3) if gradient is None else gradient
                pooled.backward(gradient)
                torch.cuda.synchronize()
                times["forward"].append(1e3 * (middle - begun))
                times["backward"].append(1e3 * (time.perf_counter() - middle))
            emit(
                host_tables=name,
                shapes=str(shapes[0]),
                tables=len(shapes),
                batch=batch,
                pooling=pooling,
                **{f"{way}_ms": statistics.median(each[6:]) for way, each in times.items()},
            )

        attempt(name, one)
        torch.cuda.empty_cache()
