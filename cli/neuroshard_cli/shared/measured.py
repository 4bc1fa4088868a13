"""Documents that a training wrote about itself, as far as they are of the plan in force: of a run, and of a job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.status import Status


class Measured(NamedTuple):
    """Documents of a training; None: it wrote none, or of an earlier plan."""

    steps: "StepReport | None"
    progress: "TrainingProgress | None"
    """Of the training under whatever plan."""
    drift: "DriftReport | None"


def measured_of(files: Mapping[str, bytes], *, where: str, plan_sha256: str | None) -> Measured:
    """Return the documents among a training's files. Raises DocumentError.

    Args:
        files: contents by name; others may be among them.
        where: the files are, for messages.
        plan_sha256: hash of the plan in force.
    """
    from neuroshard_api.documents.drift_report import DriftReport
    from neuroshard_api.documents.progress import TrainingProgress
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, PROGRESS_FILE, STEP_REPORT_FILE

    steps, drift, progress = (files.get(name) for name in (STEP_REPORT_FILE, DRIFT_REPORT_FILE, PROGRESS_FILE))
    report = None if steps is None else StepReport.from_json(steps, where=f"{where}/{STEP_REPORT_FILE}")
    slower = None if drift is None else DriftReport.from_json(drift, where=f"{where}/{DRIFT_REPORT_FILE}")
    return Measured(
        steps=report if report is not None and report.plan_sha256 == plan_sha256 else None,
        progress=None if progress is None else TrainingProgress.from_json(progress, where=f"{where}/{PROGRESS_FILE}"),
        drift=slower if slower is not None and slower.plan_sha256 == plan_sha256 else None,
    )


def failure_in(status: "Status") -> str | None:
    """Return the sentence on what ended a run or a job. None: it is under way, or did not fail."""
    from neuroshard_api.job.status import Stage

    return status.message or status.reason if status.stage is Stage.FAILED else None
