"""One search on one page: propose splits, place, refine, bound, and write the plan down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from neuroshard_api.documents.label_names import label_warnings
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost, BundleReference, SearchStatistics, TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.process.errors import ExpectedError, MissingPackageError
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import unrepaired_widths
from neuroshard_costs.deduplication import repeating_groups
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_costs.shards import REPLICATED
from neuroshard_costs.unpriced import short_cached_calls, unmeasured_collectives

from neuroshard_planner.baselines.greedy import BASELINES, bound_placement
from neuroshard_planner.baselines.torchrec import torchrec_placement
from neuroshard_planner.bound.family_bounds import ROUNDING, FamilyBounds, single_unit_bound_ms
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.memory.infeasible import has_room, infeasible
from neuroshard_planner.memory.packing import Packing
from neuroshard_planner.plans.migration import Incumbent, Migration
from neuroshard_planner.plans.tables import is_searched, placement_of, table_placements
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import MOST_MIXED, is_too_large
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.all_families import MixedSearch, mixed, with_equal_columns
from neuroshard_planner.search.assignments import bound_to_convert
from neuroshard_planner.search.by_columns import Found, IteratedSearch
from neuroshard_planner.search.host_memory import hosted
from neuroshard_planner.search.local_search import merged
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search_state import Watch, Watched
from neuroshard_planner.wide_tables import column_blocks


class Bundle(CostModel, Protocol):
    """A cost model that knows its range, as neuroshard_costs.bundle loads it."""

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:
        """Return a sentence for everything in the request that the networks were not trained for."""


Attempts = Mapping[Algorithm, Placement | ExpectedError]
"""What each baseline found, or why it found nothing."""


def searched(
    request: PlanRequest,
    bundle: Bundle,
    incumbent: Incumbent | None,
    *,
    tuning: SearchTuning | None = None,
    watch: Watch | None = None,
) -> Plan:
    """Return the plan of a request that leaves nothing to choose but shards and devices.

    Args:
        request: what is planned.
        bundle: prices placements.
        incumbent: the plan in force, which the search starts from too and stays near.
        tuning: of the search. None: the default.
        watch: is shown how far the search is. If unset: nobody is.

    Raises:
        RequestError, InfeasibleError, MissingPackageError: as `pipeline.plan`.
    """
    blocks = column_blocks(request)
    problem = Problem(request, bundle, tuning=tuning)
    require_room(problem)
    migration = None if incumbent is None else Migration(problem, incumbent)
    if blocks is not None:
        before = None if incumbent is None else blocks.incumbent(incumbent)
        found = searched(blocks.request, bundle, before, tuning=tuning, watch=watch)
        return _joined(found, problem, bundle, tables=blocks.joined(found.tables), migration=migration)
    if problem.memory.shard_capacity_bytes <= 0:
        raise _infeasible(problem)
    baselines = attempts(problem)
    bounds = FamilyBounds(problem)
    if watch is not None:
        most_work = _budget(problem) * (2 if _is_mixed(problem) else 1)  # hardly exceeded: by columns, and of all types
        problem.watched = Watched(problem, watch, bound_ms=bounds.least_ms, most_work=most_work).priced
    result = find(problem, baselines=baselines, bounds=bounds, starts=() if migration is None else migration.start)
    if migration is not None and request.algorithm is Algorithm.NEUROSHARD:
        work = int(problem.tuning.phase_share * _budget(problem))
        result = replace(result, placement=migration.nearest(result.placement, work_budget=work))
    placed = result.placement
    tables = table_placements(problem, placed) if migration is None else migration.tables(placed)
    found = document(problem, bundle, result, baselines=baselines, tables=tables, bounds=bounds)
    return found if migration is None else found.model_copy(update={"incumbent": migration.written_down(tables)})


def searched_ms(
    request: PlanRequest, costs: Bundle, *, limit_ms: float | None = None, tuning: SearchTuning | None = None
) -> float | None:
    """Return the predicted cost of a plan of the request, of a search with loose bounds. None: none fits.

    Loose bounds exclude less than those of `searched`, and take a tenth of their time: a short search is twice as fast.

    Args:
        request: as for `searched`.
        costs: price placements.
        limit_ms: where the bound says that no plan costs less, the result is None without a search.
        tuning: of the search. None: the default.

    Raises:
        RequestError: as `searched`.
    """
    if not has_room(request):
        return None
    if column_blocks(request) is not None:
        try:
            return searched(request, costs, None, tuning=tuning).predicted.total_ms
        except InfeasibleError:
            return None
    problem = Problem(request, costs, tuning=tuning)
    if problem.memory.shard_capacity_bytes <= 0:
        return None
    bounds = FamilyBounds(problem, is_loose=True)
    if limit_ms is not None and bounds.least_ms >= limit_ms:
        return None
    found = _found(problem, baselines=attempts(problem), bounds=bounds)
    return None if found is None else float(problem.total_ms([found.placement])[0])


def baseline_ms(request: PlanRequest, costs: Bundle) -> float:
    """Return the cost of the cheapest baseline, which no plan exceeds; infinite where none fits.

    Raises:
        RequestError: the request contradicts itself.
    """
    problem = Problem(request, costs)
    return float(problem.total_ms(list(_placed(attempts(problem)).values())).min(initial=math.inf))


def refined_ms(problem: Problem, placement: Placement) -> float:
    """Return the cost of a placement after steps and conversions, in the work that they have at the end of a search."""
    search = MixedSearch(problem, options=OptionTable(problem), work_budget=_least_budget(problem))
    return float(problem.total_ms([search.refined(placement)])[0])


def _joined(
    found: Plan, problem: Problem, bundle: Bundle, *, tables: tuple[TablePlacement, ...], migration: Migration | None
) -> Plan:
    """Return the plan of a problem with these tables, which a search of their column blocks found."""
    placement = placement_of(tables, problem)
    if not problem.fits(placement):
        raise _infeasible(problem)
    joined = document(problem, bundle, Found(placement=placement), baselines={}, tables=tables)
    return joined.model_copy(
        update={
            "baselines": found.baselines,
            "search": found.search,
            "incumbent": None if migration is None else migration.written_down(tables),
        }
    )


def document(
    problem: Problem,
    bundle: Bundle,
    result: Found,
    *,
    baselines: Attempts,
    tables: tuple[TablePlacement, ...],
    bounds: FamilyBounds | None = None,
) -> Plan:
    """Write a plan down: its costs, its lower bound, its memory, and what the baselines cost.

    Args:
        problem: that the plan answers.
        bundle: prices it.
        result: of the search.
        baselines: of the problem.
        tables: of the result's placement: the search deals out their columns itself, a plan from elsewhere has an order
            of its own.
        bounds: of the problem, if the caller has them.
    """
    request = problem.request
    placed = _placed(baselines)
    cost = predicted_cost(problem, result.placement, bundle.manifest.source)
    bound_ms = _bound_ms(problem, tables, bounds or FamilyBounds(problem))
    if cost.total_ms < bound_ms <= cost.total_ms * (1 + ROUNDING):
        bound_ms = cost.total_ms  # of a placement that has no other: equal but for the order of its sums
    totals_ms = dict(zip(placed, problem.total_ms(list(placed.values())).tolist(), strict=True))
    return Plan(
        algorithm=request.algorithm,
        bundle=BundleReference.of(bundle.manifest, request.topology.device),
        predicted=cost,
        lower_bound_ms=bound_ms,
        gap=cost.total_ms / bound_ms - 1 if bound_ms else 0.0,
        warnings=(
            *bundle.validity_warnings(problem.priced),
            *unmeasured_collectives(tables, bundle.manifest),
            *label_warnings(request.tables.tables),
            *unrepaired_widths(tables, request),
            *short_cached_calls(tables, request),
            *(request.remarks or ()),
        ),
        baselines=tuple(
            BaselineCost(algorithm=algorithm, total_ms=totals_ms[algorithm])
            if isinstance(found, Placement)
            else BaselineCost(algorithm=algorithm, problem=str(found))
            for algorithm, found in baselines.items()
        ),
        tables=tables,
        memory=tables_memory(problem.memory, tables),
        deduplication=repeating_groups(request) or None,
        search=SearchStatistics(
            evaluations=problem.evaluations,
            placements=result.placements,
            levels=result.levels,
            improvements=result.improvements,
            budget_exhausted=result.budget_exhausted,
        ),
        request=request,
    )


def _bound_ms(problem: Problem, tables: Sequence[TablePlacement], bounds: FamilyBounds) -> float:
    """Return a cost that no plan goes below which cuts tables in the ways of these."""
    if not is_searched(tables, problem):
        return single_unit_bound_ms(problem)
    if all(table.sharding_type.is_by_columns for table in tables):
        return bounds.least_ms
    return max(bounds.least_ms, single_unit_bound_ms(problem))


def find(problem: Problem, *, baselines: Attempts, bounds: FamilyBounds, starts: Sequence[Placement] = ()) -> Found:
    """Search as the request says; the neural search also refines the baselines' placements that promise more.

    Args:
        problem: of the request.
        baselines: of the problem.
        bounds: of the problem.
        starts: further placements that the neural search refines; they fit.

    Raises:
        RequestError: a table may not be by columns, and the baseline or the search of so large a set cuts no other way.
        InfeasibleError: nothing fits, or the baseline that was asked for found nothing.
        MissingPackageError: TorchRec's planner was asked for and is not installed.
    """
    request = problem.request
    if request.algorithm is not Algorithm.NEUROSHARD:
        found = baselines.get(request.algorithm) or _attempt(problem, request.algorithm)
        if isinstance(found, ExpectedError):
            raise found
        return Found(placement=found)
    result = _found(problem, baselines=baselines, bounds=bounds, starts=starts)
    if result is None:
        raise _infeasible(problem)
    return result


def _found(
    problem: Problem, *, baselines: Attempts, bounds: FamilyBounds, starts: Sequence[Placement] = ()
) -> Found | None:
    """Return the result of the neural search. None: nothing fits. See `find`."""
    result: Found | None = None
    if not any(choice.is_bound for choice in problem.host_choices):
        # The search by columns starts from whole tables, also of those that may not be.
        whole = attempts(problem, is_bound=False) if bound_to_convert(problem) else baselines
        result = _in_device_memory(problem, starts=[*_placed(whole).values(), *starts], bounds=bounds)
    if any(choice.kernels for choice in problem.host_choices):
        result = hosted(problem, result, solve=_in_device_memory, work_budget=_budget(problem))
    return result


def _in_device_memory(
    problem: Problem, *, starts: Sequence[Placement] = (), bounds: FamilyBounds | None = None
) -> Found | None:
    """Search placements with all tables in device memory. None: nothing fits.

    Raises:
        RequestError: a table may not be by columns, and so large a set is searched in no other way.
    """
    forced = problem.forced_placement()
    if forced is not None:
        return Found(placement=forced) if problem.fits(forced) else None
    if not _is_mixed(problem):
        if problem.has_further_types:
            _require_by_columns(problem)
        columns, bound_ms = _by_columns(problem, starts), 0.0 if bounds is None else bounds.least_ms
        found = columns.run(bound_ms=bound_ms)
        if not problem.has_further_types:  # equal columns of a set too large for other types might come with copies
            found = with_equal_columns(problem, columns, found, bound_ms=bound_ms, work_budget=_budget(problem))
        return found
    bounds = bounds or FamilyBounds(problem)
    return mixed(problem, bounds, columns=_by_columns(problem, starts), work_budget=_budget(problem))


def _by_columns(problem: Problem, starts: Sequence[Placement]) -> IteratedSearch:
    """Return the search of placements by columns alone."""
    is_small = not problem.request.search.work_budget and _budget_by_units(problem) <= _least_budget(problem)
    most_rounds = problem.tuning.most_rounds if is_small else 0
    # What the bound took is not a search: on wide tables it would leave nothing of the budget.
    return IteratedSearch(problem, starts, work_budget=_budget(problem), most_rounds=most_rounds)


def _is_mixed(problem: Problem) -> bool:
    """Return whether placements of all families are searched."""
    return problem.has_further_types and not is_too_large(problem.request, len(problem.units))


def attempts(problem: Problem, *, is_bound: bool = True) -> Attempts:
    """Run every baseline that needs nothing beyond the planner.

    Args:
        problem: what is placed.
        is_bound: whether tables that may not be whole on a device are as the constraints let them be.
    """
    return {algorithm: _attempt(problem, algorithm, is_bound=is_bound) for algorithm in BASELINES}


def _budget(problem: Problem) -> int:
    """Return the work that the request names, or else that of a set of this size."""
    return problem.request.search.work_budget or max(_least_budget(problem), _budget_by_units(problem))


def _least_budget(problem: Problem) -> int:
    return problem.tuning.least_budget(problem.num_devices)


def _budget_by_units(problem: Problem) -> int:
    return problem.tuning.work_per_unit * len(problem.units)


def _require_by_columns(problem: Problem) -> None:
    """Do nothing if every table may be whole on a device. Raises RequestError."""
    for unit, types in zip(problem.units, problem.sharding_types, strict=True):
        if ShardingType.TABLE_WISE not in types:
            name = problem.request.tables.tables[unit.tables[0]].name
            size = f"{len(problem.units):,} tables times {problem.num_devices:,} devices"
            raise RequestError(
                f"constraints: {name!r} may be {' or '.join(sorted(types))} alone, and a set of more than "
                f"{MOST_MIXED:,} tables times devices, here {size}, is searched by columns alone"
                "; hint: add table_wise to its sharding_types"
            )


def _attempt(problem: Problem, algorithm: Algorithm, *, is_bound: bool = True) -> Placement | ExpectedError:
    """Run a baseline; finding nothing is a result like any other."""
    bound = next(
        (unit for unit, choice in zip(problem.units, problem.host_choices, strict=True) if choice.is_bound), None
    )
    if bound is not None:
        name = problem.request.tables.tables[bound.tables[0]].name
        return InfeasibleError(f"{algorithm} places no table in host memory, and {name!r} may be nowhere else")
    try:
        if algorithm is Algorithm.TORCHREC:
            return merged(problem, torchrec_placement(problem))
        return merged(problem, BASELINES[algorithm](problem, bound_placement(problem) if is_bound else None))
    except (InfeasibleError, MissingPackageError) as error:
        return error


def _placed(found: Attempts) -> dict[Algorithm, Placement]:
    return {algorithm: each for algorithm, each in found.items() if isinstance(each, Placement)}


def require_room(problem: Problem) -> None:
    """Do nothing if a baseline is asked for, or the memory `has_room`. Raises InfeasibleError."""
    if problem.request.algorithm is Algorithm.NEUROSHARD and not has_room(problem.request):
        raise _infeasible(problem)


def _infeasible(problem: Problem) -> InfeasibleError:
    packing = Packing(problem.request)
    copied = [unit for unit, types in enumerate(problem.sharding_types) if types == {ShardingType.DATA_PARALLEL}]
    sizes = [problem.row_block(unit, REPLICATED, problem.units[unit].num_columns) for unit in copied]
    copies = problem.kinds_of(copied, sizes)  # these may be new, so that what is known of kinds grows
    copy_bytes = problem.kinds.memory_bytes[copies].tolist()
    return infeasible(
        problem.request,
        packing,
        copy_bytes=dict(zip(copied, copy_bytes, strict=True)),
        has_further_types=_is_mixed(problem),
        may_be_by_columns=not bound_to_convert(problem),
    )
