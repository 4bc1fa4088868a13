"""``neuroshard score``: what a plan from anywhere costs, where it loses, and what moving a few tables would give."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.output import check_writable, print_document, print_text, write_file
from neuroshard_cli.shared.request_options import takes_request_options

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import TablePlacement
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan

DOCUMENT_SUFFIXES = (".json", ".yaml", ".yml", ".gz")
FIRST_BYTES = 1024  # blanks may come before a brace


@takes_request_options
def score(
    options: RequestOptions,
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="A plan file, or TorchRec's: an exported JSON, or a pickled ShardingPlan."),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan with its price to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON; errors are JSON too.")] = False,
) -> None:
    """Price any plan: its cost, its losses, and the gain of moving three tables.

    A plan of TorchRec's does not say what is looked up, nor on which devices: tables and devices belong to it then.
    One that needs more memory than the devices have is scored too; what is missing, and where, comes with its price.
    """
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_planner.explain.moves import best_moves
    from neuroshard_planner.explain.plan import explain_plan
    from neuroshard_planner.interop.imported_plan import imported_plan
    from neuroshard_report.terminal.explanation import render_moves, render_plan_explanation
    from rich.console import Group

    if out is not None:
        check_writable(out)
    request, tables = _given(plan, options)
    bundle = find_bundle(options.bundle, request.topology.device, any_device=options.any_device)
    scored = imported_plan(tables, request, bundle=bundle, must_fit=False)
    explanation, moves = explain_plan(scored, bundle=bundle), best_moves(scored, bundle=bundle)
    if out is not None:
        write_file(out, scored.to_json())
    if json:
        described = {"explanation": asdict(explanation), "moves": [asdict(move) for move in moves]}
        print_document(json_format.dumps({**described, "plan": json_format.loads(scored.to_json())}, indent=1) + "\n")
        return
    print_text(Group(render_plan_explanation(explanation), "", render_moves(moves)))
    if out is not None:
        say(f"plan with its price written to {out}")


def _given(path: Path, options: RequestOptions) -> "tuple[PlanRequest, tuple[TablePlacement, ...]]":
    """Return the request of a plan, and its shards."""
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan
    from neuroshard_dlrm.requests import require_no_options

    raw = _document_data(path)
    if raw is not None and not TorchRecPlan.is_named_by(raw):
        whole = GivenPlan.from_data(raw, where=str(path))
        require_no_options(options, but=frozenset({"bundle", "any_device"}), where=str(path))
        if whole.replication is not None:
            raise CommandError(
                f"{path}: replication: plans with groups of devices have their price from the search alone; "
                "hint: read it with `neuroshard explain`"
            )
        return whole.resolved, whole.tables
    return _torchrec_plan(path, None if raw is None else TorchRecPlan.from_data(raw, where=str(path)), options)


def _document_data(path: Path) -> object | None:
    """Return the data of a document, by the file's name or its first character. None: a pickle."""
    from neuroshard_api.documents.document import parse_data, read_data, read_text

    if path.suffix in DOCUMENT_SUFFIXES:
        return read_data(path)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        is_json = file.read(FIRST_BYTES).lstrip().startswith(b"{")
    return parse_data(read_text(path), where=str(path), is_json=True) if is_json else None


def _torchrec_plan(
    path: Path, exported: "TorchRecPlan | None", options: RequestOptions
) -> "tuple[PlanRequest, tuple[TablePlacement, ...]]":
    """Return the same of a plan in TorchRec's words; ``exported`` None: the file is a pickle."""
    from neuroshard_api.documents.request import Algorithm
    from neuroshard_dlrm.requests import build_request
    from neuroshard_planner.baselines.torchrec import require_torchrec
    from neuroshard_planner.interop.torchrec import node_problem, placements

    request = build_request(options, Algorithm.TORCHREC)
    require_torchrec("a plan of TorchRec's")
    if exported is not None and exported.groups is not None:
        raise CommandError(
            f"{path}: groups: plans with groups of devices have their price from the search alone"
            "; hint: plan the tables with `neuroshard plan --group-sizes`, which shows the price"
        )
    if exported is not None:
        from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan

        world = (exported.world_size, exported.local_world_size)
        asked = (request.topology.num_devices, request.topology.devices_per_node)
        if world != asked:
            raise CommandError(
                f"{path}: is for {world[0]} processes, {world[1]} per node, and the devices are {asked[0]}, {asked[1]} "
                "per node; hint: give --devices and --nodes of the plan"
            )
        found = load_sharding_plan(exported)
    else:
        from neuroshard_planner.interop.pickled_plan import read_pickled_plan

        found = read_pickled_plan(path)
    tables = placements(found, request)
    problem = node_problem(found, request.topology.devices_per_node)
    if problem is not None:
        raise CommandError(f"{path}: {problem}; hint: give --devices and --nodes of the plan")
    return request, tables
