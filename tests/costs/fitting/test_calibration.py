"""Specification of calibration."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.records import LaunchTimes, ProfileRecord
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.bundle import CostBundle, load_bundle
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.features import NUM_CALL_COUNTS
from neuroshard_costs.fitting.calibration import calibrate
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from support.builders import table, table_set, topology
from support.planner.bundle_builders import saved_bundle
from support.profiler.profiler_builders import compute_sample
from support.profiler.record_builders import communication_record, compute_record, written

EXPONENT, FACTOR = 0.9, 1.7


def planted(bundle: CostBundle, count: int, *, seed: int = 0) -> list[ProfileRecord]:
    """Return records of a machine whose times are FACTOR * time ** EXPONENT of the bundle's."""
    random = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        fields: dict[str, Any] = {
            "embedding_dim": int(4 * random.integers(1, 64)),
            "pooling_factor": float(random.uniform(1, 100)),
            "num_embeddings": int(10 ** random.uniform(2, 8)),
        }
        shards = shard_arrays(table_set(table(**fields)), global_batch_size=65536, optimizer=Optimizer.SGD)
        forward, backward = (
            FACTOR * bundle.compute_ms(bundle.represent(shards).sum(axis=0), pipeline=Pipeline.SPARSE_DIST) ** EXPONENT
        )
        records.append(compute_record(forward_ms=float(forward), backward_ms=float(backward), **fields))
    return records


@pytest.fixture
def bundle(tmp_path: Path) -> CostBundle:
    """A bundle of random weights under ``tmp_path / "bundle"``."""
    return load_bundle(saved_bundle(tmp_path / "bundle", seed=2))


def test_a_planted_scale_is_found(tmp_path: Path, bundle: CostBundle) -> None:
    """Exponent and factor come back, and the error falls to nothing."""
    path = written(tmp_path, *planted(bundle, 12))
    calibration = calibrate(tmp_path / "bundle", path, tmp_path / "out").calibration

    assert calibration is not None
    assert calibration.compute_scale == pytest.approx((EXPONENT, FACTOR), rel=1e-3)
    assert calibration.source == "measured:Other Device"
    assert calibration.num_records == 12
    assert calibration.mape_before > 0.1
    assert calibration.mape_after < 1e-3


def test_an_outlier_counts_little(tmp_path: Path, bundle: CostBundle) -> None:
    """One record of twelve that is ten times too slow does not move the scale."""
    records = planted(bundle, 12)
    slow_ms = 10 * (records[3].forward_ms or 0.0)
    records[3] = records[3].model_copy(update={"forward_ms": slow_ms})
    calibration = calibrate(tmp_path / "bundle", written(tmp_path, *records), tmp_path / "out").calibration

    assert calibration is not None
    assert calibration.compute_scale == pytest.approx((EXPONENT, FACTOR), rel=0.02)


def test_the_written_bundle_predicts_the_other_machine(tmp_path: Path, bundle: CostBundle) -> None:
    """A calibrated bundle is a bundle; its weights and its source are the old ones."""
    records = planted(bundle, 8)
    calibrate(tmp_path / "bundle", written(tmp_path, *records), tmp_path / "out")
    rescaled = load_bundle(tmp_path / "out")
    sums = np.full((1, 5 + NUM_CALL_COUNTS), 3.0)

    before, after = (each.compute_ms(sums, pipeline=Pipeline.SPARSE_DIST).astype(float) for each in (bundle, rescaled))
    np.testing.assert_allclose(after, FACTOR * before**EXPONENT, rtol=1e-3)
    assert rescaled.manifest.weights_sha256 == bundle.manifest.weights_sha256
    assert rescaled.manifest.source == bundle.manifest.source


def test_the_hosts_launches_are_those_that_were_measured(tmp_path: Path, bundle: CostBundle) -> None:
    """The device's part stays as its networks were trained with it, for it is rescaled with them."""
    times = LaunchTimes(one_call_ms=(0.1, 0.2), two_calls_ms=(0.9, 0.9), alone_ms=(3.0, 4.0))
    calls = [
        ProfileRecord(source="measured:Other Device", launch=compute_sample(), launch_times=times) for _ in range(3)
    ]
    path = written(tmp_path, *planted(bundle, 8), *calls)
    launch = calibrate(tmp_path / "bundle", path, tmp_path / "out").launch

    assert launch.host_ms == pytest.approx((3.0, 4.0), rel=1e-3)
    assert launch.device_ms == bundle.manifest.launch.device_ms


def test_a_second_calibration_replaces_the_first(tmp_path: Path, bundle: CostBundle) -> None:
    """Scales do not pile up."""
    path = written(tmp_path, *planted(bundle, 8))
    first = calibrate(tmp_path / "bundle", path, tmp_path / "first")

    assert calibrate(tmp_path / "first", path, tmp_path / "second") == first


def exchanges(bundle: CostBundle, count: int) -> list[ProfileRecord]:
    """Return forward all-to-alls of a machine whose transfers take twice the bundle's times."""
    records = []
    for columns in range(64, 64 + 8 * count, 8):
        forward, _ = bundle.transfer_ms(
            np.array(float(columns)),
            Exchange(
                topology=topology(),
                batch_size_per_device=1024,
                mean_dim_sum=(3 * 64 + columns) / 4,
                bytes_per_element=4,
            ),
        )
        transfer = 2 * float(forward)
        records.append(
            communication_record(
                intra_node=topology().intra_node,
                inter_node=topology().inter_node,
                embedding_dim_sums=(64, 64, columns, 64),
                start_offsets_ms=(0.0, 5.0, 0.0, 1.0),
                device_ms=(transfer + 5, transfer, transfer + 5, transfer + 4),
            )
        )
    return records


def test_the_all_to_all_is_scaled_by_the_device_that_starts_last(tmp_path: Path, bundle: CostBundle) -> None:
    """What the others wait is not transfer; a direction without records keeps its times."""
    path = written(tmp_path, *planted(bundle, 8), *exchanges(bundle, 8))
    calibration = calibrate(tmp_path / "bundle", path, tmp_path / "out").calibration

    assert calibration is not None
    assert calibration.forward_communication_scale == pytest.approx((1.0, 2.0), rel=1e-3)
    assert calibration.backward_communication_scale == (1.0, 1.0)
    assert calibration.num_records == 16


def test_many_exact_exchanges_do_not_hide_the_error_of_compute(tmp_path: Path, bundle: CostBundle) -> None:
    """Each network is trusted by its own records: compute that is a third off next to exchanges that repeat exactly."""
    off = [
        record.model_copy(
            update={name: getattr(record, name) * factor for name in ("forward_ms", "backward_ms")},
        )
        for record, factor in zip(planted(bundle, 12), [0.7, 1.3] * 6, strict=True)
    ]
    manifest = calibrate(tmp_path / "bundle", written(tmp_path, *off, *exchanges(bundle, 100)), tmp_path / "out")

    assert manifest.calibration is not None
    assert manifest.calibration.mape_after < 0.1
    assert (manifest.measured_mape("compute") or 0.0) > 0.25
    assert (manifest.measured_mape("forward_communication") or 1.0) < 1e-3
    assert manifest.measured_mape("backward_communication") is None


def test_few_records_are_refused(tmp_path: Path, bundle: CostBundle) -> None:
    """The sentence says how many more are needed."""
    path = written(tmp_path, *planted(bundle, 5))

    with pytest.raises(RecordsError, match=r"holds 5 compute records, at least 8 .* measure 3 more"):
        calibrate(tmp_path / "bundle", path, tmp_path / "out")


def test_records_of_several_machines_are_refused(tmp_path: Path, bundle: CostBundle) -> None:
    """One scale fits one machine."""
    records = planted(bundle, 9)
    records[0] = records[0].model_copy(update={"source": "cpu:Laptop"})

    with pytest.raises(RecordsError, match=r"several machines \(cpu:Laptop, measured:Other Device\)"):
        calibrate(tmp_path / "bundle", written(tmp_path, *records), tmp_path / "out")
