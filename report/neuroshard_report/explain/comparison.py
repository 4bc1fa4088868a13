"""All algorithms side by side on one request. Takes no times: callers time each step of the iterator."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from neuroshard_api.documents.plan_parts import PlanCost
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.whole_step import WholeStep
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_costs.served_cost import ahead_of, next_to_servers
from neuroshard_dense.whole_step import whole_step
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.errors import InfeasibleError, in_its_names
from neuroshard_planner.pipeline import plan
from neuroshard_planner.planning import Bundle, attempts, find, require_room
from neuroshard_planner.plans.tables import placement_of, table_placements
from neuroshard_planner.problem.plan_cost import predicted_cost, simulated_cost
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.by_columns import Found
from neuroshard_planner.wide_tables import column_blocks

from neuroshard_report.explain.robustness import Regret, costs_under_other_traffic, regrets


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmResult:
    """What one algorithm's placement comes to."""

    predicted: PlanCost
    """Under the bundle; carries the bundle's source."""
    simulated: PlanCost
    """By the simulator of the request's device, without noise; carries ``simulated:``."""
    step: WholeStep
    """Next to a replicated dense part, if that was counted."""
    compute_imbalance: float
    """Largest over mean predicted compute (forward and backward) of the devices: 1 is even."""
    peak_memory_bytes: int
    """The fullest device's ledger, reserve included."""
    num_split_tables: int
    """Tables with more than one shard."""
    num_shards: int
    """Shards of all tables."""
    other_traffic_ms: tuple[float, ...]
    """[draws] predicted cost where pooling factors and skews are up to 30 % off; all algorithms have the same draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One algorithm's line: an outcome, or the problem why there is none."""

    algorithm: Algorithm
    evaluations: int
    """Devices whose cost the networks evaluated on the way."""
    outcome: AlgorithmResult | None = None
    problem: str | None = None
    """A sentence; None where there is an outcome."""


def compare(
    request: PlanRequest, *, bundle: Bundle, algorithms: Sequence[Algorithm] = tuple(Algorithm)
) -> Iterator[Comparison]:
    """Give one comparison per algorithm, each worked out when it is asked for, from the start and alone.

    The request's own ``algorithm`` plays no part. The time between two items is the time of the second one's
    algorithm, its scoring included; the neural search includes the baselines that it starts from, and TorchRec's
    planner the first import of TorchRec, unless baselines.torchrec.require_torchrec was called before.

    Raises:
        RequestError: the request contradicts itself.
    """
    with in_its_names(request):
        for each in algorithms:
            yield _compared(request, each, bundle)


def regrets_of(comparisons: Iterable[Comparison]) -> dict[Algorithm, Regret]:
    """Return the regrets under other traffic of all that have an outcome, against each other."""
    costs = {each.algorithm: each.outcome.other_traffic_ms for each in comparisons if each.outcome is not None}
    return dict(zip(costs, regrets(list(costs.values())), strict=True)) if costs else {}


def _compared(request: PlanRequest, algorithm: Algorithm, bundle: Bundle) -> Comparison:
    asked = request.model_copy(update={"algorithm": algorithm})
    if asked.servers is not None:
        return _with_servers(asked, bundle)
    blocks, whole = column_blocks(asked), Problem(asked, bundle)
    problem = whole if blocks is None else Problem(blocks.request, bundle)
    try:
        require_room(whole)
        found = _found(problem)
    except (InfeasibleError, MissingPackageError) as error:
        why = request.in_its_names(str(error))
        return Comparison(algorithm=algorithm, evaluations=problem.evaluations, problem=why)
    evaluations, placement = problem.evaluations, found.placement
    if blocks is not None:
        placement = placement_of(blocks.joined(table_placements(problem, placement)), whole)
    return Comparison(algorithm=algorithm, evaluations=evaluations, outcome=_outcome(whole, placement, bundle))


def _with_servers(asked: PlanRequest, bundle: Bundle) -> Comparison:
    """Return the line of a request with embedding servers, on which a baseline has the named tables alone."""
    try:
        found = plan(asked, bundle=bundle)
    except (InfeasibleError, MissingPackageError) as error:
        return Comparison(algorithm=asked.algorithm, evaluations=0, problem=str(error))
    problem = Problem(found.resolved, bundle)
    outcome = _outcome(problem, placement_of(found.tables, problem), bundle)
    servers = None if found.servers is None else found.servers.predicted
    if servers is not None and found.step is not None:
        added_ms = found.predicted.devices[0].server_exposed_ms
        outcome = replace(
            outcome,
            predicted=found.predicted,
            simulated=next_to_servers(outcome.simulated, servers, ahead_of(asked, found.step, servers, bundle)),
            step=found.step,
            other_traffic_ms=tuple(each + added_ms for each in outcome.other_traffic_ms),
        )
    return Comparison(algorithm=asked.algorithm, evaluations=found.search.evaluations, outcome=outcome)


def _found(problem: Problem) -> Found:
    if problem.request.algorithm is not Algorithm.NEUROSHARD:
        return find(problem, baselines={}, bounds=FamilyBounds(problem))  # a baseline uses neither
    return find(problem, baselines=attempts(problem), bounds=FamilyBounds(problem))


def _outcome(problem: Problem, placement: Placement, bundle: Bundle) -> AlgorithmResult:
    predicted = predicted_cost(problem, placement, bundle.manifest.source)
    compute = [device.forward_compute_ms + device.backward_compute_ms for device in predicted.devices]
    tables = table_placements(problem, placement)
    return AlgorithmResult(
        predicted=predicted,
        simulated=simulated_cost(problem, placement),
        step=whole_step(problem.request, tables, embedding_ms=predicted.total_ms, costs=bundle),
        compute_imbalance=max(compute) * len(compute) / sum(compute),
        peak_memory_bytes=max(device.used_bytes for device in tables_memory(problem.memory, tables)),
        num_split_tables=sum(table.sharding_type is not ShardingType.TABLE_WISE for table in tables),
        num_shards=len(placement.kinds),
        other_traffic_ms=costs_under_other_traffic(problem, placement),
    )
