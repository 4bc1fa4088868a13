"""``neuroshard report``: a plan, or a run, as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.run_page import run_page
from neuroshard_cli.shared.output import print_document, write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.step_report import StepReport


def report(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, or the folder of a run.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file. Default: stdout.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="The cost models that the plan was made with: adds costs under other traffic.")
    ] = None,
    steps: Annotated[
        Path | None, typer.Option(help="The step report of a training under the plan: adds the measured dense part.")
    ] = None,
) -> None:
    """Write a plan, or what a run measured under its plan, as one HTML file.

    The file loads nothing from elsewhere, and reads well in light and dark and on paper.
    """
    from neuroshard_costs.bundle import load_bundle
    from neuroshard_planner.explain.robustness import traffic_costs
    from neuroshard_report.html.page import render_html

    if plan.is_dir():
        if bundle is not None or steps is not None:
            raise CommandError(f"{plan}: is a run's folder, without --bundle and --steps; hint: give its plan.json")
        page = run_page(RunDirectory(plan))
    else:
        document = read_plan(plan)
        traffic = () if bundle is None else traffic_costs(document, bundle=load_bundle(bundle))
        page = render_html(document, traffic=traffic, steps=None if steps is None else _steps(steps, plan))
    if out is None:
        print_document(page)
    else:
        write_file(out, page)
        say(f"report written to {out}")


def _steps(file: Path, plan: Path) -> "StepReport":
    """Return a step report of a plan. Raises CommandError where it is of another."""
    from neuroshard_api.documents.step_report import StepReport

    found = StepReport.read(file)
    if found.plan_sha256 != file_digest(plan):
        raise CommandError(
            f"--steps: {file} was measured under another plan than {plan}; hint: give the plan of that run"
        )
    return found
