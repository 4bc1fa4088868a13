"""``neuroshard diff``: what changes from one plan to another."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import check_writable, print_document, print_text, write_file
from neuroshard_cli.shared.request_options import JsonOption


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A plan file.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another plan file.")],
    *,
    report: Annotated[Path | None, typer.Option(help="Write the difference to this HTML file too.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare two plans: tables that move, bytes that move, and the parts of the step that change.

    Plans of other requests are compared too, tables by their names; what the requests differ in is listed.
    """
    from neuroshard_dlrm.plan_file import read_placement
    from neuroshard_report.explain.difference import plan_difference
    from neuroshard_report.terminal.difference import render_difference

    if report is not None:
        check_writable(report)
    found = plan_difference(read_placement(before), read_placement(after))
    if report is not None:
        from neuroshard_report.html.difference import render_difference_html

        write_file(report, render_difference_html(found))
    if json:
        plain = json_format.dumps(asdict(found), indent=1, default=lambda each: each.model_dump(mode="json"))
        print_document(f"{plain}\n")
        return
    print_text(render_difference(found))
    if report is not None:
        say(f"report written to {report}")
