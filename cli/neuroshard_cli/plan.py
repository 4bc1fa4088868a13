"""``neuroshard plan``: from tables to a plan."""

from pathlib import Path
from typing import Annotated

import typer

from neuroshard_cli.choices import AlgorithmChoice
from neuroshard_cli.output import check_writable, print_document, print_text, say, write_file
from neuroshard_cli.request_options import RequestOptions, build_request, find_bundle, takes_request_options


@takes_request_options
def plan(
    options: RequestOptions,
    algorithm: Annotated[
        AlgorithmChoice, typer.Option(help="How to search; all but the first are baselines.")
    ] = "neuroshard",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON; errors are JSON too.")] = False,
) -> None:
    """Plan where the embedding tables of a model lie."""
    from neuroshard_planner.explain.robustness import traffic_costs
    from neuroshard_planner.planning import plan as search
    from neuroshard_report.terminal.plan import render_plan

    for path in (out, report):
        if path is not None:
            check_writable(path)
    request = build_request(options, algorithm)
    bundle = find_bundle(options.bundle, request.topology.device, any_device=options.any_device)
    found = search(request, bundle=bundle)
    traffic = () if report is None else traffic_costs(found, bundle=bundle)
    if out is not None:
        write_file(out, found.to_json())
    if report is not None:
        from neuroshard_report.html.page import render_html  # the template engine takes a fifth of a start

        write_file(report, render_html(found, traffic=traffic))
    if json:
        print_document(found.to_json())
        return
    print_text(render_plan(found, traffic=traffic))
    for path, kind in ((out, "plan"), (report, "report")):
        if path is not None:
            say(f"{kind} written to {path}")
