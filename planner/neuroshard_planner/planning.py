"""The whole algorithm on one page: propose splits, place, refine, bound, and write the plan down."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from neuroshard_api.bundle import BundleManifest
from neuroshard_api.plan import BaselineCost, BundleReference, Plan, SearchStatistics, TablePlacement
from neuroshard_api.request import Algorithm, PlanRequest

from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.baselines.torchrec import torchrec_placement
from neuroshard_planner.errors import InfeasibleError, MissingPackageError, PlannerError
from neuroshard_planner.plans.tables import table_placements, tables_memory
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import CostModel, Placement, Problem, ShardSize
from neuroshard_planner.search.beam_search import SplitSearch
from neuroshard_planner.search.greedy_placement import tangent
from neuroshard_planner.search.infeasible import infeasible
from neuroshard_planner.search.local_search import LocalSearch, merged
from neuroshard_planner.search.lower_bound import lower_bound_ms
from neuroshard_planner.search.packing import Packing
from neuroshard_planner.search.perturbation import Kicks
from neuroshard_planner.search.sharding_options import OptionTable

WORK_PER_UNIT = 50  # device evaluations, times the square root of the devices: one to two milliseconds per table
MOST_WORK_PER_UNIT = 120  # 10,000 tables on 1,024 devices take three quarters of a minute
LEAST_WORK = 20_000  # about a quarter of a second: small sets are cheap to search well
TIGHT = 0.9  # share of all memory in use above which a packing is one more start
CLOSE_ENOUGH = 0.001  # gap to the lower bound at which nothing is left to gain


class Bundle(CostModel, Protocol):
    """A cost model with its manifest, as neuroshard_costs.bundle loads it."""

    @property
    def manifest(self) -> BundleManifest:
        """What the networks are, where they come from and how far they can be trusted."""

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:
        """Return a sentence for everything in the request that the networks were not trained for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A placement and how it was found."""

    placement: Placement
    placements: int = 1
    levels: int = 0
    improvements: int = 0
    budget_exhausted: bool = False


Attempts = Mapping[Algorithm, Placement | PlannerError]
"""What each baseline found, or why it found nothing."""


def plan(request: PlanRequest, *, bundle: Bundle) -> Plan:
    """Return the plan that the request asks for; equal requests and bundles give equal plans.

    Raises:
        RequestError: the request contradicts itself.
        InfeasibleError: nothing fits; the message names what binds and the smallest change that fits.
        MissingPackageError: TorchRec's planner was asked for and is not installed.
    """
    problem = Problem(request, bundle)
    if problem.memory.shard_capacity_bytes <= 0:
        raise infeasible(request, _packing(problem))
    baselines = attempts(problem)
    bound_ms = lower_bound_ms(problem)
    result = find(problem, baselines=baselines, bound_ms=bound_ms)
    tables = table_placements(problem, result.placement)
    return document(problem, bundle, result, baselines=baselines, bound_ms=bound_ms, tables=tables)


def document(
    problem: Problem,
    bundle: Bundle,
    result: Found,
    *,
    baselines: Attempts,
    bound_ms: float,
    tables: tuple[TablePlacement, ...],
) -> Plan:
    """Write a plan down: its costs, its memory and what the baselines cost.

    ``tables`` are the tables of the result's placement: the search deals out their columns itself, a plan from
    elsewhere has an order of its own.
    """
    request = problem.request
    placed = _placed(baselines)
    cost = predicted_cost(problem, result.placement, bundle.manifest.source)
    totals_ms = dict(zip(placed, problem.total_ms(list(placed.values())).tolist(), strict=True))
    return Plan(
        algorithm=request.algorithm,
        bundle=_reference(bundle),
        predicted=cost,
        lower_bound_ms=bound_ms,
        gap=cost.total_ms / bound_ms - 1 if bound_ms else 0.0,
        warnings=bundle.validity_warnings(request),
        baselines=tuple(
            BaselineCost(algorithm=algorithm, total_ms=totals_ms[algorithm])
            if isinstance(found, Placement)
            else BaselineCost(algorithm=algorithm, problem=str(found))
            for algorithm, found in baselines.items()
        ),
        tables=tables,
        memory=tables_memory(problem.memory, tables),
        search=SearchStatistics(
            evaluations=problem.evaluations,
            placements=result.placements,
            levels=result.levels,
            improvements=result.improvements,
            budget_exhausted=result.budget_exhausted,
        ),
        request=request,
    )


def find(problem: Problem, *, baselines: Attempts, bound_ms: float) -> Found:
    """Search as the request says; the neural search also refines the baselines' placements that promise more.

    Raises:
        InfeasibleError: nothing fits, or the baseline that was asked for found nothing.
        MissingPackageError: TorchRec's planner was asked for and is not installed.
    """
    request = problem.request
    if request.algorithm is not Algorithm.NEUROSHARD:
        found = baselines.get(request.algorithm) or _attempt(problem, request.algorithm)
        if isinstance(found, PlannerError):
            raise found
        return Found(placement=found)
    # What the bound took is no search: on wide tables it would leave nothing of the budget.
    work_budget = problem.work + (request.search.work_budget or _default_budget(problem))
    mean_sums = problem.kinds.representation[problem.whole].sum(axis=0) / np.float32(problem.num_devices)
    slopes = tangent(problem, mean_sums)
    options = OptionTable(problem)
    loads = (problem.kinds.representation @ slopes).sum(axis=1)
    splits = SplitSearch(problem, options, loads=loads, work_budget=(problem.work + 2 * work_budget) // 3)
    chosen = [candidate.placement for candidate in splits.run()]
    placed = list(_placed(baselines).values())
    if placed:
        chosen.append(placed[int(problem.total_ms(placed).argmin())])
    packing = _packing(problem)
    if not chosen or sum(packing.whole_bytes) > TIGHT * packing.num_usable_devices * packing.capacity_bytes:
        # Greedy placement looks at loads first; where memory binds, a packing often leads to a better plan.
        packed = _packed(problem, packing)
        chosen += [] if packed is None else [packed]
    if not chosen:
        raise infeasible(request, packing)
    local = LocalSearch(problem, slopes=slopes, work_budget=work_budget)
    refined = [local.improve(start) for start in chosen]
    totals = problem.total_ms(refined)
    best, best_ms = refined[int(totals.argmin())], float(totals.min())
    generator = np.random.default_rng(request.search.seed)
    kicks = Kicks(problem, options, slopes=slopes, generator=generator)
    while problem.work < work_budget and best_ms > bound_ms * (1 + CLOSE_ENOUGH):
        kicked = local.improve(kicks.kicked(best))
        kicked_ms = float(problem.total_ms([kicked])[0])
        if kicked_ms < best_ms:
            best, best_ms = kicked, kicked_ms
    return Found(
        placement=best,
        placements=splits.placements,
        levels=splits.levels,
        improvements=local.improvements,
        budget_exhausted=problem.work >= work_budget,
    )


def attempts(problem: Problem) -> Attempts:
    """Run every baseline that needs nothing beyond the planner."""
    return {algorithm: _attempt(problem, algorithm) for algorithm in BASELINES}


def _default_budget(problem: Problem) -> int:
    per_unit = min(MOST_WORK_PER_UNIT, WORK_PER_UNIT * problem.num_devices**0.5)
    return max(LEAST_WORK, int(per_unit * len(problem.units)))


def _attempt(problem: Problem, algorithm: Algorithm) -> Placement | PlannerError:
    """Run a baseline; finding nothing is a result like any other."""
    baseline = torchrec_placement if algorithm is Algorithm.TORCHREC else BASELINES[algorithm]
    try:
        return merged(problem, baseline(problem))
    except (InfeasibleError, MissingPackageError) as error:
        return error


def _placed(found: Attempts) -> dict[Algorithm, Placement]:
    return {algorithm: each for algorithm, each in found.items() if isinstance(each, Placement)}


def _packing(problem: Problem) -> Packing:
    return Packing(problem.request, problem.units, problem.allowed)


def _packed(problem: Problem, packing: Packing) -> Placement | None:
    """Return a placement found by memory alone."""
    pieces = packing.pack(packing.capacity_bytes)
    if pieces is None:
        return None
    units = [piece.unit for piece in pieces]
    sizes = [ShardSize(problem.units[piece.unit].num_rows, piece.num_columns) for piece in pieces]
    return Placement(
        kinds=problem.kinds_of(units, sizes), devices=np.array([piece.device for piece in pieces], dtype=np.int64)
    )


def _reference(bundle: Bundle) -> BundleReference:
    errors = {network.name: network.hold_out.mape for network in bundle.manifest.networks}
    return BundleReference(
        name=bundle.manifest.name,
        source=bundle.manifest.source,
        weights_sha256=bundle.manifest.weights_sha256,
        compute_mape=errors["compute"],
        communication_mape=max(errors["forward_communication"], errors["backward_communication"]),
    )
