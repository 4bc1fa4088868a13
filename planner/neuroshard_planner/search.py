"""The whole algorithm on one page: propose splits, place, refine, bound, and write the plan down."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from neuroshard_api.bundle import BundleManifest
from neuroshard_api.plan import BaselineCost, BundleReference, Plan, SearchStatistics
from neuroshard_api.request import Algorithm, PlanRequest

from neuroshard_planner.baselines import BASELINES
from neuroshard_planner.bounds import lower_bound_ms
from neuroshard_planner.column_split import SplitSearch
from neuroshard_planner.emission import placement_memory, table_placements
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.infeasible import infeasible
from neuroshard_planner.local_search import LocalSearch, merged
from neuroshard_planner.options import OptionTable
from neuroshard_planner.packing import Packing
from neuroshard_planner.placement import tangent
from neuroshard_planner.problem import CostModel, Placement, Problem, ShardSize
from neuroshard_planner.scoring import predicted_cost

WORK_PER_UNIT = 150  # device evaluations: the default budget ends the search after some 1.5 ms per table
LEAST_LOAD_MS = 1e-12  # far below every kernel; keeps shares of the load defined
CLOSE_ENOUGH = 0.001  # gap to the lower bound at which nothing is left to gain


class Bundle(CostModel, Protocol):
    """A cost model with its manifest, as costs.bundle_store loads it."""

    @property
    def manifest(self) -> BundleManifest:
        """What the networks are, where they come from and how far they can be trusted."""

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:
        """Return a sentence for everything in the request that the networks were not trained for."""


def plan(request: PlanRequest, *, bundle: Bundle) -> Plan:
    """Return the plan that the request asks for; equal requests and bundles give equal plans.

    Raises:
        RequestError: the request contradicts itself.
        InfeasibleError: nothing fits; the message names what binds and the smallest change that fits.
    """
    problem = Problem(request, bundle)
    if problem.memory.shard_capacity_bytes <= 0:
        raise infeasible(request, _packing(problem))
    baselines = {algorithm: _attempt(problem, algorithm) for algorithm in BASELINES}
    placed = {algorithm: found for algorithm, found in baselines.items() if isinstance(found, Placement)}
    bound_ms = lower_bound_ms(problem)
    result = find(problem, starts=list(placed.values()), bound_ms=bound_ms)
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
        tables=table_placements(problem, result.placement),
        memory=placement_memory(problem, result.placement),
        search=SearchStatistics(
            evaluations=problem.evaluations,
            placements=result.placements,
            levels=result.levels,
            improvements=result.improvements,
            budget_exhausted=result.budget_exhausted,
        ),
        request=request,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A placement and how it was found."""

    placement: Placement
    placements: int = 1
    levels: int = 0
    improvements: int = 0
    budget_exhausted: bool = False


def find(problem: Problem, *, starts: list[Placement], bound_ms: float) -> Found:
    """Search as the request says; the neural search also refines ``starts`` where they promise more.

    Raises:
        InfeasibleError: nothing fits, or the baseline that was asked for found nothing.
    """
    request = problem.request
    if request.algorithm is not Algorithm.NEUROSHARD:
        found = _attempt(problem, request.algorithm)
        if isinstance(found, InfeasibleError):
            raise found
        return Found(placement=found)
    # What the bound took is no search: on wide tables it would leave nothing of the budget.
    work_budget = problem.work + (request.search.work_budget or WORK_PER_UNIT * len(problem.units))
    mean_sums = problem.kinds.representation[problem.whole].sum(axis=0) / np.float32(problem.num_devices)
    slopes = tangent(problem, mean_sums)
    options = OptionTable(problem)
    # Where a launch hides all computing the slopes vanish; then shards weigh the same.
    loads = np.maximum((problem.kinds.representation @ slopes).sum(axis=1), LEAST_LOAD_MS)
    splits = SplitSearch(problem, options, loads=loads, work_budget=(problem.work + 2 * work_budget) // 3)
    # Merged before they are ranked: two shards of a table on one device can seem cheaper than the one they become.
    starts = [merged(problem, candidate.placement) for candidate in splits.run()] + starts
    if not starts:
        starts = [_packed(problem)]
    order = np.argsort(problem.total_ms(starts), kind="stable")[: request.search.beam_width]
    local = LocalSearch(problem, slopes=slopes, work_budget=work_budget)
    refined = [local.improve(starts[start]) for start in order]
    totals = problem.total_ms(refined)
    best, best_ms = refined[int(totals.argmin())], float(totals.min())
    generator = np.random.default_rng(request.search.seed)
    while problem.work < work_budget and best_ms > bound_ms * (1 + CLOSE_ENOUGH):
        kicked = local.improve(local.kicked(best, generator))
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


def _attempt(problem: Problem, algorithm: Algorithm) -> Placement | InfeasibleError:
    """Run a baseline; an InfeasibleError is a result like any other."""
    baseline = BASELINES.get(algorithm)
    if baseline is None:
        raise RequestError(f"algorithm: {algorithm.value!r} is not a planner of this package; use `neuroshard compare`")
    try:
        return merged(problem, baseline(problem))
    except InfeasibleError as error:
        return error


def _packing(problem: Problem) -> Packing:
    return Packing(problem.request, problem.units, problem.allowed)


def _packed(problem: Problem) -> Placement:
    """Return a placement found by memory alone."""
    packing = _packing(problem)
    pieces = packing.pack(packing.capacity_bytes)
    if pieces is None:
        raise infeasible(problem.request, packing)
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
