from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.records import ComputeSample, ProfileRecord
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.bundle import bundled_root, load_bundle
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from support.builders import table, table_set

BUNDLE = bundled_root() / "h100-80gb"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Write ten measurements of a machine that takes 1.7 times as long as the bundle says."""
    path = tmp_path / "records.jsonl"
    costs = load_bundle(BUNDLE)
    lines = []
    for count in range(1, 11):
        tables = tuple(table(f"t{index}", pooling_factor=float(count)) for index in range(count))
        sample = ComputeSample(tables=tables, batch_size=65536, optimizer=Optimizer.ROWWISE_ADAGRAD)
        shards = shard_arrays(table_set(*tables), global_batch_size=sample.batch_size, optimizer=sample.optimizer)
        forward, backward = costs.compute_ms(
            costs.represent(shards).sum(axis=0), pipeline=Pipeline.SPARSE_DIST
        ).tolist()
        record = ProfileRecord(
            source="measured:Test Device", compute=sample, forward_ms=1.7 * forward, backward_ms=1.7 * backward
        )
        lines.append(record.model_dump_json(exclude_none=True))
    path.write_text("\n".join(lines))
    return path


def test_a_bundle_is_rescaled(neuroshard: Any, records: Path) -> None:
    """The error before and after is printed; the new bundle plans, and the old one is as it was."""
    out = records.with_name("mine")
    result = neuroshard("calibrate", BUNDLE, records, "--out", out)

    assert (result.code, result.err) == (0, f"bundle written to {out}\n")
    assert "measured:Test Device, 10 records; error" in result.out
    calibration = load_bundle(out).manifest.calibration
    assert calibration is not None
    assert calibration.compute_scale == pytest.approx((1.0, 1.7), rel=1e-3)
    assert calibration.mape_after < 0.01 < calibration.mape_before
    assert load_bundle(BUNDLE).manifest.calibration is None


def test_too_few_measurements_are_a_sentence(neuroshard: Any, records: Path) -> None:
    """It says how many more are needed."""
    records.write_text("\n".join(records.read_text().splitlines()[:5]))
    result = neuroshard("calibrate", BUNDLE, records, "--out", records.with_name("mine"))

    assert (result.code, result.out) == (2, "")
    assert "measure 3 more" in result.err


def test_what_is_no_bundle_cannot_be_used(neuroshard: Any, records: Path) -> None:
    """The folder is named."""
    result = neuroshard("calibrate", records.parent, records, "--out", records.with_name("mine"))

    assert (result.code, result.out) == (4, "")
    assert "is not a bundle" in result.err
