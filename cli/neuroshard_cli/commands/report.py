"""``neuroshard report``: a plan, a run, or a job in a cluster, as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.cluster.job_page import job_page, write_live_page
from neuroshard_cli.cluster.jobs_client import ContextOption, NamespaceOption, jobs_client
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.run_page import run_page
from neuroshard_cli.shared.output import print_document, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.step_report import StepReport


def report(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file, or the folder of a run.", show_default=False)
    ] = None,
    *,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="A DLRMTrainingJob in a cluster, instead of a plan.")
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="With --job: write the file again until the job has ended.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file. Default: stdout.")] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="The cost models that the plan was made with: adds costs under other traffic, and TorchRec's own plan "
            "where it is installed."
        ),
    ] = None,
    steps: Annotated[
        Path | None, typer.Option(help="The step report of a training under the plan: adds the measured dense part.")
    ] = None,
) -> None:
    """Write a plan, or what a run or a job measured under its plan, as one HTML file.

    The file loads nothing from elsewhere, and reads well in light and dark and on paper.
    """
    _require_one_source(plan, job, watch=watch, out=out, of_plan=bundle is not None or steps is not None)
    for option, value in (("--namespace", namespace), ("--context", context)):
        if job is None and value is not None:
            raise CommandError(f"{option}: is of a job in a cluster; hint: name it with --job, or leave the option out")
    if job is not None:
        with jobs_client(context, namespace) as jobs:
            if watch and out is not None:
                for version, _ in enumerate(write_live_page(jobs, job, out)):
                    if not version:
                        say(f"report written to {out}, and again until {job} has ended")
                return
            page, _ = job_page(jobs, job)
    else:
        assert plan is not None, "one of them is given"
        page = _run_page(plan) if plan.is_dir() else _plan_page(plan, bundle=bundle, steps=steps)
    if out is None:
        print_document(page)
    else:
        write_file(out, page)
        say(f"report written to {out}")


def _require_one_source(plan: Path | None, job: str | None, *, watch: bool, out: Path | None, of_plan: bool) -> None:
    """Raise CommandError for options that do not fit what is reported."""
    if (plan is None) == (job is None):
        found = "none" if plan is None else f"{plan} and --job {job}"
        raise CommandError(f"PLAN or --job: one of them is needed, found {found}; hint: give a plan, a run, or a job")
    if watch and (job is None or out is None):
        hint = "`neuroshard run` keeps its run.html up to date by itself" if job is None else "add --out FILE"
        raise CommandError(f"--watch: needs --job and --out; hint: {hint}")
    if of_plan and (plan is None or plan.is_dir()):
        raise CommandError(
            f"{plan or job}: is a {'job' if plan is None else 'run'}, without --bundle and --steps; "
            "hint: give its plan as a file"
        )


def _run_page(folder: Path) -> str:
    directory = RunDirectory(folder)
    if not directory.plan_file.exists():
        raise CommandError(
            f"{folder}: has no {directory.plan_file.name}; hint: give the folder of `neuroshard run --run-dir`, or a "
            "plan file of `neuroshard plan --out`"
        )
    return run_page(directory)


def _plan_page(plan: Path, *, bundle: Path | None, steps: Path | None) -> str:
    from neuroshard_costs.bundle import bundle_at
    from neuroshard_dlrm.comparing import torchrec_cost
    from neuroshard_report.explain.robustness import traffic_costs
    from neuroshard_report.html.page import render_html

    document = read_plan(plan)
    measured = None if steps is None else _steps(steps, plan)
    if bundle is None:
        return render_html(document, steps=measured)
    models = bundle_at(bundle)
    traffic = traffic_costs(document, bundle=models)
    return render_html(
        document, traffic=traffic, alternatives=torchrec_cost(document.request, bundle=models), steps=measured
    )


def _steps(file: Path, plan: Path) -> "StepReport":
    """Return a step report of a plan. Raises CommandError where it is of another."""
    from neuroshard_api.documents.step_report import StepReport

    found = StepReport.read(file)
    if found.plan_sha256 != file_digest(plan):
        raise CommandError(
            f"--steps: {file} was measured under another plan than {plan}; hint: give the plan of that run"
        )
    return found
