"""Hold the simulator's kernels against a measured H200, and fit its calibrated constants to the calibrating half.

python -m benchmarks kernel_calibration

Also fits the calibrated constants to the calibrating half again: `simulator/constants.py` has the rounded values.
"""

import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.records import ComputeSample, ProfileRecord
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_costs.simulator import compute, constants
from neuroshard_costs.simulator.constants import Constant
from neuroshard_costs.simulator.host_memory import cached_seconds
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from benchmarks.gpu.judge import Measured, bundle_ms, measured
from benchmarks.played_caches import PlayedCache
from benchmarks.results_file import write_result

DATA = Path(__file__).parent / "data" / "h200"
DEVICE = "h200-141gb"
FITTED = (
    "CACHE_EFFICIENCY",
    "CYCLES_PER_REQUEST",
    "CYCLES_PER_BAG",
    "CHECK_CYCLES_PER_BAG",
    "CHECK_CYCLES_PER_LOOKUP",
    "GRADIENT_CYCLES_PER_REQUEST",
    "CYCLES_PER_SEGMENT",
    "ADAM_CYCLES_PER_SEGMENT",
    "CYCLES_PER_LONG_SEGMENT",
    "ADAM_CYCLES_PER_LONG_SEGMENT",
    "CYCLES_PER_GRADIENT",
    "SORT_EFFICIENCY",
    "FORWARD_DEVICE_SECONDS",
    "BACKWARD_DEVICE_SECONDS",
)
_WAYS = ("forward", "backward")
_TYPICAL_ERROR = 0.1  # beyond it a record counts less than its square


def halves() -> tuple[list[Measured], Mapping[str, list[Measured]]]:
    """Return the calibrating records, and the held-out ones by file; these parts share no tables.

    `first_profile` is in neither: `profile` drew all of its tables from the same seed.
    """
    profile = _records("profile")
    held = {name: _records(name) for name in ("stated", "fused")}
    return _records("drawn") + profile[::2], {"profile, the other half": profile[1::2], **held}


def _records(name: str) -> list[Measured]:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(gzip.decompress((DATA / f"{name}.jsonl.gz").read_bytes()))
        file.flush()
        return measured([Path(file.name)])


class Calls:
    """Measured calls as one array of shards, so that a fit asks the simulator once for all."""

    def __init__(self, found: Sequence[Measured]) -> None:
        shards = [sample_shards(sample) for sample, _ in found]
        self.each = shards
        names = [field.name for field in fields(ShardArrays)]
        columns = {name: np.concatenate([getattr(each, name) for each in shards]) for name in names}
        self._shards = ShardArrays(**columns)
        self._call = np.repeat(np.arange(len(shards)), [len(each) for each in shards])
        self.truth_ms = np.array([times for _, times in found])
        """[calls, 2] forward and backward."""
        self.optimizers = [sample.optimizer for sample, _ in found]

    def simulated_ms(self) -> FloatArray:
        """Return the simulator's [calls, 2]."""
        seconds = compute.set_seconds(
            preset(DEVICE).device, self._shards, self._call, len(self.each), pipeline=Pipeline.SPARSE_DIST
        )
        return seconds * 1e3

    def bundled_ms(self) -> FloatArray:
        """Return the [calls, 2] of the bundled cost models."""
        return bundle_ms(bundled_bundle(DEVICE), self.each)


def fitted(calls: Calls) -> dict[str, float]:
    """Return the values of the fitted constants that bring the simulator closest to the calls' logarithms."""
    begun: list[Constant] = [getattr(constants, name) for name in FITTED]
    begin = np.array(begun, dtype=np.float64)
    device_seconds = [FITTED.index(f"{way}_DEVICE_SECONDS") for way in ("FORWARD", "BACKWARD")]

    def residuals(logs: FloatArray) -> FloatArray:
        values = begin * np.exp(logs)
        changed: dict[str, Any] = {
            name: Constant(value, own.unit, own.status, own.source)
            for name, own, value in zip(FITTED, begun, values, strict=True)
        }
        with (
            patch.multiple(constants, **changed),
            patch.object(compute, "DEVICE_SECONDS", values[device_seconds]),
        ):
            ratios: FloatArray = calls.simulated_ms() / calls.truth_ms
        return np.log(ratios).ravel()

    best = least_squares(residuals, np.zeros(len(FITTED)), loss="soft_l1", f_scale=_TYPICAL_ERROR)
    return dict(zip(FITTED, begin * np.exp(best.x), strict=True))


def main() -> None:
    """Write the result file."""
    calibrating_records, held_out = halves()
    calibrating = Calls(calibrating_records)
    everything = Calls([each for found in held_out.values() for each in found])
    lines = [
        "# The simulator's kernels against a measured H200",
        "",
        f"{DEVICE}; records: `benchmarks/data/h200`. Errors are mean |predicted / measured - 1|; nine tenths of the",
        "ratios lie in the range. The bundled cost models are trained on the simulator.",
        "",
        "| records | part | calls | simulator: forward | backward | both | range | tau | bundled: both |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines.append(_row("drawn, and half of profile", "calibrating", calibrating))
    lines += [_row(name, "held out", Calls(found)) for name, found in held_out.items()]
    lines.append(_row("all that is held out", "held out", everything))
    lines += [
        "",
        "Held out, by optimizer:",
        "",
        "| optimizer | calls | forward | backward | both |",
        "|---|---|---|---|---|",
    ]
    simulated = everything.simulated_ms()
    for optimizer in sorted(set(everything.optimizers)):
        own = np.array([each == optimizer for each in everything.optimizers])
        errors = _errors(simulated[own], everything.truth_ms[own])
        lines.append(f"| {optimizer} | {own.sum()} | {' | '.join(f'{100 * each:.1f} %' for each in errors)} |")
    lines += ["", "| constant | used | fits the calibrating half best |", "|---|---|---|"]
    for name, value in fitted(calibrating).items():
        lines.append(f"| {name} | {float(getattr(constants, name)):.4g} | {value:.4g} |")
    lines += [*_small_calls(), *_training(), *_cached()]
    print(write_result("kernel-calibration", lines, hardware="H200"))


def _training() -> list[str]:
    """Return the lookups of the kit's job `heavy`, whose kernels and not the host decide their times, in each run."""
    rows = map(json.loads, gzip.decompress((DATA / "results.jsonl.gz").read_bytes()).splitlines())
    runs = [each["step_report"]["ranks"][0] for each in rows if each.get("job") == "heavy"]
    tables = tuple(
        Table(name=f"t{index}", num_embeddings=1_000_000, embedding_dim=128, pooling_factor=20.0) for index in range(8)
    )
    sample = ComputeSample(tables=tables, batch_size=65_536, optimizer=Optimizer.ROWWISE_ADAGRAD)
    calls = Calls([(sample, (each["forward_compute_ms"], each["backward_compute_ms"])) for each in runs])
    cells = [*calls.truth_ms, calls.simulated_ms()[0], calls.bundled_ms()[0]]
    heads = [*(f"measured in run {number}" for number in range(1, len(runs) + 1)), "simulator", "bundled models"]
    return [
        "",
        "8 tables of 1,000,000 x 128, 20 lookups a sample, 65,536 samples, in trainings under `neuroshard run` there:",
        "",
        f"| ms | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
        *(f"| {name} | {' | '.join(f'{each[way]:.3f}' for each in cells)} |" for way, name in enumerate(_WAYS)),
        f"| both | {' | '.join(f'{each.sum():.3f}' for each in cells)} |",
    ]


def _small_calls() -> list[str]:
    """Return the calls of few lookups that a profile measures the launch by; none of them sets a constant."""
    lines = [
        "",
        "Small calls (`launch`), held out. A further call, both ways: two calls of half the tables less one of all.",
        "",
        "| tables | samples | forward: measured, us | simulator | backward | simulator | further call | simulator |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in gzip.decompress((DATA / "launch.jsonl.gz").read_bytes()).splitlines():
        record = ProfileRecord.model_validate_json(line)
        if record.launch is None or record.launch_times is None:
            continue
        times = record.launch_times
        calls = Calls([(record.launch, times.one_call_ms)])
        pairs = zip(1e3 * calls.truth_ms[0], 1e3 * calls.simulated_ms()[0], strict=True)
        further = 1e3 * (sum(times.two_calls_ms) - sum(times.one_call_ms))
        lines.append(
            f"| {len(record.launch.tables)} | {record.launch.batch_size:,} "
            f"| {' | '.join(f'{true:.0f} | {own:.0f}' for true, own in pairs)} "
            f"| {further:.0f} | {1e6 * compute.DEVICE_SECONDS.sum():.0f} |"
        )
    return lines


def _cached() -> list[str]:
    """Return the time that a cache of host memory adds to the lookups of stage `host`, which set no constant."""
    usual, rows, batch, pooling, num_tables = preset(DEVICE), 1_000_000, 16_384, 10, 4
    drawn = np.random.default_rng(0)  # the kit's lookups, which it makes in this order
    batches = []
    for _ in range(4):
        ranks = np.minimum(drawn.zipf(1.05, (num_tables, batch * pooling)) - 1, 10**9) % rows
        ids = ranks * 2_654_435_761 % rows + rows * np.arange(num_tables)[:, None]
        batches.append(np.unique(ids))
    table = Table(name="t0", num_embeddings=rows, embedding_dim=128, pooling_factor=float(pooling))
    shards = sample_shards(
        ComputeSample(tables=(table,) * num_tables, batch_size=batch, optimizer=Optimizer.ROWWISE_ADAGRAD)
    )
    distinct = float(np.mean([len(each) for each in batches]))
    shards = replace(shards, unique_rows=np.full(num_tables, distinct / num_tables))
    measured_ms = {
        row["host_tables"]: row["forward_ms"]
        for row in map(json.loads, gzip.decompress((DATA / "results.jsonl.gz").read_bytes()).splitlines())
        if "host_tables" in row
    }
    lines = [
        "",
        f"{num_tables} tables of {rows:,} x 128 in host memory, {batch * pooling * num_tables:,} skewed lookups of",
        f"{distinct:,.0f} rows, held out: what a cache adds to the forward pass. The host waited for each pass, so",
        "that its launches are in the measured times.",
        "",
        "| cache | rows missed | measured, ms | simulator |",
        "|---|---|---|---|",
    ]
    for share in (0.1, 0.3):
        cache = PlayedCache(round(share * rows * num_tables))
        missed = [cache.look_up(batches[number % 4]) for number in range(14)][6:]
        each = np.full(num_tables, np.mean(missed) / num_tables)
        seconds = cached_seconds(usual.device, usual.host_link, shards, missed_rows=each, devices_per_node=1)
        added = measured_ms[f"MANAGED_CACHING {share}"] - measured_ms["DEVICE"]
        simulated = 1e3 * seconds[:, 0].sum()
        lines.append(f"| {share:.0%} of the rows | {np.mean(missed):,.0f} | {added:.2f} | {simulated:.2f} |")
    return lines


def _errors(predicted: FloatArray, truth: FloatArray) -> tuple[float, float, float]:
    """Return mean relative errors of forward, backward, and both."""
    parts = ((predicted[:, 0], truth[:, 0]), (predicted[:, 1], truth[:, 1]), (predicted.sum(1), truth.sum(1)))
    forward, backward, both = (float(np.mean(np.abs(own / true - 1))) for own, true in parts)
    return forward, backward, both


def _row(name: str, part: str, calls: Calls) -> str:
    simulated, truth = calls.simulated_ms(), calls.truth_ms
    errors = " | ".join(f"{100 * each:.1f} %" for each in _errors(simulated, truth))
    low, high = np.percentile(simulated.sum(1) / truth.sum(1), (5, 95))
    tau = kendalltau(simulated.sum(1), truth.sum(1)).statistic
    bundled = _errors(calls.bundled_ms(), truth)[2]
    return (
        f"| {name} | {part} | {len(truth)} | {errors} | {low:.2f} to {high:.2f} | {tau:.3f} | {100 * bundled:.1f} % |"
    )


if __name__ == "__main__":
    main()
