"""What a placement costs when the traffic is not what was planned for: pooling factors and skew off by a share.

Statistics of a sample drift. Each draw multiplies every table's pooling factor and Zipf exponent by factors of its own;
the placement stays. A measured reuse histogram is kept, and rescaled by the lookups. Memory is not judged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_costs.reuse.shard_arrays import zipf_exponent
from neuroshard_costs.shards import FloatArray
from neuroshard_planner.planning import Bundle, attempts
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Placement, Problem

from neuroshard_report.explain.table import rebuilt

DEVIATION = 0.3
NUM_DRAWS = 8
MOST_POOLING = 1e5  # what a table set may say
MOST_EXPONENT = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Regret:
    """Share of a placement's cost above the cheapest of all that were compared, in the same draw of other traffic."""

    median: float
    worst: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficCost:
    """Cost of one way to shard where pooling factors and skews are up to 30 % off, over seeded draws."""

    algorithm: Algorithm
    median_ms: float
    worst_ms: float
    median_regret: float
    """Share of the cost above the cheapest of all that were compared, in the same draw."""
    worst_regret: float


def costs_under_other_traffic(
    problem: Problem, placement: Placement, *, num_draws: int = NUM_DRAWS
) -> tuple[float, ...]:
    """Return [draws] the cost of a placement under other traffic; equal requests are drawn alike."""
    draws = other_traffic(problem.request, num_draws=num_draws)
    return tuple(total_under(drawn, problem, placement) for drawn in draws)


def regrets(costs_ms: Sequence[Sequence[float]]) -> list[Regret]:
    """Return the regret of each of the placements with these costs [placements, draws]."""
    costs: FloatArray = np.array(costs_ms)
    shares = costs / costs.min(axis=0) - 1
    return [Regret(median=float(np.median(each)), worst=float(each.max())) for each in shares]


def other_traffic(request: PlanRequest, *, num_draws: int, deviation: float = DEVIATION) -> Iterator[PlanRequest]:
    """Give the request with other pooling factors and skews, by the request's own seed.

    Args:
        request: what was planned for.
        num_draws: requests given.
        deviation: factors are uniform between 1 less this and 1 plus this.
    """
    for draw in range(num_draws):
        generator = np.random.default_rng([request.search.seed, draw])
        factors = generator.uniform(1 - deviation, 1 + deviation, size=(len(request.tables.tables), 2)).tolist()
        members = tuple(
            _table(table, request.tables, pooling, skew)
            for table, (pooling, skew) in zip(request.tables.tables, factors, strict=True)
        )
        yield request.model_copy(update={"tables": request.tables.model_copy(update={"tables": members})})


def traffic_costs(plan: Plan, *, bundle: Bundle, num_draws: int = NUM_DRAWS) -> tuple[TrafficCost, ...]:
    """Return the costs of the plan, then of each baseline, under other traffic; none of a plan with groups.

    Raises:
        PlanError: the plan has problems, or was made with another bundle.
    """
    if plan.replication is not None:
        return ()  # the baselines are not those of a group
    problem, placement = rebuilt(plan, bundle)
    placements = {plan.algorithm: placement}
    for algorithm, found in attempts(problem).items():
        if isinstance(found, Placement):
            placements.setdefault(algorithm, found)
    draws = other_traffic(plan.resolved, num_draws=num_draws)
    costs: FloatArray = np.array([totals_under(drawn, problem, list(placements.values())) for drawn in draws])
    return tuple(
        TrafficCost(
            algorithm=algorithm,
            median_ms=float(np.median(costs[:, column])),
            worst_ms=float(costs[:, column].max()),
            median_regret=regret.median,
            worst_regret=regret.worst,
        )
        for column, (algorithm, regret) in enumerate(zip(placements, regrets(costs.T.tolist()), strict=True))
    )


def total_under(drawn: PlanRequest, problem: Problem, placement: Placement) -> float:
    """Return the cost of a problem's placement under another request with the same tables and devices."""
    return totals_under(drawn, problem, [placement])[0]


def totals_under(drawn: PlanRequest, problem: Problem, placements: Sequence[Placement]) -> list[float]:
    """Return the costs of a problem's placements under another request with the same tables and devices."""
    costs: CostModel = problem.costs
    other = Problem(drawn, costs)
    kinds = problem.kinds
    moved = []
    for placement in placements:
        units = kinds.unit[placement.kinds].tolist()
        moved.append(
            Placement(kinds=other.kinds_of(units, problem.sizes_of(placement.kinds)), devices=placement.devices)
        )
    totals: list[float] = other.total_ms(moved).tolist()
    return totals


def _table(table: Table, tables: TableSet, pooling: float, skew: float) -> Table:
    update: dict[str, float] = {"pooling_factor": min(table.pooling_factor * pooling, MOST_POOLING)}
    if table.reuse_histogram is None:
        update["zipf_exponent"] = min(zipf_exponent(table, tables) * skew, MOST_EXPONENT)
    return table.model_copy(update=update)
