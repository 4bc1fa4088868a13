"""Cost models that a run leaves for later ones, corrected by its steps."""

import os
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.bundle import Calibration
from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.corrected_models import take_corrected_models
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_costs.bundle import bundled_root, load_bundle, read_weights, save_bundle
from support import builders
from support.cli.local_runs import Runs

SLOWER = 1.5
TRAINER = f"""
import hashlib, json, os, pathlib
run_dir, plan_file = (pathlib.Path(os.environ[name]) for name in ("NEUROSHARD_RUN_DIR", "NEUROSHARD_PLAN"))
passes = [f"{{way}}_{{what}}_ms" for way in ("forward", "backward") for what in ("compute", "communication")]
ranks = [
    {{
        "rank": rank,
        **{{name: {SLOWER} * cost[name] for name in passes}},
        "collectives": [
            {{
                "kind": each["kind"],
                "family": each.get("family"),
                **{{name: {SLOWER} * each[name] for name in ("forward_ms", "backward_ms")}},
            }}
            for each in cost["collectives"]
        ],
        "dense_ms": 1.0,
        "data_wait_ms": 0.0,
        "step_ms": 9.0,
        "processor_wait_share": 0.6 if "BUSY" in os.environ else 0.0,
    }}
    for rank, cost in enumerate(json.loads(plan_file.read_bytes())["predicted"]["devices"])
]
shared = {{
    "source": "measured:NVIDIA-H100-80GB-HBM3", "plan_sha256": hashlib.sha256(plan_file.read_bytes()).hexdigest()
}}
first_step = 100 if "SHORT" in os.environ else 500
step_report = {{
    **shared, "schema_version": "step-report/v1", "first_step": first_step, "num_steps": 100, "ranks": ranks
}}
slow = [{{**each, "step_ms": 90.0}} for each in ranks]
evidence = [{{"part": "step", "reference_ms": 9.0, "recent_ms": 90.0}}]
drift_report = {{
    **shared,
    "schema_version": "drift-report/v1",
    "last_step": 599,
    "reference_steps": 200,
    "reference": ranks,
    "recent": slow if "SLOW" in os.environ else ranks,
    "changes": [{{"cause": "Unexplained", "since_step": 300, "evidence": evidence}}] if "SLOW" in os.environ else [],
}}
for name, report in (("step-report.json", step_report), ("drift-report.json", drift_report)):
    (run_dir / name).write_text(json.dumps(report))
"""
"""Reports steps whose parts take 1.5 times as long as its plan predicts; with SLOW, much slower ones since step 300;
with SHORT, steps that both reports share; with BUSY, ranks that waited for a processor."""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile's folder."""
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "bundle").symlink_to(bundled_root() / "h100-80gb")
    device = load_bundle(folder / "bundle").manifest.device
    (folder / "hardware.json").write_text(builders.hardware(device=device).to_json())
    return folder


def test_a_later_run_plans_with_what_this_one_measured(runs: Runs, profile: Path) -> None:
    """Its predicted cost of the same plan is what the steps took."""
    first = runs.run("--bundle", profile, script=TRAINER)
    before = Plan.read(runs.run_dir / "plan.json")
    corrected = runs.run_dir / "corrected"
    second = runs.run("--bundle", corrected, script=TRAINER)

    assert (first.code, second.code) == (ExitCode.OK, ExitCode.OK)
    assert "lookups 33 % before, 0 % after" in first.err
    after = Plan.read(runs.run_dir / "plan.json")
    assert after.predicted.total_ms == pytest.approx(SLOWER * before.predicted.total_ms, rel=0.02)


@pytest.mark.parametrize("why", ["SLOW", "BUSY"])
def test_steps_that_other_causes_made_longer_correct_nothing(runs: Runs, profile: Path, why: str) -> None:
    """Inputs that drifted, or other programs: the reason is in the last lines, and the run succeeds."""
    environment: dict[str, Any] = {"env": [{"name": why, "value": "yes"}]}
    result = runs.run("--bundle", profile, script=TRAINER, trainer=environment)

    assert result.code == ExitCode.OK
    assert "cost models are not corrected by these steps" in result.err
    assert not (runs.run_dir / "corrected").exists()


def test_a_training_too_short_for_two_reports_corrects_nothing(runs: Runs, profile: Path) -> None:
    """Both reports are of the same steps, which nobody has to know."""
    result = runs.run("--bundle", profile, script=TRAINER, trainer={"env": [{"name": "SHORT", "value": "yes"}]})

    assert result.code == ExitCode.OK
    assert "corrected" not in result.err


def test_a_bundled_device_is_not_corrected(runs: Runs) -> None:
    """There is no profile whose folder could be one for later jobs."""
    result = runs.run(script=TRAINER)

    assert result.code == ExitCode.OK
    assert "corrected" not in result.err


def corrected_run(folder: Path, *, error: float, inputs: str = "same") -> Path:
    """Leave a run with models that were corrected up to an error; return their folder."""
    directory = RunDirectory(folder)
    out = folder / "corrected"
    before = bundled_root() / "h100-80gb"
    calibration = Calibration(
        source="measured:x", num_records=8, compute_scale=(1.0, 1.5), mape_before=0.5, mape_after=error
    )
    manifest = load_bundle(before).manifest.model_copy(update={"calibration": calibration})
    save_bundle(out / "bundle", manifest, read_weights(before))
    (out / "hardware.json").write_text(builders.hardware(device=manifest.device).to_json())
    directory.finish("corrected", inputs, [path for path in out.rglob("*") if path.is_file()])
    return out


def test_a_run_without_a_profile_takes_the_best_correction_of_runs_next_to_it(tmp_path: Path) -> None:
    """As a copy of its own: of equal hardware, settings, and tables, and as the other run left it."""
    best = corrected_run(tmp_path / "b", error=0.1)
    corrected_run(tmp_path / "a", error=0.3)
    corrected_run(tmp_path / "other-machine", error=0.0, inputs="other")
    damaged = corrected_run(tmp_path / "damaged", error=0.0)
    (damaged / "bundle" / "manifest.json").write_text("{}")
    directory = RunDirectory(tmp_path / "new")
    directory.path.mkdir()

    assert take_corrected_models(directory, "same") == best
    manifest = load_bundle(directory.profile_dir / "bundle").manifest
    assert manifest.calibration is not None
    assert manifest.calibration.mape_after == 0.1
    assert (directory.profile_dir / "hardware.json").exists()
    assert take_corrected_models(RunDirectory(tmp_path / "newer"), "unknown") is None


def test_corrections_of_other_users_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs are in a folder that users share."""
    corrected_run(tmp_path / "a", error=0.1)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)

    assert take_corrected_models(RunDirectory(tmp_path / "new"), "same") is None


def test_a_second_run_of_the_same_tables_measures_nothing_again(runs: Runs, neuroshard: Any) -> None:
    """It plans with what the first one measured and corrected, says from where, and is finished after that."""
    profiler = {"backend": "Simulated", "deviceType": "h100-80gb", "budgetSeconds": 2}
    first = runs.run(script=TRAINER, profiler=profiler)
    second = neuroshard("run", runs.folder / "job.yaml", "--run-dir", runs.folder / "second")
    third = neuroshard("run", runs.folder / "job.yaml", "--run-dir", runs.folder / "second")

    assert (first.code, second.code, third.code) == (ExitCode.OK, ExitCode.OK, ExitCode.OK), second.err
    assert "cost models corrected by these steps" in first.err
    assert f"corrected by the steps of another run: {runs.run_dir / 'corrected'}" in second.err
    assert "train: reused" in third.err
    before, after = (Plan.read(folder / "plan.json") for folder in (runs.run_dir, runs.folder / "second"))
    assert after.predicted.total_ms == pytest.approx(SLOWER * before.predicted.total_ms, rel=0.05)
