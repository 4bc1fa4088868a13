"""``neuroshard calibrate-steps``: a bundle corrected by the measured steps of a training under a plan."""

from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import check_writable, print_document, print_text


def calibrate_steps(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="Cost models: a bundle's directory, or a profile's with one in it.")
    ],
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan that was trained under.")],
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT...", help="Step reports and drift reports of its training.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new directory, of the same kind as BUNDLE.")],
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON; errors are JSON too.")] = False,
) -> None:
    """Correct cost models by the steps of a training.

    The steps of at least two reports are needed: a drift report has those after the warm-up, a step report the last
    ones. Each part of a step gets the factor between its measured and its predicted times, if that lowers the error on
    the steps of the other reports.
    """
    from neuroshard_planner.step_correction import corrected
    from neuroshard_report.terminal.bundle import render_manifest, render_step_factors

    check_writable(out, is_folder=True)
    manifest, factors = corrected(bundle, plan, reports, out)
    if json:
        print_document(manifest.to_json())
        return
    print_text(render_manifest(manifest))
    print_text(render_step_factors({str(part): found for part, found in factors.items()}))
    say(f"bundle written to {out}")
