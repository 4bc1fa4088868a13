"""The trial of a run's plan: some steps of its own trainer before the training, whose times correct the prediction."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.job.stage_commands import STEP_REPORT_FILE
from neuroshard_api.job.trial import LEAST_TIMED_STEPS, MOST_SECONDS, WARM_UP_STEPS, trial_steps, wants_trial

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.inputs import digest, machine, versions
from neuroshard_cli.local.measured import progress_in, trial_in
from neuroshard_cli.local.stage_runner import StageFailedError, Work
from neuroshard_cli.local.stage_work import trial_work
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.job.training_job import DLRMTrainingJob

TRIAL = "trial"
"""Its stage, and the name of its process."""


class PlanTrial:
    """The trial of one run.

    Args:
        directory: of the run.
        job: that trains.
        data_dir: where relative paths of spec.data begin.
        is_local: whether the cost models are measured on this machine, and the plan is made by them.
    """

    def __init__(self, directory: RunDirectory, job: "DLRMTrainingJob", data_dir: Path, *, is_local: bool) -> None:
        self._directory = directory
        self._job = job
        self._data_dir = data_dir
        self.is_wanted = is_local and wants_trial(job.spec)
        """Whether plans are tried at all."""
        self._failed_for: str | None = None
        """What this command tried in vain; another one tries it again, for its cause may be gone."""

    @property
    def is_due(self) -> bool:
        """Whether the plan that the folder has was neither tried nor trained under."""
        if not self.is_wanted or self._inputs == self._failed_for or self._directory.is_finished(TRIAL, self._inputs):
            return False
        progress = progress_in(self._directory)
        started = () if progress is None else [each.plan_sha256 for each in progress.starts]
        return file_digest(self._directory.plan_file) not in started

    def work(self, plan: "GivenPlan") -> Work:
        """Return the command of the trial of a plan."""
        step = getattr(plan, "step", None)
        self._directory.clear(self._directory.trial_dir)
        self._directory.train_dir.mkdir(exist_ok=True)
        num_steps = trial_steps(self._job.spec, None if step is None else step.total_ms)
        return trial_work(self._directory, self._job, self._data_dir, steps=num_steps)

    def ended(self, error: StageFailedError | None) -> str:
        """Keep its report alone, nothing of a trial that failed, and return a sentence."""
        folder = self._directory.trial_dir
        report = folder / STEP_REPORT_FILE
        text = report.read_text(encoding="utf-8") if error is None and report.exists() else None
        shutil.rmtree(folder, ignore_errors=True)
        if text is not None:
            folder.mkdir()
            write_file(report, text)
        if error is None:
            self._directory.finish(TRIAL, self._inputs, [] if text is None else [report])
        else:
            self._failed_for = self._inputs
            return f"{error}; the training begins without it"
        if text is None:
            least = WARM_UP_STEPS + LEAST_TIMED_STEPS
            return f"fewer than {least} steps in {MOST_SECONDS} s; the training begins without it"
        found = trial_in(self._directory)
        if found is None:
            return ""
        return f"{found.num_steps} steps of {max(each.step_ms for each in found.ranks):.1f} ms"

    @property
    def _inputs(self) -> str:
        spec = self._job.spec
        parts = (spec.model, spec.training, spec.data, spec.trainer, spec.experimental)
        text = self._directory.plan_file.read_text(encoding="utf-8")
        return digest([text, *(each.model_dump_json() for each in parts), *machine(), *versions()])
