"""Measures the bundled cost models: hold-out error, error on public models, speed, training time; prints Markdown.

    python -m benchmarks prediction_error

Writes benchmarks/results/prediction-error_<hardware>_<date>.md. With ``python -m benchmarks.prediction_error --train
DEVICE`` it also trains that device's bundle with the default settings, times it, and compares the weights.
The public models enter as random device loads: 40 per model, global batch (16,384, 65,536, 262,144) and optimizer (SGD,
row-wise Adagrad, Adam), each a fourth to a sixteenth of the tables, some cut to half or a quarter of their columns.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer, TableSet
from neuroshard_costs.bundle import CostBundle, bundled_bundle, bundled_names
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import FloatArray, ShardArrays, slice_columns
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_planner.workload_store import read_workload, workload_names

NUM_LOADS = 40
BATCHES = (16_384, 65_536, 262_144)
OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM)
TIMED_ROWS = (10, 1_000, 10_000)
REPEATS = 30


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="DEVICE", choices=bundled_names(), help="also train this bundle")
    arguments = parser.parse_args()
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch"))
    print("# Prediction error of the bundled cost models\n")
    command = " ".join(["python -m benchmarks.prediction_error", *sys.argv[1:]])
    print(f"Made by `{command}` with OMP_NUM_THREADS=1 on")
    print(
        f"{_processor()}, {os.cpu_count()} cores of which one is used; Python {platform.python_version()}, {packages}."
    )
    print("All true times are the device simulator's, without noise: nothing here was measured on a GPU.\n")
    bundles = [bundled_bundle(name) for name in bundled_names()]
    for section in (hold_out, hold_out_by_group, public_models, speed):
        print("\n".join(section(bundles)), end="\n\n")
    if arguments.train:
        print("\n".join(training(arguments.train)))


def hold_out(bundles: list[CostBundle]) -> Iterator[str]:
    """Yield the errors that the manifests state."""
    yield "## Held-out samples\n"
    yield "| bundle | network | samples | MAPE | MSE (ms²) | Kendall tau |\n|---|---|---|---|---|---|"
    for manifest in (bundle.manifest for bundle in bundles):
        for network in manifest.networks:
            error = network.hold_out
            yield (
                f"| {manifest.device.name} | {network.name} | {error.num_samples:,} | {error.mape:.2%} "
                f"| {error.mse_ms2:.3g} | {error.kendall_tau:.4f} |"
            )


def hold_out_by_group(bundles: list[CostBundle]) -> Iterator[str]:
    """Yield the mean errors by groups of samples."""
    names = [bundle.manifest.device.name for bundle in bundles]
    yield f"| network | group | {' | '.join(names)} |\n|{'---|' * (2 + len(names))}"
    for networks in zip(*(bundle.manifest.networks for bundle in bundles), strict=True):
        for group, labels in networks[0].hold_out.mape_by.items():
            for label in labels:
                errors = " | ".join(f"{network.hold_out.mape_by[group][label]:.2%}" for network in networks)
                yield f"| {networks[0].name} | {group} {label} | {errors} |"


def public_models(bundles: list[CostBundle]) -> Iterator[str]:
    """Yield the compute error on device loads made of public models' tables."""
    names = [bundle.manifest.device.name for bundle in bundles]
    yield "## Device loads of public models\n"
    yield "Mean, largest and systematic (mean signed) relative error of forward and backward compute.\n"
    yield f"| model | tables | {' | '.join(names)} |\n|{'---|' * (2 + len(names))}"
    for name in workload_names():
        tables = read_workload(name)
        errors = [_load_errors(bundle, tables) for bundle in bundles]
        cells = [f"{np.abs(error).mean():.2%}, {np.abs(error).max():.1%}, {error.mean():+.2%}" for error in errors]
        yield f"| {name} | {len(tables.tables)} | {' | '.join(cells)} |"


def speed(bundles: list[CostBundle]) -> Iterator[str]:
    """Yield the time of the networks at plan time."""
    bundle = bundles[0]
    tables = read_workload("nvidia-synthetic-large")
    shards = shard_arrays(tables, global_batch_size=65_536, optimizer=Optimizer.SGD)
    demands = bundle.represent(shards)
    yield "## Inference\n"
    yield f"Milliseconds per call, least of {REPEATS}: the machine is shared."
    yield f"Representations have {demands.shape[1]} numbers.\n"
    yield "| rows | head: device sums to times | representation: shards to features to demands |\n|---|---|---|"
    for num_rows in TIMED_ROWS:
        rows = np.arange(num_rows) % len(shards)
        sums, many = demands[rows], shards.take(rows)
        head_ms, shards_ms = (
            _least_ms(partial(bundle.compute_ms, sums, pipeline=Pipeline.SPARSE_DIST)),
            _least_ms(partial(bundle.represent, many)),
        )
        yield f"| {num_rows:,} | {head_ms:.3f} | {shards_ms:.2f} |"


def training(device: str) -> Iterator[str]:
    """Yield the time of one training run, and whether it gives the bundled weights."""
    from neuroshard_costs.pretrain.train import PretrainSettings, pretrain  # noqa: PLC0415 - only here torch loads

    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        manifest = pretrain(preset(device), Path(folder) / device, PretrainSettings())
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    same = manifest.weights_sha256 == bundled_bundle(device).manifest.weights_sha256
    yield "## Training\n"
    yield f"{device}, default settings, one thread: {processor:.0f} s of processor time, {wall:.0f} s on the clock of a"
    yield "machine shared with other work."
    yield f"The weights are {'' if same else 'not '}those of the bundled bundle, bit for bit."


def _load_errors(bundle: CostBundle, tables: TableSet) -> FloatArray:
    """Return [loads, 2] signed relative errors."""
    simulator = DeviceSimulator(preset(bundle.manifest.device.name).device)
    random = np.random.default_rng(0)
    errors = []
    for batch in BATCHES:
        for optimizer in OPTIMIZERS:
            whole = shard_arrays(tables, global_batch_size=batch, optimizer=optimizer)
            for _ in range(NUM_LOADS):
                load = _random_load(random, whole)
                true_ms = simulator.compute_ms(
                    load, np.zeros(len(load), dtype=np.int64), 1, pipeline=Pipeline.SPARSE_DIST
                )
                sums = bundle.represent(load).sum(axis=0)
                errors.append(bundle.compute_ms(sums, pipeline=Pipeline.SPARSE_DIST) / true_ms[0] - 1)
    return np.array(errors)


def _random_load(random: np.random.Generator, whole: ShardArrays) -> ShardArrays:
    count = max(1, round(len(whole) / random.choice([4, 8, 16])))
    index = random.choice(len(whole), count, replace=False)
    cut = random.choice([1.0, 2.0, 4.0], count)
    return slice_columns(whole, index, np.maximum(4, 4 * np.round(whole.num_columns[index] / cut / 4)))


def _least_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
