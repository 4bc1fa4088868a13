"""Cost models corrected by the steps of a run, left in its folder for later jobs on the same machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.calibrate_steps import corrected
from neuroshard_cli.failures import CommandError
from neuroshard_cli.run_directory import RunDirectory

if TYPE_CHECKING:
    from neuroshard_cli.run_result import RunResult

CORRECTED_FOLDER = "corrected"
PERCENT = 100


def correct_models(profile: Path, directory: RunDirectory, result: "RunResult") -> str | None:
    """Write the profile that a run was planned with, corrected by its steps; return a sentence on it.

    None: the run has no drift report, so no second set of steps, or was planned for another device.

    Args:
        profile: a profile's folder with a bundle in it.
        directory: of the run, whose plan has that bundle's price.
        result: of the run.
    """
    from neuroshard_api.document import DocumentError
    from neuroshard_api.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE
    from neuroshard_costs.errors import CostModelError

    reports = [directory.train_dir / name for name in (DRIFT_REPORT_FILE, STEP_REPORT_FILE)]
    if result.error_percent is None or not all(report.exists() for report in reports):
        return None
    out = directory.path / CORRECTED_FOLDER
    try:
        _, factors = corrected(profile, directory.plan_file, reports, out, is_priced_by=True)
    except (CommandError, CostModelError, DocumentError) as error:
        return f"cost models are not corrected by these steps: {error}"
    errors = "; ".join(
        f"{part} {PERCENT * found.mape_before:.0f} % before, {PERCENT * found.mape_after:.0f} % after"
        for part, found in factors.items()
    )
    return f"cost models corrected by these steps, for --bundle {out}: error of {errors}"
