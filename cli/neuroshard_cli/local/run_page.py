"""The page of a run from its folder: what was predicted, and what was measured so far."""

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import measured_in
from neuroshard_cli.shared.output import write_file


def run_page(directory: RunDirectory) -> str:
    """Return the page of a run; what was measured under an earlier plan is left out. Raises DocumentError."""
    from neuroshard_report.html.run_page import render_run

    steps, progress, drift = measured_in(directory)
    return render_run(read_plan(directory.plan_file), steps=steps, progress=progress, drift=drift)


def write_run_page(directory: RunDirectory, plan: GivenPlan) -> None:
    """Write the page of a run; a plan that was given without a price has none."""
    if isinstance(plan, Plan):
        write_file(directory.run_report, run_page(directory))
    else:
        directory.run_report.unlink(missing_ok=True)
