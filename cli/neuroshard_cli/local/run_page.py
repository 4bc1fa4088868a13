"""The page of a run from its folder: what was predicted, and what was measured so far."""

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.shared.output import write_file


def run_page(directory: RunDirectory) -> str:
    """Return the page of a run; what was measured under an earlier plan is left out. Raises DocumentError."""
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, PROGRESS_FILE, STEP_REPORT_FILE
    from neuroshard_report.html.run_page import render_run

    plan_sha256 = file_digest(directory.plan_file)
    files = {name: directory.train_dir / name for name in (STEP_REPORT_FILE, PROGRESS_FILE, DRIFT_REPORT_FILE)}
    steps = StepReport.read(files[STEP_REPORT_FILE]) if files[STEP_REPORT_FILE].exists() else None
    drift = DriftReport.read(files[DRIFT_REPORT_FILE]) if files[DRIFT_REPORT_FILE].exists() else None
    return render_run(
        read_plan(directory.plan_file),
        steps=steps if steps is not None and steps.plan_sha256 == plan_sha256 else None,
        progress=TrainingProgress.read(files[PROGRESS_FILE]) if files[PROGRESS_FILE].exists() else None,
        drift=drift if drift is not None and drift.plan_sha256 == plan_sha256 else None,
    )


def write_run_page(directory: RunDirectory, plan: GivenPlan) -> None:
    """Write the page of a run; a plan that was given without a price has none."""
    if isinstance(plan, Plan):
        write_file(directory.run_report, run_page(directory))
    else:
        directory.run_report.unlink(missing_ok=True)
