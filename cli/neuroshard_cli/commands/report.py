"""``neuroshard report``: a plan, a run, or a job in a cluster, as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.cluster.job_page import job_page, write_live_page
from neuroshard_cli.cluster.jobs_client import NamespaceOption, jobs_client, names_job
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.run_page import run_page
from neuroshard_cli.shared.output import print_document, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.step_report import StepReport


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|RUN_DIR|JOB",
            help="A plan file, the folder of a run, or the name of a DLRMTrainingJob in a cluster.",
        ),
    ],
    *,
    namespace: NamespaceOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Of a JOB: write the file again until the job has ended.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file. Default: stdout.")] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="The cost models that the plan was made with: adds costs under other traffic, and TorchRec's own plan "
            "where it is installed."
        ),
    ] = None,
) -> None:
    """Write a plan, or what a run or a job measured under its plan, as one HTML file.

    The file loads nothing from elsewhere, and reads well in light and dark and on paper.
    """
    is_job = names_job(source, namespace=namespace)
    _require_fitting_options(source, is_job=is_job, watch=watch, out=out, of_plan=bundle is not None)
    if is_job:
        with jobs_client(namespace) as jobs:
            if watch and out is not None:
                for version, _ in enumerate(write_live_page(jobs, source, out)):
                    if not version:
                        say(f"report written to {out}, and again until {source} has ended")
                return
            page, _ = job_page(jobs, source)
    else:
        plan = Path(source)
        page = _run_page(plan) if plan.is_dir() else _plan_page(plan, bundle=bundle)
    if out is None:
        print_document(page)
    else:
        write_file(out, page)
        say(f"report written to {out}")


def _require_fitting_options(source: str, *, is_job: bool, watch: bool, out: Path | None, of_plan: bool) -> None:
    """Raise CommandError for options that do not fit what is reported."""
    if watch and (not is_job or out is None):
        hint = "add --out FILE" if is_job else "`neuroshard run` keeps its run.html up to date by itself"
        raise CommandError(f"--watch: needs a job in a cluster, and --out; hint: {hint}")
    if of_plan and (is_job or Path(source).is_dir()):
        raise CommandError(
            f"{source}: is a {'job' if is_job else 'run'}, without --bundle; hint: give its plan as a file"
        )


def _run_page(folder: Path) -> str:
    directory = RunDirectory(folder)
    if not directory.plan_file.exists():
        raise CommandError(
            f"{folder}: has no {directory.plan_file.name}; hint: give the folder of `neuroshard run --run-dir`, or a "
            "plan file of `neuroshard plan --out`"
        )
    return run_page(directory)


def _plan_page(plan: Path, *, bundle: Path | None) -> str:
    from neuroshard_costs.bundle import bundle_at
    from neuroshard_dlrm.comparing import torchrec_cost
    from neuroshard_report.explain.robustness import traffic_costs
    from neuroshard_report.html.page import render_html

    document = read_plan(plan)
    measured = _steps(plan)
    if bundle is None:
        return render_html(document, steps=measured)
    models = bundle_at(bundle)
    traffic = traffic_costs(document, bundle=models)
    return render_html(
        document, traffic=traffic, alternatives=torchrec_cost(document.request, bundle=models), steps=measured
    )


def _steps(plan: Path) -> "StepReport | None":
    """Return the step report of a training under a plan, in its folder or in train/. None: there is none."""
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.stage_commands import STEP_REPORT_FILE

    files = (plan.parent / STEP_REPORT_FILE, plan.parent / "train" / STEP_REPORT_FILE)
    found = (StepReport.read(file) for file in files if file.exists())
    return next((report for report in found if report.plan_sha256 == file_digest(plan)), None)
