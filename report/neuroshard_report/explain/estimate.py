"""What is known of a request without a search: memory, the lower bound, and the compute of each table."""

from dataclasses import dataclass

from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.choices.ways_by_rows import bound_of_choices_ms
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitEstimate:
    """A table, or tables that must share a device, whole on an empty device."""

    names: tuple[str, ...]
    num_rows: int
    num_columns: int
    """And rows: of all its tables together."""
    weights_bytes: int
    optimizer_state_bytes: int
    alone_ms: float
    """Forward and backward compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEstimate:
    """A request before it is planned."""

    lower_bound_ms: float
    """No plan's embedding part takes less under the cost models."""
    source: str
    """Where the times come from, such as ``simulated:NVIDIA-H100-80GB-HBM3``."""
    least_bytes: int
    """Weights and optimizer state of all tables, each once."""
    capacity_bytes: int
    """Memory of all devices for shards, without reserve and dense part."""
    units: tuple[UnitEstimate, ...]
    """In the order of their first tables."""


def estimate_request(request: PlanRequest, *, costs: CostModel) -> RequestEstimate:
    """Return the memory, the lower bound, and the compute of each table of a request, without a search.

    Raises:
        RequestError: the request contradicts itself.
    """
    problem = Problem(request, costs)
    tables, ledger = request.tables.tables, problem.memory
    weights, state = ledger.weights_bytes(*ledger.whole), ledger.optimizer_state_bytes(*ledger.whole)
    alone_ms = problem.pass_levels(problem.kinds.representation[problem.whole]).sum(axis=1)
    units = tuple(
        UnitEstimate(
            names=tuple(tables[table].name for table in unit.tables),
            num_rows=unit.num_rows,
            num_columns=unit.num_columns,
            weights_bytes=int(weights[list(unit.tables)].sum()),
            optimizer_state_bytes=int(state[list(unit.tables)].sum()),
            alone_ms=float(compute_ms),
        )
        for unit, compute_ms in zip(problem.units, alone_ms, strict=True)
    )
    return RequestEstimate(
        lower_bound_ms=bound_of_choices_ms(request, costs),
        source=costs.manifest.source,
        least_bytes=int(ledger.least_bytes.sum()),
        capacity_bytes=max(0, ledger.shard_capacity_bytes) * request.topology.num_devices,
        units=units,
    )
