"""Documents that the training in a run's folder wrote about itself."""

from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.shared.measured import Measured, measured_of

if TYPE_CHECKING:
    from neuroshard_api.documents.hardware import Hardware
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport


def measured_in(directory: RunDirectory) -> Measured:
    """Return the documents of the training in a run's folder. Raises DocumentError."""
    from neuroshard_api.documents.document import read_bytes
    from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, PROGRESS_FILE, STEP_REPORT_FILE

    files = {name: directory.train_dir / name for name in (STEP_REPORT_FILE, PROGRESS_FILE, DRIFT_REPORT_FILE)}
    return measured_of(
        {name: read_bytes(path) for name, path in files.items() if path.exists()},
        where=str(directory.train_dir),
        plan_sha256=file_digest(directory.plan_file),
    )


def trial_in(directory: RunDirectory) -> "StepReport | None":
    """Return the step report of the trial of the plan in force. None: it had none, or none that can be read."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.stage_commands import STEP_REPORT_FILE

    try:
        found = StepReport.read(directory.trial_dir / STEP_REPORT_FILE)
    except (DocumentError, OSError):
        return None
    return found if found.plan_sha256 == file_digest(directory.plan_file) else None


def hardware_in(directory: RunDirectory) -> "Hardware | None":
    """Return the hardware of a run's own profile. None: it has none that can be read."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.documents.hardware import Hardware
    from neuroshard_api.job.stage_commands import HARDWARE_FILE

    try:
        return Hardware.read(directory.profile_dir / HARDWARE_FILE)
    except (DocumentError, OSError):
        return None


def progress_in(directory: RunDirectory) -> "TrainingProgress | None":
    """Return the progress of the training in a run's folder. None: nothing that can be read yet."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.job.stage_commands import PROGRESS_FILE

    try:
        return TrainingProgress.read(directory.train_dir / PROGRESS_FILE)
    except (DocumentError, OSError):
        return None
