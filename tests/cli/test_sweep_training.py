"""Sweeps that train: real runs on this CPU, asked for by Optuna, with a variant that diverges."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.directory import RunDirectory
from support.builders import job_data
from support.cli.searches import QUICK_WORK

pytestmark = pytest.mark.processes
EXAMPLE = Path(__file__).parents[2] / "examples" / "optuna_sweep.py"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Return a small job, planned for simulated devices and trained here."""
    tables = job_data()["spec"]["model"]["embeddingTables"]
    job = job_data(
        "tiny",
        model={
            "embeddingTables": tables,
            "batchSizePerDevice": 256,
            "numDenseFeatures": 2,
            "denseArchLayerSizes": [8],
            "overArchLayerSizes": [8],
        },
        profiler={"policy": "Never", "deviceType": "h100-80gb"},
        data={"numSamples": 20_000},
        training={"logEverySteps": 10},
        experimental={"planner": {"workBudget": QUICK_WORK}, "data": {"readerProcesses": 0}},
    )
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def test_a_sweep_trains_all_but_the_variant_that_diverges_and_repeats_none(
    job_file: Path, tmp_path: Path, neuroshard: Any
) -> None:
    """Best first, with metrics, seconds, and speed; the same command again tries the failed one alone."""
    out = tmp_path / "sweep"
    rates = ("--set", "spec.training.denseLearningRate=1e-3,1e30")
    command = ("sweep", job_file, "--devices", 2, *rates, "--out", out, "--run", "--json")
    first = neuroshard(*command)
    found = json.loads(first.out)
    second = neuroshard(*command)
    again = json.loads(second.out)

    assert (first.code, second.code) == (ExitCode.JOB_FAILED, ExitCode.JOB_FAILED)
    assert "1 of 2 variants failed: tiny-01" in first.err
    assert [each["job"] for each in found["variants"]] == ["tiny-00", "tiny-01"]
    best, failed = found["variants"]
    assert best["state"] == "done"
    assert 0 < best["normalized_entropy"] < 1.2
    assert 0.4 < best["auc"] < 1
    assert best["seconds"] > 0
    assert best["samples_per_second"] > 0
    assert failed["state"] == "failed"
    assert "the loss is nan" in failed["problem"]
    assert again["variants"][0] == best
    course = RunDirectory(out / "runs" / "tiny-00").course
    assert [each["stage"] for each in course].count("train") == 1
    assert found["counts_dense"]
    page = (out / "sweep.html").read_text()
    assert 'href="runs/tiny-00/run.html"' in page
    assert "the loss is nan" in page


def test_a_set_trains_on_one_device_and_each_variant_has_its_own_result(
    job_file: Path, tmp_path: Path, neuroshard: Any
) -> None:
    """In one run; a variant that diverges has failed, and the other has its metrics."""
    out = tmp_path / "sweep"
    rates = ("--set", "spec.training.denseLearningRate=1e-3,1e30")
    result = neuroshard("sweep", job_file, "--devices", 1, *rates, "--out", out, "--run", "--json")

    assert result.code == ExitCode.JOB_FAILED
    assert "1 of 2 variants failed: tiny-00/v01" in result.err
    best, failed = json.loads(result.out)["variants"]
    assert (best["job"], best["variant"], best["state"]) == ("tiny-00", "v00", "done")
    assert 0 < best["normalized_entropy"] < 1.2
    assert (failed["variant"], failed["state"]) == ("v01", "diverged")
    assert "its loss was not finite" in failed["problem"]
    assert "give those that diverged lower rates in another sweep" in result.err
    assert [path.name for path in out.glob("*.yaml")] == ["tiny-00.yaml"]


def test_optuna_asks_and_is_told(job_file: Path, tmp_path: Path) -> None:
    """The example ends with the best of its trials."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ("--rounds", "1", "--trials", "2", "--out", str(tmp_path / "optuna"))
    ended = subprocess.run(
        [sys.executable, EXAMPLE, job_file, *options],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    best = json.loads(ended.stdout)
    assert 0 < best["normalized_entropy"] < 2
    assert 1e-4 <= best["denseLearningRate"] <= 1e-1
    assert 1e-4 <= best["embeddingLearningRate"] <= 1e-1
