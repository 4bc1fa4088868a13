"""Hold measured compute records next to the device simulator and to bundles, without a GPU.

    python -m benchmarks.gpu.judge RECORDS.jsonl... [--device h100-80gb] [--bundle FOLDER]...

Prints for each the geometric mean of |predicted / measured - 1|, the median ratio, and Kendall's tau; then each
record's ratios of the simulator, so that one sees for which shapes it is wrong. Disturbed records are left out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.request import Pipeline
from neuroshard_costs.bundle import CostBundle, bundled_bundle, load_bundle
from neuroshard_costs.fitting.records import read_records
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_costs.simulator.device import DeviceSimulator
from scipy.stats import kendalltau

_LEAST_ERROR = 1e-4
"""A smaller one counts as this in geometric means."""
Measured = tuple[ComputeSample, tuple[float, float]]


def measured(paths: Sequence[Path]) -> list[Measured]:
    """Return samples with forward and backward milliseconds."""
    return [
        (each.compute, (each.forward_ms, each.backward_ms))
        for path in paths
        for each in read_records(path)
        if each.disturbance is None and each.compute and each.forward_ms and each.backward_ms
    ]


def simulated_ms(device: str, shards: Sequence[ShardArrays]) -> FloatArray:
    """Return the simulator's times [samples, 2] of a preset."""
    simulator = DeviceSimulator(preset(device).device, noise=0.0, seed=0)
    one_set = [np.zeros(len(each), dtype=np.int64) for each in shards]
    return np.array(
        [
            simulator.compute_ms(each, sets, 1, pipeline=Pipeline.SPARSE_DIST)[0]
            for each, sets in zip(shards, one_set, strict=True)
        ]
    )


def bundle_ms(bundle: CostBundle, shards: Sequence[ShardArrays]) -> FloatArray:
    """Return a bundle's times [samples, 2]."""
    return np.array(
        [bundle.compute_ms(bundle.represent(each).sum(axis=0), pipeline=Pipeline.SPARSE_DIST) for each in shards]
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--device", default="h100-80gb", help="a preset with a bundle")
    parser.add_argument("--bundle", type=Path, action="append", default=[], help="a fitted bundle; may be repeated")
    asked = parser.parse_args()
    found = measured(asked.records)
    if not found:
        raise SystemExit(f"{', '.join(map(str, asked.records))}: hold no undisturbed compute records")
    truth = np.array([times for _, times in found])
    shards = [sample_shards(sample) for sample, _ in found]
    simulated = simulated_ms(asked.device, shards)
    predictors = {"simulator": simulated, "bundled": bundle_ms(bundled_bundle(asked.device), shards)}
    predictors.update({str(path): bundle_ms(load_bundle(path), shards) for path in asked.bundle})
    print("| predictor | way | geometric mean of the error | median predicted / measured | tau |")
    print("|---|---|---|---|---|")
    for name, predicted in predictors.items():
        for way, own, true in (
            ("forward", predicted[:, 0], truth[:, 0]),
            ("backward", predicted[:, 1], truth[:, 1]),
            ("both", predicted.sum(1), truth.sum(1)),
        ):
            error = np.exp(np.log(np.maximum(np.abs(own / true - 1), _LEAST_ERROR)).mean())
            tau = kendalltau(own, true).statistic
            print(f"| {name} | {way} | {100 * error:.1f} % | {np.median(own / true):.2f} | {tau:.3f} |")
    print("\n| tables | rows | columns | batch | pooling | type | optimizer | measured ms | simulator / measured |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (sample, times), own in zip(found, simulated, strict=True):
        first = sample.tables[0]
        ratios = " ".join(f"{each:.2f}" for each in own / np.array(times))
        print(
            f"| {len(sample.tables)} | {first.num_embeddings} | {first.embedding_dim} | {sample.batch_size} "
            f"| {first.pooling_factor:g} | {first.data_type} | {sample.optimizer} | {times[0]:.3f} {times[1]:.3f} "
            f"| {ratios} |"
        )


if __name__ == "__main__":
    main()
