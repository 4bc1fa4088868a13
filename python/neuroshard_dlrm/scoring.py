"""What a plan from anywhere answers, and its price with what moving a few tables would give."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.documents.document import parse_data, read_data, read_text
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import CostBundle
from neuroshard_planner.baselines.torchrec import require_torchrec
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_report.explain.moves import Move, best_moves
from neuroshard_report.explain.plan import PlanExplanation, explain_plan

from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import require_no_options

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

Ask = Callable[[Algorithm], PlanRequest]
"""Gives the request of a plan that does not say what it answers, for an algorithm."""

DOCUMENT_SUFFIXES = (".json", ".yaml", ".yml", ".gz")
FIRST_BYTES = 1024  # blanks may come before a brace


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenShards:
    """Shards from anywhere, and what they answer."""

    request: PlanRequest
    tables: tuple[TablePlacement, ...]
    """On devices."""
    served: tuple[TablePlacement, ...] = ()
    """On embedding servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredPlan:
    """A plan with its price."""

    plan: Plan
    explanation: PlanExplanation
    moves: tuple[Move, ...]
    """Of up to three tables, those that save most."""


def scored_plan(given: GivenShards, *, bundle: CostBundle) -> ScoredPlan:
    """Return the price of shards; they need not fit. Raises PlanError or RequestError."""
    plan = imported_plan(given.tables, given.request, bundle=bundle, must_fit=False, served=given.served)
    return ScoredPlan(
        plan=plan, explanation=explain_plan(plan, bundle=bundle), moves=tuple(best_moves(plan, bundle=bundle))
    )


def given_plan(path: Path, options: RequestOptions, *, ask: Ask) -> GivenShards:
    """Return the request of a plan, and its shards. Raises CommandError, DocumentError, or MissingPackageError."""
    if path.name.endswith(".csv"):
        raise CommandError(f"{path}: is CSV, which a table set may be; hint: give the plan first, and then its tables")
    if not _is_document(path):
        return _torchrec_plan(path, None, ask)
    is_named = path.suffix.lower() in DOCUMENT_SUFFIXES
    raw = read_data(path) if is_named else parse_data(read_text(path), where=str(path), is_json=True)
    if TorchRecPlan.is_named_by(raw):
        return _torchrec_plan(path, TorchRecPlan.from_data(raw, where=str(path)), ask)
    return answered(GivenPlan.from_data(raw, where=str(path)), options, where=str(path))


def answered(plan: GivenPlan, options: RequestOptions, *, where: str) -> GivenShards:
    """Return the request of a plan that says it, and its shards. Raises CommandError where options say it again."""
    require_no_options(options, but=frozenset({"bundle"}), where=where)
    if plan.replication is not None:
        raise CommandError(
            f"{where}: replication: plans with groups of devices have their price from the search alone; "
            "hint: read it with `neuroshard explain`"
        )
    resolved = plan.resolved
    if plan.servers is None:
        return GivenShards(request=resolved, tables=plan.tables)
    chosen = {"tables": plan.trained_tables, "constraints": resolved.constraints}
    return GivenShards(request=plan.request.model_copy(update=chosen), tables=plan.tables, served=plan.servers.tables)


def _is_document(path: Path) -> bool:
    """Return whether a file is a document, by its name or its first character, and not a pickle."""
    if path.suffix.lower() in DOCUMENT_SUFFIXES:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(FIRST_BYTES).lstrip().startswith(b"{")


def _torchrec_plan(path: Path, exported: TorchRecPlan | None, ask: Ask) -> GivenShards:
    """Return the same of a plan in TorchRec's words; ``exported`` None: the file is a pickle."""
    request = ask(Algorithm.TORCHREC)
    require_torchrec("a plan of TorchRec's")
    from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan

    from neuroshard_dlrm.pickled_plan import read_pickled_plan

    if exported is not None and exported.groups is not None:
        raise CommandError(
            f"{path}: groups: plans with groups of devices have their price from the search alone"
            "; hint: plan the tables with `neuroshard plan --set spec.planner.shardingGroups={}`, which shows the price"
        )
    if exported is not None:
        world = (exported.world_size, exported.local_world_size)
        asked = (request.topology.num_devices, request.topology.devices_per_node)
        if world != asked:
            raise CommandError(
                f"{path}: is for {world[0]} processes, {world[1]} per node, and the devices are {asked[0]}, {asked[1]} "
                f"per node; hint: give --devices {world[0] // world[1]}x{world[1]}"
            )
        found = load_sharding_plan(exported)
    else:
        found = read_pickled_plan(path)
    return GivenShards(request=request, tables=torchrec_tables(found, request, where=str(path)))


def torchrec_tables(found: "ShardingPlan", request: PlanRequest, *, where: str) -> tuple[TablePlacement, ...]:
    """Return the shards of a plan of TorchRec's. Raises CommandError where its nodes are others than the request's."""
    from neuroshard_dlrm.torchrec_plan import node_problem, placements

    tables = placements(found, request)
    problem = node_problem(found, request.topology.devices_per_node)
    if problem is not None:
        raise CommandError(f"{where}: {problem}; hint: give the plan's own nodes, such as --devices 2x8")
    return tables
