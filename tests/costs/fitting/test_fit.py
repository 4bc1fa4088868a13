"""Specification of how records become a bundle."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.records import LaunchTimes, ProfileRecord
from neuroshard_api.documents.request import MemorySettings, Pipeline
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import DeviceType
from neuroshard_costs.bundle import CostBundle, bundled_bundle, load_bundle
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.features import NUM_CALL_COUNTS
from neuroshard_costs.fitting import fit
from neuroshard_costs.fitting.fit import STAND_IN, fit_bundle
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_profiler.backends.simulated import SimulatedBackend
from neuroshard_profiler.benches.comm_sampling import CommunicationSpace
from neuroshard_profiler.benches.comm_simulated import simulate_communication
from neuroshard_profiler.benches.compute import collect_compute
from neuroshard_profiler.benches.sampling import CPU_SPACE
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.records import RecordsFile
from support.builders import device_type, request, table
from support.planner.bundle_builders import saved_bundle
from support.profiler.profiler_builders import QUICK, compute_sample
from support.profiler.record_builders import compute_record

NAMED = preset("h100-80gb")
UNKNOWN = device_type(name="no-preset")
CPU = device_type(name="cpu-1-core")


def records(folder: Path, device: DeviceType, *, compute: int = 40, transfers: int = 60) -> list[ProfileRecord]:
    """Return simulated records of a device."""
    backend = SimulatedBackend(device)
    space = CommunicationSpace(
        num_nodes=1, devices_per_node=4, intra_node=NAMED.intra_node, inter_node=NAMED.inter_node
    )
    with (
        RecordsFile(folder / "compute", source=backend.source) as file,
        RecordsFile(folder / "transfers", source=backend.source) as others,
    ):
        job_space = replace(CPU_SPACE, optimizers=backend.optimizers, data_types=backend.data_types)
        collect_compute(backend, job_space, file, budget=Budget(seconds=1e9, max_records=compute), repeats=QUICK)
        if transfers:
            simulate_communication(device, space, others, budget=Budget(seconds=1e9, max_records=transfers))
    return [*file.records, *others.records]


def test_a_bundle_of_the_same_device_is_calibrated(tmp_path: Path) -> None:
    """Few records rescale what many trained."""
    report = fit_bundle(records(tmp_path, NAMED.device), tmp_path / "bundle", device=NAMED.device)
    calibration = report.manifest.calibration

    assert report.method == "calibration"
    assert calibration is not None
    assert calibration.mape_after < 0.05
    assert calibration.compute_scale == pytest.approx((1.0, 1.0), abs=0.05)


def test_a_bundle_that_is_given_is_calibrated(tmp_path: Path) -> None:
    """Anyone who names one knows why."""
    base = saved_bundle(tmp_path / "base")
    report = fit_bundle(records(tmp_path, UNKNOWN), tmp_path / "bundle", device=UNKNOWN, base=base)

    assert (report.method, report.manifest.name) == ("calibration", "random")


def test_an_unknown_device_is_fitted_by_regression(tmp_path: Path) -> None:
    """The bundle says how, from how many records, with which error, and what they covered."""
    found = records(tmp_path, UNKNOWN)
    report = fit_bundle(found, tmp_path / "bundle", device=UNKNOWN)
    manifest = load_bundle(tmp_path / "bundle").manifest

    assert report.method == "regression"
    assert "training takes" in report.reason
    assert manifest == report.manifest
    assert manifest.source == "simulated:Test Device 80GB"
    assert manifest.training["compute_num_records"] == 40
    assert manifest.networks[0].hold_out.num_samples == 40
    dims = [table.embedding_dim for record in found if record.compute for table in record.compute.tables]
    limits = manifest.networks[0].validity["embedding_dim"]
    assert (limits.low, limits.high) == (min(dims), max(dims))
    assert manifest.networks[1].validity["num_devices"].high == 4
    shared = table("shared", feature_names=("f0", "f1"))
    halved = MemorySettings(output_data_type=DataType.FP16)
    warnings = load_bundle(tmp_path / "bundle").validity_warnings(request(shared, memory=halved))
    assert any(each.startswith("tables[shared].num_features: is 2, outside 1 to 1") for each in warnings)
    assert any(each.startswith("output_bytes_per_element: is 2, outside 4 to 4") for each in warnings)


@pytest.mark.parametrize(
    ("device", "host_ms"),
    [(UNKNOWN, bundled_bundle(STAND_IN).manifest.launch.host_ms), (CPU, (0.0, 0.0))],
    ids=["gpu", "cpu"],
)
def test_a_profiled_gpu_keeps_the_launches_of_the_host(
    tmp_path: Path, device: DeviceType, host_ms: tuple[float, float]
) -> None:
    """Without a pipeline the step waits for them, and no record holds them; on a CPU a call's time includes them."""
    manifest = fit_bundle(records(tmp_path, device), tmp_path / "bundle", device=device).manifest

    assert manifest.training["method"] == "regression"
    assert manifest.launch.host_ms == host_ms
    assert ("launch_host_ms" in manifest.training) is any(host_ms)


def test_launches_that_were_measured_are_the_bundles(tmp_path: Path) -> None:
    """A device with tables of two types pays for its second call, and an idle one for the host."""
    times = LaunchTimes(one_call_ms=(0.1, 0.2), two_calls_ms=(0.15, 0.3), alone_ms=(3.0, 4.0))
    calls = [
        ProfileRecord(source=f"simulated:{UNKNOWN.product}", launch=compute_sample(), launch_times=times)
        for _ in range(3)
    ]
    fit_bundle([*records(tmp_path, UNKNOWN), *calls], tmp_path / "bundle", device=UNKNOWN)
    bundle = load_bundle(tmp_path / "bundle")
    one_type, two_types = (
        bundle.represent(sample_shards(compute_sample(table("a"), table("b", data_type=second)))).sum(axis=0)
        for second in (DataType.FP32, DataType.FP16)
    )
    one_call, two_calls, idle = (
        bundle.compute_ms(sums, pipeline=pipeline).astype(float)
        for sums, pipeline in (
            (one_type, Pipeline.SPARSE_DIST),
            (two_types, Pipeline.SPARSE_DIST),
            (one_type, Pipeline.NONE),
        )
    )

    assert bundle.manifest.launch.device_ms == pytest.approx((0.05, 0.1))
    assert bundle.manifest.training["launch"] == "measured"
    network_alone = bundle.compute.times_ms(two_types[:-NUM_CALL_COUNTS], 1.0).astype(float)
    assert (two_calls - network_alone) == pytest.approx([0.05, 0.1], rel=0.01)
    assert (idle > one_call + 1).all()


def test_all_to_alls_that_were_not_measured_make_the_bundle_simulated(tmp_path: Path) -> None:
    """Networks of another device stand in, and nothing simulated is shown as measured."""
    measured = [
        record.model_copy(update={"source": "measured:One GPU"}) for record in records(tmp_path, UNKNOWN, transfers=0)
    ]
    manifest = fit_bundle(measured, tmp_path / "bundle", device=UNKNOWN).manifest

    assert manifest.source.startswith("simulated:")
    assert manifest.compute_source == "measured:One GPU"
    assert load_bundle(tmp_path / "bundle").manifest == manifest


def slower(records: Sequence[ProfileRecord], *, shape: float) -> list[ProfileRecord]:
    """Return the same records of a real device: half as fast, and wide rows slower still by their width ** shape."""
    changed = []
    for record in records:
        fields: dict[str, object] = {"source": "measured:NVIDIA H100 80GB HBM3"}
        if record.compute is not None and record.forward_ms is not None and record.backward_ms is not None:
            factor = 2 * max(table.embedding_dim for table in record.compute.tables) ** shape
            fields |= {"forward_ms": record.forward_ms * factor, "backward_ms": record.backward_ms * factor}
        changed.append(record.model_copy(update=fields))
    return changed


@pytest.mark.parametrize(
    ("count", "shape", "method"), [(60, 0.0, "calibration"), (60, 1.5, "regression")], ids=["scaled", "other shape"]
)
def test_the_way_with_the_lower_hold_out_error_is_taken(tmp_path: Path, count: int, shape: float, method: str) -> None:
    """A bundle of the device is rescaled only if that predicts records better which were not fitted to."""
    found = slower(records(tmp_path, NAMED.device, compute=count), shape=shape)
    report = fit_bundle(found, tmp_path / "bundle", device=NAMED.device)
    regression, calibration = (
        float(error) for error in re.findall(r"(?:has an error of|bundle h100-80gb) ([\d.]+) %", report.reason)
    )

    assert report.method == method
    assert calibration <= regression if method == "calibration" else regression < calibration
    assert load_bundle(tmp_path / "bundle").manifest == report.manifest


def test_a_profile_of_one_node_keeps_what_the_bundle_knows_of_the_network(tmp_path: Path) -> None:
    """Exchanges between nodes must not become free because none was measured."""
    found = slower(records(tmp_path, NAMED.device, compute=60), shape=1.5)
    fit_bundle(found, tmp_path / "bundle", device=NAMED.device)
    fitted, base = load_bundle(tmp_path / "bundle"), bundled_bundle("h100-80gb")

    def between_nodes_ms(bundle: CostBundle) -> np.ndarray:
        topology = NAMED.topology(num_nodes=2)
        exchange = Exchange(topology=topology, batch_size_per_device=8192, mean_dim_sum=512.0, bytes_per_element=4)
        return bundle.transfer_ms(np.array(600.0), exchange)

    assert fitted.manifest.training["method"] == "regression"
    assert fitted.manifest.source.startswith("simulated:")
    assert between_nodes_ms(fitted) == pytest.approx(between_nodes_ms(base), rel=0.3)


@pytest.mark.torch
@pytest.mark.slow
def test_many_records_are_trained_on_and_the_better_fit_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors beyond what was fitted to decide, and the error of the bundle is that on records held out at random."""
    settings = fit.training_settings(120, seed=0)
    monkeypatch.setattr(fit, "MIN_TRAINING_RECORDS", 100)
    monkeypatch.setattr(fit, "training_settings", lambda *_, **__: replace(settings, compute_epochs=3))
    report = fit_bundle(records(tmp_path, UNKNOWN, compute=120), tmp_path / "bundle", device=UNKNOWN)

    told = re.search(
        r"an error of (.+)% on the fifth of the records with the most lookups, training (.+)%", report.reason
    )

    assert told is not None
    errors = [float(each.removeprefix("more than ")) for each in told.groups()]
    assert report.method == ("training" if errors[1] < errors[0] else "regression")
    assert report.manifest.training["method"] == report.method
    assert not list(tmp_path.glob("bundle-*")), "nothing is left of the fits that were tried"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "holds no records"),
        ([compute_record()] * 3, "hold 3 compute records, at least 12 are needed"),
        (
            [compute_record(), compute_record().model_copy(update={"source": "cpu:Other"})],
            "holds records of several machines",
        ),
    ],
    ids=["none", "too few", "two machines"],
)
def test_records_that_say_too_little_are_refused(tmp_path: Path, given: Sequence[ProfileRecord], message: str) -> None:
    """No bundle is better than one that follows noise."""
    with pytest.raises(RecordsError, match=message):
        fit_bundle(given, tmp_path / "bundle", device=UNKNOWN)

    assert not (tmp_path / "bundle").exists()
