"""``neuroshard diff``: what changes from one plan to another."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from neuroshard_cli.shared.output import ResultFile, deliver, json_text, places_of, print_json, print_text
from neuroshard_cli.shared.request_options import JsonOption, OutOption


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A plan file.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another plan file.")],
    *,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two plans: tables that move, bytes that move, and the parts of the step that change.

    Plans of other requests are compared too, tables by their names; what the requests differ in is listed.
    """
    from neuroshard_dlrm.plan_file import read_placement
    from neuroshard_report.explain.difference import plan_difference
    from neuroshard_report.terminal.difference import render_difference

    places = places_of(out)
    found = plan_difference(read_placement(before), read_placement(after))

    def show() -> None:
        if json:
            print_json(asdict(found))
        else:
            print_text(render_difference(found))

    def page() -> str:
        from neuroshard_report.html.difference import render_difference_html

        return render_difference_html(found)

    document = ResultFile("difference", places.document, lambda: json_text(asdict(found)))
    deliver(show, document, ResultFile("report", places.page, page), says=not json)
