"""Cost models corrected by the steps of a run, left in its folder for later runs of the same tables on this machine.

Whether the steps can correct them, and whether the correction is better than those of other runs, is decided as in a
cluster. A run that would measure takes those of another run in the same parent folder, where what the measurement
depends on is equal. It keeps a copy as its own profile, so that nothing that happens to the other run changes it.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_cli.local.children import Children, plan_document, profile_document, report_document
from neuroshard_cli.local.directory import RunDirectory

if TYPE_CHECKING:
    from neuroshard_api.job.status import CorrectionStatus, Status
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_decisions.actions import Action, CalibratorRun
    from neuroshard_decisions.observed.results import PlanResult, ProfileSummary, ReportSummary, Unreadable

CORRECTED_FOLDER = "corrected"
CORRECTED_STAGE = "corrected"
"""Record of the correction among the stages of a run."""
PERCENT = 100
BUSY = "workers waited for processors"
_PROFILE = "profile"
"""Name of the profile that the run was planned with."""


class LocalCorrection:
    """Corrects the profile of one run by the steps of its training.

    Args:
        directory: of the run, whose plan has that profile's price.
        job: that was run.
        profile: a profile's folder.
        profile_inputs: digest of what the run's own profile depends on. None: it measured none, and later runs do not
            take the correction by themselves.
    """

    def __init__(
        self, directory: RunDirectory, job: "DLRMTrainingJob", profile: Path, *, profile_inputs: str | None
    ) -> None:
        self._directory = directory
        self._job = job
        self._profile = profile
        self._inputs = profile_inputs
        self._out = directory.path / CORRECTED_FOLDER
        self._errors = ""
        """Errors of the correction, part by part. Empty: there is none."""
        self._problem = ""
        """Why these steps correct nothing. Empty: they do, or it is not known yet."""
        self._are_reports_kept = False
        self._is_kept = False
        """Whether it is left for later runs."""

    def correct(self) -> str | None:
        """Correct the cost models; return a sentence on it. None: these steps say nothing, or there is no profile."""
        from neuroshard_api.documents.plan import Plan
        from neuroshard_api.job.status import CorrectionStatus
        from neuroshard_api.job.step_cost import is_busy
        from neuroshard_decisions import names
        from neuroshard_decisions.actions import BundleSource, GivenModels
        from neuroshard_decisions.context import AtHand
        from neuroshard_decisions.observed.objects import ChildJob, Meta
        from neuroshard_decisions.observed.results import PlanResult, ProfileSummary
        from neuroshard_decisions.stages.corrected_models import correct, correction_key
        from neuroshard_decisions.stages.drift import drift_of
        from neuroshard_decisions.stages.planning import Planned
        from neuroshard_decisions.stages.training import TrainingWorkers

        plan, report = plan_document(self._directory.plan_file), report_document(self._directory)
        profile = profile_document(self._profile)
        if not isinstance(plan, PlanResult) or report is None or not isinstance(profile, ProfileSummary):
            return None
        asked = Plan.read(self._directory.plan_file).request
        models = GivenModels(bundle=BundleSource(), topology=asked.topology)
        children = Children(self._directory, self._job, AtHand(tables=asked.tables, models=models, profile=_PROFILE))
        planned = Planned(summary=plan, name=names.plan(self._job.metadata.name, plan.hash), is_kept=True)
        workers = ChildJob(meta=Meta(name=names.WORKER), role=names.WORKER)
        key = correction_key(children.context(self._status(), {}), plan.model_hash)
        while True:
            context = children.context(
                self._status(),
                self._documents(plan, report),
                shared={_PROFILE: profile, **self._corrections(key)},
            )
            drift = drift_of(context, planned)
            step = correct(TrainingWorkers(context=context, planned=planned, workers=workers, drift=drift))
            found = step.status_fields.get("correction")
            if isinstance(found, CorrectionStatus):
                return self._sentence(found)
            if not step.actions:
                why = BUSY if is_busy(report.measured) else None if drift is None else drift.headline
                return None if why is None else f"cost models are not corrected by these steps: {why}"
            for action in step.actions:
                self._do(action, children)

    def _status(self) -> "Status":
        from neuroshard_api.job.status import HardwareStatus, Status

        return Status(hardware=HardwareStatus(fingerprint=self._inputs or _PROFILE))

    def _documents(
        self, plan: "PlanResult", report: "ReportSummary"
    ) -> "dict[str, ProfileSummary | ReportSummary | Unreadable]":
        from neuroshard_decisions import names

        job = self._job.metadata.name
        found: dict[str, ProfileSummary | ReportSummary | Unreadable] = {names.report(job): report}
        if self._are_reports_kept:
            found[names.steps(job, plan.hash)] = report
        if self._errors:
            found[names.result(names.calibrator_job(job, plan.hash))] = profile_document(self._out)
        return found

    def _corrections(self, key: str) -> "dict[str, ProfileSummary]":
        """Return the corrections that runs next to this one leave for others, and its own, by their names."""
        from neuroshard_decisions import names
        from neuroshard_decisions.observed.results import ProfileSummary

        folders = [] if self._inputs is None else [folder for _, folder in _corrected(self._directory, self._inputs)]
        if self._is_kept:
            folders.append(self._out)
        found = [each for each in map(profile_document, folders) if isinstance(each, ProfileSummary)]
        return {names.corrected(key, each.hash): each for each in found}

    def _do(self, action: "Action", children: Children) -> None:
        """Do an action. The reports are kept where they are: the training has ended."""
        from neuroshard_decisions.actions import CalibratorRun, Keep, Start

        match action:
            case Keep(is_shared=True):
                self._is_kept = True
                if self._inputs is not None:
                    files = [path for path in sorted(self._out.rglob("*")) if path.is_file()]
                    self._directory.finish(CORRECTED_STAGE, self._inputs, files)
            case Keep():
                self._are_reports_kept = True
            case Start(run=CalibratorRun() as run):
                self._calibrate(run, children)

    def _calibrate(self, run: "CalibratorRun", children: Children) -> None:
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_costs.errors import CostModelError
        from neuroshard_planner.step_correction import CorrectionError, corrected

        reports = [self._directory.train_dir / key for key in run.report_keys]
        children.started(run)
        try:
            _, factors = corrected(self._profile, self._directory.plan_file, reports, self._out, is_priced_by=True)
        except (CorrectionError, CostModelError, DocumentError) as error:
            self._problem = str(error)
            children.ended(run.name, ExitCode.INVALID_INPUT, f"error: {error}")
            return
        self._errors = "; ".join(
            f"{part} {PERCENT * found.mape_before:.0f} % before, {PERCENT * found.mape_after:.0f} % after"
            for part, found in factors.items()
        )
        children.ended(run.name, ExitCode.OK, "")

    def _sentence(self, found: "CorrectionStatus") -> str:
        if not self._errors:
            return f"cost models are not corrected by these steps: {self._problem or found.message}"
        kept = "" if found.config_map_ref is not None else "; later runs take those of another run, whose error is less"
        return f"cost models corrected by these steps, for --bundle {self._out}: error of {self._errors}{kept}"


def take_corrected_models(directory: RunDirectory, inputs: str) -> Path | None:
    """Copy the corrected models of another run next to this one; return where they are from. None: there are none.

    Of several runs, the one whose correction left the least error on steps that it was not fitted to counts.

    Args:
        directory: of the run that has no profile.
        inputs: digest of what its profile would depend on.
    """
    found = min(_corrected(directory, inputs), default=None)
    if found is None:
        return None
    _, folder = found
    directory.keep_for(directory.profile_dir, inputs)
    shutil.copytree(folder, directory.profile_dir)
    return folder


def _corrected(directory: RunDirectory, inputs: str) -> Iterator[tuple[float, Path]]:
    """Yield error and folder of each usable correction of other runs."""
    from neuroshard_api.job.stage_commands import BUNDLE_FOLDER
    from neuroshard_costs.bundle import load_bundle
    from neuroshard_costs.errors import CostModelError

    for folder in _folders_of_this_user(directory.path.parent):
        if folder.parent == directory.path or not RunDirectory(folder.parent).is_finished(CORRECTED_STAGE, inputs):
            continue
        try:
            calibration = load_bundle(folder / BUNDLE_FOLDER).manifest.calibration
        except CostModelError:
            continue
        if calibration is not None:
            yield calibration.mape_after, folder


def _folders_of_this_user(parent: Path) -> list[Path]:
    """Return the corrected models of runs in a folder that others may share, such as /tmp."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(parent.iterdir()):
            with contextlib.suppress(OSError):
                folder = path / CORRECTED_FOLDER
                if folder.is_dir() and folder.stat().st_uid == os.getuid():
                    found.append(folder)
    return found
