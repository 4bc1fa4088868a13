"""``neuroshard explain``: the parts of a plan's cost, and the reasons for a table's place."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_dlrm.plan_file import read_plan

from neuroshard_cli.shared.output import print_json, print_text
from neuroshard_cli.shared.request_options import JsonOption


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table of the plan. Default: the plan as a whole.")
    ] = None,
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(help="The cost models that made the plan. Default: those in its folder, or the bundled ones."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain a plan, or one of its tables.

    For the plan: what decides the step's time, and what could lower it. For a table: its cost at its place, and
    what it would cost elsewhere.
    """
    from neuroshard_dlrm.devices import bundle_of_plan, find_bundle
    from neuroshard_report.explain.plan import explain_plan
    from neuroshard_report.explain.served_table import explain_served_table, is_served
    from neuroshard_report.explain.table import explain_table
    from neuroshard_report.terminal.explanation import render_plan_explanation, render_table_explanation

    document = read_plan(plan, must_fit=False)
    device = document.request.topology.device
    costs = bundle_of_plan(document, plan) if bundle is None else find_bundle(bundle, device)
    if table is None:
        of_plan = explain_plan(document, bundle=costs)
        fields, text = asdict(of_plan), render_plan_explanation(of_plan)
    else:
        of_table = (explain_served_table if is_served(document, table) else explain_table)(
            document, table, bundle=costs
        )
        fields, text = asdict(of_table), render_table_explanation(of_table)
    if json:
        print_json(fields)
    else:
        print_text(text)
