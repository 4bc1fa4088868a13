"""``neuroshard plan``: from tables to a plan."""

from pathlib import Path
from typing import Annotated

import typer

from neuroshard_cli.choices import AlgorithmChoice
from neuroshard_cli.failures import CommandError
from neuroshard_cli.output import check_writable, print_document, print_text, say, write_file
from neuroshard_cli.request_options import RequestOptions, build_request, find_bundle, takes_request_options


@takes_request_options
def plan(
    options: RequestOptions,
    *,
    algorithm: Annotated[
        AlgorithmChoice, typer.Option(help="How to search; all but the first are baselines.")
    ] = "neuroshard",
    statistics: Annotated[
        Path | None,
        typer.Option(help="Inputs as a trainer counted them (input-statistics.json), in place of the table set's."),
    ] = None,
    incumbent: Annotated[
        Path | None, typer.Option(help="The plan in force; of nearly equal plans the one that moves least is taken.")
    ] = None,
    move_price: Annotated[
        float,
        typer.Option(min=0.0, help="Milliseconds of a step that may be given up for each GiB that does not move."),
    ] = 0.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON; errors are JSON too.")] = False,
) -> None:
    """Plan where the embedding tables of a model lie."""
    from neuroshard_api.input_statistics import InputStatistics
    from neuroshard_planner.explain.robustness import traffic_costs
    from neuroshard_planner.incumbent_file import read_incumbent
    from neuroshard_planner.measured_inputs import with_measured_inputs
    from neuroshard_planner.planning import plan as search
    from neuroshard_report.terminal.plan import render_plan

    if move_price and incumbent is None:
        raise CommandError("--move-price: is of moves from a plan in force\nhint: name that plan with --incumbent")
    for path in (out, report):
        if path is not None:
            check_writable(path)
    request = build_request(options, algorithm)
    bundle = find_bundle(options.bundle, request.topology.device, any_device=options.any_device)
    if statistics is not None:
        request = with_measured_inputs(request, InputStatistics.read(statistics))
    before = None if incumbent is None else read_incumbent(incumbent, price_ms_per_gib=move_price)
    found = search(request, bundle=bundle, incumbent=before)
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
