"""Why a table is on embedding servers: its part of their time, and the step if it were on the devices."""

from dataclasses import dataclass, replace

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.served_request import request_of_servers
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_costs.served_cost import ahead_of, next_to_servers, served_cost
from neuroshard_dense.whole_step import whole_step
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.units import even_widths
from neuroshard_planner.servers import without_served

from neuroshard_report.explain.alone import without_servers
from neuroshard_report.explain.alternatives import PlacementWithoutUnit
from neuroshard_report.explain.table import AddedPart, OtherPlacement, moves_of, next_best_of, rebuilt, splits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedShard:
    """One shard of the table."""

    process: str
    """Of a server."""
    num_columns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedTableExplanation:
    """One table of a plan that is on embedding servers."""

    name: str
    is_named: bool
    """Whether the request names it there. Else the plan chose it."""
    sharding_type: ShardingType
    parts: tuple[AddedPart, ...]
    """What it adds to the time of the servers."""
    next_best: OtherPlacement | None
    """The cheapest way to have it on the devices, all other tables staying. None: it does not fit there."""
    obstacle: str | None
    """Why it does not fit there. None: it does."""
    shards: tuple[ServedShard, ...]
    memory_bytes: int
    """Weights and optimizer state."""
    lookups_per_sample: float
    plan_total_ms: float
    verdict: str
    """One sentence: why it is there, and what the devices would take for it."""


def is_served(plan: Plan, name: str) -> bool:
    """Return whether a table is on embedding servers."""
    return plan.servers is not None and name in {table.name for table in plan.servers.tables}


def explain_served_table(plan: Plan, name: str, *, bundle: Bundle) -> ServedTableExplanation:
    """Explain a table that is on embedding servers.

    Raises:
        PlanError: the plan has problems, or was made with another bundle.
    """
    rebuilt(without_servers(plan), bundle)
    pool, served = plan.request.servers, plan.servers
    assert pool is not None, "the caller looked"
    assert served is not None, "the caller looked"
    placed = next(each for each in served.tables if each.name == name)
    table = next(each for each in plan.trained_tables.tables if each.name == name)
    moved = _Moved(plan, placed, bundle)
    options = moved.options()
    best, is_named = next_best_of(options), name in pool.tables
    if best is not None:
        total_ms = moved.total_ms(best)
        best = replace(best, total_ms=total_ms, change=total_ms / plan.predicted.total_ms - 1)
    obstacle = None if best is not None else next((each.obstacle for each in options if each.obstacle), None)
    servers_ms = 0.0 if served.predicted is None else served.predicted.total_ms
    ledger = MemoryLedger(request_of_servers(plan.request, [name]))
    memory = tables_memory(ledger, (placed,))
    reason = "since the request names it there (servers.tables)" if is_named else "which the plan chose for it"
    return ServedTableExplanation(
        name=name,
        is_named=is_named,
        sharding_type=placed.sharding_type,
        parts=(AddedPart(name="lookups and exchange of the servers", ms=servers_ms - moved.servers_ms),),
        next_best=best,
        obstacle=obstacle,
        shards=tuple(
            ServedShard(process=pool.process_name(shard.device), num_columns=shard.num_columns)
            for shard in placed.shards
        ),
        memory_bytes=sum(each.weights_bytes + each.optimizer_state_bytes for each in memory),
        lookups_per_sample=table.pooling_factor,
        plan_total_ms=plan.predicted.total_ms,
        verdict=f"is on embedding servers, {reason}; {_on_devices(best, obstacle)}",
    )


def _on_devices(best: OtherPlacement | None, obstacle: str | None) -> str:
    if best is None or best.change is None:
        return f"in the memory of the devices it has no place: {obstacle}"
    change = "grow" if best.change >= 0 else "shrink"
    where = "whole on a device" if best.num_shards == 1 else f"in {best.num_shards} shards on devices"
    return f"{where} the step would {change} by {100 * abs(best.change):.1f} %, all else staying"


class _Moved:
    """The plan with one table on the devices in place of the servers."""

    def __init__(self, plan: Plan, placed: TablePlacement, bundle: Bundle) -> None:
        served = plan.servers
        assert served is not None, "the caller looked"
        self._plan, self._bundle, self._name = plan, bundle, placed.name
        chosen = {"tables": plan.trained_tables, "constraints": plan.resolved.constraints}
        request = plan.request.model_copy(update=chosen)
        rest = tuple(each for each in served.tables if each.name != placed.name)
        names = frozenset(each.name for each in rest)
        self._problem = Problem(without_served(request, names), bundle)
        self._table = next(each for each in request.tables.tables if each.name == placed.name)
        self._servers = None
        if rest:
            far = request_of_servers(request, names)
            own = Problem(far, bundle)
            computed = predicted_cost(own, placement_of(rest, own), plan.predicted.source)
            self._servers = served_cost(request, far, rest, bundle, computed=computed)

    @property
    def servers_ms(self) -> float:
        """Time of the other tables on servers."""
        return 0.0 if self._servers is None else self._servers.total_ms

    def options(self) -> list[OtherPlacement]:
        """Return the ways to have the table on devices; their costs are without servers."""
        problem, total_ms = self._problem, self._plan.predicted.total_ms
        tables = self._tables((0,))
        index = [each.name for each in tables].index(self._name)
        unit = next(unit for unit, definition in enumerate(problem.units) if index in definition.tables)
        without = PlacementWithoutUnit(problem, placement_of(tables, problem), unit)
        return [*moves_of(problem, without, (), total_ms), *splits_of(problem, without, unit, 1, total_ms)]

    def total_ms(self, way: OtherPlacement) -> float:
        """Return the plan's cost with the table there, next to the other tables on servers."""
        tables, problem = self._tables(way.devices), self._problem
        cost = predicted_cost(problem, placement_of(tables, problem), self._plan.predicted.source)
        if self._servers is None:
            return cost.total_ms
        step = None
        if self._plan.request.looks_ahead:
            step = whole_step(problem.request, tables, embedding_ms=cost.total_ms, costs=self._bundle)
        ahead = ahead_of(self._plan.request, step, self._servers, self._bundle)
        return next_to_servers(cost, self._servers, ahead).total_ms

    def _tables(self, devices: tuple[int, ...]) -> list[TablePlacement]:
        """Return all tables on devices, this one in even blocks of columns on these."""
        widths, shards, offset = even_widths(self._table.embedding_dim, len(devices)), [], 0
        for device, width in zip(devices, widths, strict=True):
            rows = self._table.num_embeddings
            shards.append(Shard(device=device, num_rows=rows, column_offset=offset, num_columns=width))
            offset += width
        kind = ShardingType.TABLE_WISE if len(devices) == 1 else ShardingType.COLUMN_WISE
        own = TablePlacement(name=self._name, sharding_type=kind, shards=tuple(shards))
        by_name = {each.name: each for each in (*self._plan.tables, own)}
        return [by_name[table.name] for table in self._problem.request.tables.tables]
