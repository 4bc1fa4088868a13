"""The functions of Python, which call what the commands of the same names call."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.process.errors import InputError
from neuroshard_costs.bundle import CostBundle
from neuroshard_planner import pipeline
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.incumbent_file import incumbent_of, read_incumbent
from neuroshard_planner.levers import with_levers
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.server_remedy import with_servers_priced
from neuroshard_report.explain.difference import plan_difference
from neuroshard_report.explain.estimate import estimate_request
from neuroshard_report.explain.plan import explain_plan
from neuroshard_report.explain.served_table import explain_served_table, is_served
from neuroshard_report.explain.table import explain_table

from neuroshard_dlrm.arguments import (
    PathLike,
    PlanArguments,
    asks,
    in_python,
    name_of,
    options_of,
    path_of,
    source_from,
)
from neuroshard_dlrm.choices import AlgorithmChoice
from neuroshard_dlrm.comparing import TORCHREC_SECONDS, chosen_algorithms, timed_comparison
from neuroshard_dlrm.devices import bundle_of_plan, find_bundle
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.plan_file import is_plan_file, read_placement, read_plan
from neuroshard_dlrm.plans import Plan
from neuroshard_dlrm.requests import read_document, request_of
from neuroshard_dlrm.results import Comparison, Difference, Estimate, Explanation, Score, Tables
from neuroshard_dlrm.scoring import GivenShards, answered, given_plan, scored_plan, torchrec_tables

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan


@asks
def plan(
    source: object,
    *,
    algorithm: AlgorithmChoice | None = None,
    incumbent: Plan | PathLike | None = None,
    move_price: float = 0.0,
    **question: Unpack[PlanArguments],
) -> Plan:
    """Plan the placement of a model's embedding tables.

    Args:
        source: a file or a name of ``neuroshard workloads``; a list of dictionaries, a dictionary, or a DataFrame with
            the tables; a job or a request as a dictionary; a TorchRec module; or what `read` returned.
        algorithm: how to search; all but ``neuroshard`` are baselines. None: a job's own, else ``neuroshard``.
        incumbent: the plan in force, or its file; of nearly equal plans the one that moves least is taken.
        move_price: milliseconds of a step that may be given up for each GiB that does not move.
        **question: see `PlanArguments`.

    Raises:
        InputError: the arguments contradict each other.
        DocumentError: a file or a value is not valid.
        InfeasibleError: no plan fits.
    """
    if move_price and incumbent is None:
        raise InputError("move_price: is of moves from a plan in force; hint: name that plan with incumbent")
    with in_python():
        if algorithm is not None:
            chosen_algorithms((algorithm,), option="algorithm")
        request, bundle = _asked(source, question, algorithm)
        before = None if incumbent is None else _incumbent(incumbent, move_price)
    try:
        found = pipeline.plan(request, bundle=bundle, incumbent=before)
    except InfeasibleError as error:
        raise with_servers_priced(error, request, bundle=bundle) from error
    return Plan(with_levers(found, costs=bundle), bundle)


@asks
def compare(
    source: object,
    *,
    algorithms: Sequence[str] | None = None,
    torchrec_seconds: float = TORCHREC_SECONDS,
    **question: Unpack[PlanArguments],
) -> Comparison:
    """Compare algorithms on one request, by the same cost models and by the simulator of the device.

    Args:
        source: as for `plan`.
        algorithms: their names. None: all.
        torchrec_seconds: limit of TorchRec's planner, whose search grows with the tables; it needs the main thread.
        **question: see `PlanArguments`.

    Raises:
        InputError: the arguments contradict each other, or there is no such algorithm.
        DocumentError: a file or a value is not valid.
    """
    if not torchrec_seconds > 0:
        raise InputError(f"torchrec_seconds: must be above 0 (found {torchrec_seconds}); hint: leave it out")
    with in_python():
        request, bundle = _asked(source, question, Algorithm.NEUROSHARD)
        wanted = chosen_algorithms(algorithms.split(",") if isinstance(algorithms, str) else algorithms)
        lines = [timed_comparison(request, each, bundle=bundle, torchrec_seconds=torchrec_seconds) for each in wanted]
    return Comparison(request, lines)


@asks
def score(
    plan: "Plan | PathLike | ShardingPlan",  # noqa: A002, RUF100 - as the command calls it
    source: object = None,
    **question: Unpack[PlanArguments],
) -> Score:
    """Price any plan: its cost, its losses, and the gain of moving three tables.

    Args:
        plan: a plan, or its file; or TorchRec's ShardingPlan, or its file.
        source: the tables of a plan of TorchRec's, which does not say what is looked up. None: the plan says it.
        **question: see `PlanArguments`.

    Raises:
        InputError: the arguments contradict each other, or the plan.
        DocumentError: a file or a value is not valid.
    """
    with in_python():
        options = options_of(question, where=None if source is None else name_of(source))

        def ask(algorithm: Algorithm) -> PlanRequest:
            if source is None:
                raise InputError("source: is missing, a plan of TorchRec's has no tables; hint: give them and devices")
            return request_of(source_from(source, question), options, algorithm, with_dense_of_jobs=True)

        if isinstance(plan, Plan):
            given = answered(plan.document(), options, where="the plan")
        elif isinstance(plan, str | Path):
            given = given_plan(Path(plan), options, ask=ask)
        else:
            request = ask(Algorithm.TORCHREC)
            given = GivenShards(request=request, tables=torchrec_tables(plan, request, where="the plan"))
        bundle = _bundle(options, given.request)
        found = scored_plan(given, bundle=bundle)
    return Score(Plan(found.plan, bundle), Explanation(found.explanation), found.moves)


def explain(plan: Plan | PathLike, table: str | None = None, *, bundle: PathLike | None = None) -> Explanation:
    """Explain a plan, or one of its tables.

    Args:
        plan: a plan, or its file.
        table: a table's name. None: the plan as a whole.
        bundle: folder of the cost models that it was made with. None: those that made it, if it was made here, else
            those in the folder of the file, or the bundled ones of its device.

    Raises:
        DocumentError: the file is not a plan.
        RequestError: there is no such table.
        PlanError: the plan was made with other cost models.
    """
    with in_python():
        found = plan if isinstance(plan, Plan) else Plan(read_plan(path_of(plan, name="plan"), must_fit=False))
        document = found.document()
        if bundle is not None:
            costs = find_bundle(path_of(bundle, name="bundle"), document.request.topology.device)
        elif isinstance(plan, Plan):
            costs = found.costs()
        else:
            costs = bundle_of_plan(document, Path(plan))
        if table is None:
            return Explanation(explain_plan(document, bundle=costs))
        if not isinstance(table, str):
            raise InputError(f"table: is not a name (found {table!r}); hint: give the name of one of the plan's tables")
        explained = explain_served_table if is_served(document, table) else explain_table
        return Explanation(explained(document, table, bundle=costs))


@asks
def estimate(source: object, **question: Unpack[PlanArguments]) -> Estimate:
    """Return memory, lower bound, and each table's compute for tables and devices, without a search.

    Args:
        source: as for `plan`.
        **question: see `PlanArguments`.

    Raises:
        InputError: the arguments contradict each other.
        DocumentError: a file or a value is not valid.
        RequestError: the request contradicts itself.
    """
    with in_python():
        request, bundle = _asked(source, question, None)
    return Estimate(estimate_request(request, costs=bundle))


def read(path: PathLike) -> Plan | Tables:
    """Read a plan, or what can be planned from: a table set, a job, a request, or a bundled workload by its name.

    Raises:
        DocumentError: the file cannot be read, or is none of these; or the plan does not match its own request.
        RequestError: there is no such workload.
    """
    file = path_of(path, name="path")
    with in_python():
        if is_plan_file(file):
            return Plan(read_plan(file, must_fit=False))
        return Tables(read_document(str(path)))


def diff(before: Plan | PathLike, after: Plan | PathLike) -> Difference:
    """Return the changes from one plan to another: tables that moved, bytes that move, parts of the step.

    Raises:
        DocumentError: a file is not a plan.
    """
    with in_python():
        return Difference(plan_difference(_given(before, "before"), _given(after, "after")))


def _incumbent(plan: Plan | PathLike, move_price: float) -> Incumbent:
    if isinstance(plan, Plan):
        content = plan.to_json().encode()
        return incumbent_of(plan.document(), content, where="incumbent", price_ms_per_gib=move_price)
    return read_incumbent(path_of(plan, name="incumbent"), price_ms_per_gib=move_price)


def _given(plan: Plan | PathLike, name: str) -> GivenPlan:
    return plan.document() if isinstance(plan, Plan) else read_placement(path_of(plan, name=name))


def _asked(
    source: object, question: PlanArguments, algorithm: Algorithm | AlgorithmChoice | None
) -> tuple[PlanRequest, CostBundle]:
    """Return the request that the arguments stand for, and the cost models to plan with."""
    options = options_of(question, where=name_of(source))
    request = request_of(source_from(source, question), options, algorithm, with_dense_of_jobs=True)
    return request, _bundle(options, request)


def _bundle(options: RequestOptions, request: PlanRequest) -> CostBundle:
    return find_bundle(options.bundle, request.topology.device)
