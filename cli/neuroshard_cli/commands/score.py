"""``neuroshard score``: what a plan from anywhere costs, where it loses, and what moving a few tables would give."""

import json as json_format
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.output import ResultFile, check_writable, deliver, print_json, print_text
from neuroshard_cli.shared.request_options import MOST_USED, JsonOption, takes_request_options


@takes_request_options("constraints", "dense")
def score(
    options: RequestOptions,
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="A plan file, or TorchRec's: an exported JSON, or a pickled ShardingPlan."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the plan with its price to this file.", rich_help_panel=MOST_USED),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Price any plan: its cost, its losses, and the gain of moving three tables.

    A plan of TorchRec's does not say what is looked up, nor on which devices: tables and devices belong to it then.
    One that needs more memory than the devices have is scored too; what is missing, and where, comes with its price.
    """
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_dlrm.requests import build_request
    from neuroshard_dlrm.scoring import given_plan, scored_plan
    from neuroshard_report.terminal.explanation import render_moves, render_plan_explanation
    from rich.console import Group

    if out is not None:
        check_writable(out)
    given = given_plan(plan, options, ask=partial(build_request, options, with_dense_of_jobs=True))
    bundle = find_bundle(options.bundle, given.request.topology.device)
    scored = scored_plan(given, bundle=bundle)
    explanation, moves = scored.explanation, scored.moves

    def show() -> None:
        if json:
            described = {"explanation": asdict(explanation), "moves": [asdict(move) for move in moves]}
            print_json({**described, "plan": json_format.loads(scored.plan.to_json())})
        else:
            print_text(Group(render_plan_explanation(explanation), "", render_moves(moves)))

    deliver(show, ResultFile("plan with its price", out, scored.plan.to_json), says=not json)
