from pathlib import Path
from typing import Any

import pytest
from builders import table
from neuroshard_api.records import ComputeSample, ProfileRecord
from neuroshard_api.tables import Optimizer
from neuroshard_planner.costs.bundle_store import bundled_root, load_bundle

BUNDLE = bundled_root() / "h100-80gb"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Write ten measurements of a machine, of more and more tables."""
    path = tmp_path / "records.jsonl"
    lines = [
        ProfileRecord(
            source="measured:Test Device",
            compute=ComputeSample(
                tables=tuple(table(f"t{index}") for index in range(count)),
                batch_size=65536,
                optimizer=Optimizer.ROWWISE_ADAGRAD,
            ),
            forward_ms=0.5 * count,
            backward_ms=1.1 * count,
        ).model_dump_json(exclude_none=True)
        for count in range(1, 11)
    ]
    path.write_text("\n".join(lines))
    return path


def test_a_bundle_is_rescaled(neuroshard: Any, records: Path) -> None:
    """The error before and after is told; the new bundle plans, and the old one is as it was."""
    out = records.with_name("mine")
    result = neuroshard("calibrate", BUNDLE, records, "--out", out)

    assert (result.code, result.err) == (0, f"bundle written to {out}\n")
    assert "measured:Test Device, 10 records; error" in result.out
    calibration = load_bundle(out).manifest.calibration
    assert calibration is not None
    assert calibration.mape_after < calibration.mape_before
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
