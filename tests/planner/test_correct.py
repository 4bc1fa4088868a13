"""What a calibrator's pod runs: cost models corrected by the reports of a training."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints
from neuroshard_api.job.stage_commands import correction_command
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_root, load_bundle
from neuroshard_planner.correct import main
from neuroshard_planner.pipeline import plan as search
from support import builders
from support.trainer import training_builders

SLOWER = 1.3


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A folder with a profile, a plan, and reports, as the ConfigMaps of a pod are mounted."""
    profile = tmp_path / "bundle"
    shutil.copytree(bundled_root() / "h100-80gb", profile)
    (profile / "hardware.json").write_text(builders.hardware().to_json())
    bundle = load_bundle(profile)
    tables = builders.tables(4, num_embeddings=100_000, embedding_dim=64)
    topology = builders.topology(device=bundle.manifest.device, num_devices=2)
    columns = Constraints(sharding_types=(ShardingType.TABLE_WISE,))
    plan = search(builders.request(*tables, topology=topology, constraints=columns), bundle=bundle)
    (tmp_path / "plan.json").write_text(plan.to_json())
    sha256 = hashlib.sha256((tmp_path / "plan.json").read_bytes()).hexdigest()
    write(tmp_path, plan, plan_sha256=sha256)
    return tmp_path


def write(folder: Path, plan: Plan, *, plan_sha256: str, **fields: Any) -> None:
    """Write both reports of a training under a plan."""
    ranks = training_builders.slower_ranks(plan, SLOWER)
    drift = training_builders.drift_report(
        plan_sha256=plan_sha256, reference=ranks, recent=ranks, **{"changes": (), **fields}
    )
    report = builders.step_report(plan_sha256=plan_sha256, ranks=ranks, first_step=500)
    for name, document in {"drift-report.json": drift, "step-report.json": report}.items():
        (folder / name).write_text(document.to_json())


def corrected(folder: Path) -> ExitCode:
    """Run the command of the calibrator's pod."""
    command = correction_command(
        bundle_dir=f"{folder}/bundle",
        plan_file=f"{folder}/plan.json",
        report_files=[f"{folder}/drift-report.json", f"{folder}/step-report.json"],
        out_dir=f"{folder}/out",
    )
    assert command[:3] == ["python", "-m", "neuroshard_planner.correct"]
    return main(command[3:])


def test_a_profile_becomes_one_whose_times_are_the_measured_ones(
    mounted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same weights and hardware, and with its error; the operator reads all three files."""
    assert corrected(mounted) == ExitCode.OK
    before, after = (load_bundle(mounted / name).manifest for name in ("bundle", "out"))

    assert after.calibration is not None
    assert after.calibration.compute_scale == pytest.approx((1.0, SLOWER), rel=0.01)
    assert after.calibration.mape_after < 0.01 < after.calibration.mape_before
    assert after.weights_sha256 == before.weights_sha256
    assert (mounted / "out" / "hardware.json").read_text() == (mounted / "bundle" / "hardware.json").read_text()
    assert "lookups: error 23.1 % before, 0.0 % after" in capsys.readouterr().out


def test_reports_of_another_plan_correct_nothing(mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan and the report are named, and nothing is written."""
    write(mounted, Plan.read(mounted / "plan.json"), plan_sha256="7" * 64)

    assert corrected(mounted) == ExitCode.INVALID_INPUT
    assert "plan_sha256: is 777777777777" in capsys.readouterr().err
    assert not (mounted / "out").exists()
