"""``neuroshard report``: a plan as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from neuroshard_cli.output import print_document, say, write_file
from neuroshard_cli.plan_file import read_plan


def report(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file. Default: stdout.")] = None,
) -> None:
    """Write a plan as one HTML file.

    The file loads nothing from elsewhere, and reads well in light and dark and on paper.
    """
    from neuroshard_report.html.page import render_html

    page = render_html(read_plan(plan))
    if out is None:
        print_document(page)
    else:
        write_file(out, page)
        say(f"report written to {out}")
