"""Cost models corrected by the steps of a run, left in its folder for later runs of the same tables on this machine.

Whether the steps can correct them, and whether the correction is better than those of other runs, is decided as in a
cluster. A run that would measure takes those of another run in the same parent folder, where what the measurement
depends on is equal. It keeps a copy as its own profile, so that nothing that happens to the other run changes it.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from neuroshard_api.documents.bundle import BUNDLE_FOLDER
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.status import CorrectionStatus
from neuroshard_api.job.step_cost import is_busy
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.errors import CostModelError
from neuroshard_costs.fitting.step_correction import corrected
from neuroshard_decisions import names
from neuroshard_decisions.actions import CalibratorRun, Keep, Start
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, Meta
from neuroshard_decisions.observed.results import PlanResult, ProfileSummary
from neuroshard_decisions.stages.corrected_models import correct, correction_key
from neuroshard_decisions.stages.drift import drift_of
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.reports import latest
from neuroshard_decisions.stages.training import TrainingWorkers

from neuroshard_cli.local.children import Children
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.kept import Kept, document_in, files_of_profile, files_of_reports

CORRECTED_FOLDER = "corrected"
CORRECTED_STAGE = "corrected"
"""Record of the correction among the stages of a run."""
PERCENT = 100
BUSY = "workers waited for processors"


class Correction:
    """Corrects the profile of one run by the steps of its training.

    Args:
        directory: of the run, whose plan has that profile's price.
        kept: documents of the run.
        profile: a profile's folder.
        inputs: digest of what the run's own profile depends on. None: it measured none, and later runs do not take the
            correction by themselves.
    """

    profile = "profile"
    """Name of the profile for decisions."""

    def __init__(self, directory: RunDirectory, kept: Kept, profile: Path, inputs: str | None) -> None:
        self._directory = directory
        self._kept = kept
        self._profile = profile
        self._inputs = inputs
        self._out = directory.path / CORRECTED_FOLDER
        self._errors = ""
        """Errors of the correction, part by part. Empty: there is none."""
        self._problem = ""
        """Why these steps correct nothing. Empty: they do, or it is not known yet."""

    def correct(self, children: Children, context_with: Callable[[tuple[ChildConfigMap, ...]], Context]) -> str | None:
        """Correct the cost models; return a sentence on it. None: these steps say nothing.

        Args:
            children: of the run.
            context_with: makes the context of a pass, with documents of other runs.
        """
        self._kept.remove(*self._kept.of_roles(names.STEPS, names.CALIBRATOR))
        plan = document_in(self._directory.path, names.PLAN)
        if not isinstance(plan, PlanResult):
            return None
        workers = ChildJob(meta=Meta(name=names.WORKER), role=names.WORKER)
        key = correction_key(context_with(()), plan.model_hash)
        others = tuple(self._others(key))
        while True:
            context = context_with(others)
            context = replace(context, status=context.status.model_copy(update={"correction": None}))
            planned = Planned(summary=plan, name=names.plan(context.name, plan.hash), is_kept=True)
            drift = drift_of(context, planned)
            step = correct(TrainingWorkers(context=context, planned=planned, workers=workers, drift=drift))
            found = step.status_fields.get("correction")
            if isinstance(found, CorrectionStatus):
                return self._sentence(found)
            if not step.actions:
                report = latest(context)
                is_slow = report is not None and is_busy(report.measured)
                why = BUSY if is_slow else None if drift is None else drift.headline
                return None if why is None else f"cost models are not corrected by these steps: {why}"
            for action in step.actions:
                match action:
                    case Keep(is_shared=True, name=name):
                        others = (*others, self._left_for_later(name))
                    case Keep(name=name, role=role):
                        self._kept.put(name, files_of_reports(self._directory.train_dir), role=role, now=context.now)
                    case Start(run=CalibratorRun() as run):
                        self._calibrate(run, children)

    def _left_for_later(self, name: str) -> ChildConfigMap:
        """Leave the correction for later runs."""
        if self._inputs is not None:
            files = [path for path in sorted(self._out.rglob("*")) if path.is_file()]
            self._directory.finish(CORRECTED_STAGE, self._inputs, files)
        return _shared(name, self._out)

    def _others(self, key: str) -> Iterator[ChildConfigMap]:
        """Yield the profile, and the corrections that runs next to this one leave for others."""
        yield _shared(self.profile, self._profile)
        for _, folder in [] if self._inputs is None else _corrected(self._directory, self._inputs):
            found = document_in(folder, names.PROFILE)
            if isinstance(found, ProfileSummary):
                yield _shared(names.corrected(key, found.hash), folder)

    def _calibrate(self, run: CalibratorRun, children: Children) -> None:
        folder = self._kept.folder(run.in_force.inputs)
        reports = [folder / key for key in run.report_keys]
        children.started(run)
        try:
            _, factors = corrected(self._profile, self._directory.plan_file, reports, self._out)
        except (CostModelError, DocumentError) as error:
            self._problem = str(error)
            children.ended(run.name, ExitCode.INVALID_INPUT, f"error: {error}")
            return
        self._errors = "; ".join(
            f"{part} {PERCENT * found.mape_before:.0f} % before, {PERCENT * found.mape_after:.0f} % after"
            for part, found in factors.items()
        )
        children.ended(run.name, ExitCode.OK, "")
        self._kept.put(run.result, files_of_profile(self._out), role=run.role, now=children.now)
        children.published(run.name)

    def _sentence(self, found: CorrectionStatus) -> str:
        if not self._errors:
            return f"cost models are not corrected by these steps: {self._problem or found.message}"
        kept = "" if found.config_map_ref is not None else "; later runs take those of another run, whose error is less"
        return f"cost models corrected by these steps, for --bundle {self._out}: error of {self._errors}{kept}"


def _shared(name: str, folder: Path) -> ChildConfigMap:
    document = document_in(folder, names.PROFILE)
    return ChildConfigMap(meta=Meta(name=name), role=names.PROFILE, is_read=True, document=document)


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
