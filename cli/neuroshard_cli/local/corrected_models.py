"""Cost models corrected by the steps of a run, left in its folder for later runs of the same tables on this machine.

A run that would measure takes those of another run in the same parent folder, where what the measurement depends on is
equal. It keeps a copy as its own profile, so that nothing that happens to the other run changes it.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory

if TYPE_CHECKING:
    from neuroshard_cli.local.result import RunResult

CORRECTED_FOLDER = "corrected"
CORRECTED_STAGE = "corrected"
"""Record of the correction among the stages of a run."""
PERCENT = 100


def correct_models(
    profile: Path, directory: RunDirectory, result: "RunResult", *, profile_inputs: str | None = None
) -> str | None:
    """Write the profile that a run was planned with, corrected by its steps; return a sentence on it.

    None: the run was planned for another device, or has no second set of steps: no drift report, or one of the steps
    that the step report is of.

    Args:
        profile: a profile's folder with a bundle in it.
        directory: of the run, whose plan has that bundle's price.
        result: of the run.
        profile_inputs: digest of what the run's own profile depends on. None: it measured none, and later runs do not
            take the correction by themselves.
    """
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE
    from neuroshard_api.job.step_cost import is_busy
    from neuroshard_costs.errors import CostModelError
    from neuroshard_planner.step_correction import CorrectionError, SharedStepsError, corrected

    reports = [directory.train_dir / name for name in (DRIFT_REPORT_FILE, STEP_REPORT_FILE)]
    if not result.is_same_device or not all(report.exists() for report in reports):
        return None
    if is_busy(result.measured):
        return "cost models are not corrected by these steps: other work on the machine made them longer"
    out = directory.path / CORRECTED_FOLDER
    try:
        _, factors = corrected(profile, directory.plan_file, reports, out, is_priced_by=True)
    except SharedStepsError:
        return None
    except (CorrectionError, CostModelError, DocumentError) as error:
        return f"cost models are not corrected by these steps: {error}"
    if profile_inputs is not None:
        directory.finish(CORRECTED_STAGE, profile_inputs, [path for path in sorted(out.rglob("*")) if path.is_file()])
    errors = "; ".join(
        f"{part} {PERCENT * found.mape_before:.0f} % before, {PERCENT * found.mape_after:.0f} % after"
        for part, found in factors.items()
    )
    return f"cost models corrected by these steps, for --bundle {out}: error of {errors}"


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
