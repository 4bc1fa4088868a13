"""Documents that a training wrote about itself, as far as they are of the run's plan."""

from typing import TYPE_CHECKING, NamedTuple

from neuroshard_cli.local.directory import RunDirectory, file_digest

if TYPE_CHECKING:
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport


class Measured(NamedTuple):
    """Documents of a training; None: it wrote none, or of an earlier plan."""

    steps: "StepReport | None"
    progress: "TrainingProgress | None"
    """Of the training under whatever plan."""
    drift: "DriftReport | None"


def measured_in(directory: RunDirectory) -> Measured:
    """Return the documents of the training in a run's folder. Raises DocumentError."""
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, PROGRESS_FILE, STEP_REPORT_FILE

    names = (STEP_REPORT_FILE, PROGRESS_FILE, DRIFT_REPORT_FILE)
    steps_file, progress_file, drift_file = (directory.train_dir / name for name in names)
    plan_sha256 = file_digest(directory.plan_file)
    steps = StepReport.read(steps_file) if steps_file.exists() else None
    drift = DriftReport.read(drift_file) if drift_file.exists() else None
    return Measured(
        steps=steps if steps is not None and steps.plan_sha256 == plan_sha256 else None,
        progress=TrainingProgress.read(progress_file) if progress_file.exists() else None,
        drift=drift if drift is not None and drift.plan_sha256 == plan_sha256 else None,
    )
