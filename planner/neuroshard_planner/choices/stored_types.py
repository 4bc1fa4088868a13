"""Which types the tables are stored in, where the constraints permit several: decided by planning with each extreme.

    plan with the tables' own types  ->  plan with the narrowest  ->  on that placement, tables back to their own types
                                     ->  plan with the types that are left  ->  the cheaper

Narrow types halve what is read and stored, and change results. So they are taken where the tables do not fit otherwise,
or save more of a step than the cost models can distinguish; and then by as few tables as keep nearly all of that.
A table goes back where the step costs no more than the search's tolerance allows, and everything still fits.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.stored_types import StoredTable, StoredTypes, with_types
from neuroshard_api.documents.tables import DataType, Table
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import BYTES_PER_ELEMENT, weights_bytes

from neuroshard_planner.choices.repeats import MIN_SAVED_SHARE
from neuroshard_planner.errors import InfeasibleError, PlannerError, RequestError
from neuroshard_planner.plans.same_placement import cheaper_placement
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.search.migration import Incumbent
from neuroshard_planner.searches import Search

MOST_SEARCHES = 4
"""Own types, the narrowest, those next to copies, and the last: they share a work budget that is named."""
MOST_PRICED = 48
"""Sets of tables of which it is tried whether they go back to their own types."""

Types = Mapping[str, DataType]


def plan_with_types(request: PlanRequest, *, costs: CostModel, search: Search, incumbent: Incumbent | None) -> Plan:
    """Return the plan under the best of the types that the constraints permit; its request has the tables in these.

    Near an incumbent, tables keep the types that they have there, where they fit in them.

    Args:
        request: permits types.
        costs: price placements.
        search: finds the plan of a request with tables of given types.
        incumbent: the plan in force, which the search knows.

    Raises:
        RequestError: no permitted type of a table can be trained in the ways that it may be sharded.
        InfeasibleError: the tables do not fit in the narrowest types either.
    """
    return _StoredTypeChoice(request, costs=costs, search=search).plan(
        None if incumbent is None else _types_of(incumbent)
    )


def _types_of(incumbent: Incumbent) -> Types:
    return {table.name: table.data_type for table in incumbent.tables if table.data_type is not None}


class _StoredTypeChoice:
    """The choice of types for the tables of a request."""

    def __init__(self, request: PlanRequest, *, costs: CostModel, search: Search) -> None:
        budget = request.search.work_budget
        shared = None if budget is None else max(1, budget // MOST_SEARCHES)
        self._request = request.model_copy(update={"search": request.search.model_copy(update={"work_budget": shared})})
        self._costs = costs
        self._search = search
        self._permitted = permitted = {table.name: _permitted(table, request) for table in request.tables.tables}
        self._own = {table.name: _own_type(table, permitted[table.name]) for table in request.tables.tables}
        self._narrow = {name: types[-1] for name, types in permitted.items()}

    def plan(self, in_force: Types | None) -> Plan:
        """Return the best plan found; ``in_force``: other types than the tables' own that it has where they fit."""
        if in_force is not None:
            kept = {
                name: in_force[name] if in_force.get(name) in self._permitted[name] else kind
                for name, kind in self._own.items()
            }
            with suppress(InfeasibleError):  # as where tables or inputs have grown: then types are chosen again
                return self._decided(self._planned(kept), own_ms=None)
        try:
            own = self._planned(self._own)
        except InfeasibleError:
            if self._narrow == self._own:
                raise
            own = None
        if self._narrow == self._own:
            assert own is not None, "it was found"
            return self._decided(own, own_ms=own.predicted.total_ms, reason="no table may have a narrower type")
        narrow = self._narrowest(own)
        if narrow is None:
            assert own is not None, "otherwise it was raised"
            return self._decided(
                own, own_ms=own.predicted.total_ms, reason="no plan with the narrowest types was found"
            )
        plan, saves = self._widened(narrow, own)
        if own is None:
            return self._decided(plan, own_ms=None)
        own_ms = own.predicted.total_ms
        if not saves:
            saved_ms = own_ms - narrow.predicted.total_ms
            reason = (
                f"the narrowest types save {saved_ms:.3f} ms ({100 * (saved_ms / own_ms if own_ms else 0.0):.1f} %), "
                f"and {100 * (_least_share(own)):.1f} % are asked for"
            )
            return self._decided(own, own_ms=own_ms, reason=reason)
        return self._decided(plan, own_ms=own_ms)

    def _narrowest(self, own: Plan | None) -> Plan | None:
        """Return the cheapest plan with the narrowest types; copies, which have their own, may be among it.

        None: there is none, but one with the tables' own types. Raises PlannerError where there is neither.
        """
        try:
            found: Plan | None = self._planned(self._narrow)
        except PlannerError:
            if own is None:
                raise
            found = None
        copies = {
            table.name: self._own[table.name]
            for table in (() if own is None else own.tables)
            if table.sharding_type is ShardingType.DATA_PARALLEL
        }
        if copies:
            try:
                other = self._planned({**self._narrow, **copies})
            except PlannerError:
                return found
            if found is None or other.predicted.total_ms < found.predicted.total_ms:
                return other
        return found

    def _widened(self, narrow: Plan, own: Plan | None) -> tuple[Plan, bool]:
        """Return the plan with as few narrow types as do, and whether they save enough time.

        Where they do not, they are for memory alone: then the step may cost what it costs on this placement with the
        tables' own types.
        """
        types = self._types(narrow)
        of_own_types = self._cost_ms(narrow, self._own)
        known_ms = of_own_types if own is None else own.predicted.total_ms
        narrow_ms = narrow.predicted.total_ms
        saves = known_ms is not None and known_ms - narrow_ms >= known_ms * _least_share(narrow)
        if not saves and own is not None:
            return narrow, False
        limit_ms = narrow_ms if saves or known_ms is None else max(known_ms, narrow_ms)
        limit_ms *= 1 + self._request.search.shard_tolerance
        back = _Back(narrow, types, self._own, cost_ms=self._cost_ms, fits=self._fits, limit_ms=limit_ms)
        kept = back.types()
        if kept == types:
            return narrow, saves
        try:
            found = cheaper_placement(self._planned(kept), narrow, costs=self._costs)
        except PlannerError:
            return narrow, saves
        return (found if found.predicted.total_ms <= limit_ms else narrow), saves

    def _planned(self, types: Types) -> Plan:
        tables = with_types(self._request.tables, types)
        return self._search(self._request.model_copy(update={"tables": tables}))

    def _types(self, plan: Plan) -> Types:
        return {table.name: table.data_type for table in plan.request.tables.tables}

    @staticmethod
    def _request_with(plan: Plan, types: Types) -> PlanRequest:
        return plan.request.model_copy(update={"tables": with_types(plan.request.tables, types)})

    def _cost_ms(self, plan: Plan, types: Types) -> float | None:
        """Return the cost of a plan's placement with tables of these types. None: it cannot be run with them."""
        try:
            problem = Problem(self._request_with(plan, types), self._costs)
        except RequestError:
            return None
        return predicted_cost(problem, placement_of(plan.tables, problem), plan.predicted.source).total_ms

    def _fits(self, plan: Plan, types: Types) -> bool:
        problem = Problem(self._request_with(plan, types), self._costs)
        return problem.fits(placement_of(plan.tables, problem))

    def _decided(self, plan: Plan, *, own_ms: float | None, reason: str | None = None) -> Plan:
        """Return a plan with its types written down, under the request's own constraints."""
        own = {table.name: table.data_type for table in self._request.tables.tables}
        changed = {
            table.name: StoredTable(
                name=table.name,
                own=own[table.name],
                chosen=table.data_type,
                saved_bytes=max(0, weights_bytes(table, own[table.name]) - weights_bytes(table)),
            )
            for table in plan.request.tables.tables
            if table.data_type is not own[table.name]
        }
        tables = tuple(
            table.model_copy(update={"data_type": changed[table.name].chosen}) if table.name in changed else table
            for table in plan.tables
        )
        warnings = plan.warnings
        if changed:
            kinds = ", ".join(sorted({each.chosen.value for each in changed.values()}))
            warning = (
                f"stored_types: {len(changed)} of {len(tables)} tables are stored as {kinds}, which changes results; "
                "compare the model's quality, or leave data_types out of the constraints"
            )
            warnings = (*warnings, warning)
        decided = StoredTypes(
            tables=tuple(changed.values()),
            own_ms=own_ms,
            reason=None if changed else reason or "the types in force are the tables' own",
        )
        return plan.model_copy(update={"stored_types": decided, "tables": tables, "warnings": warnings})


class _Back:
    """Which tables of a plan go back from narrow types to their own, its shards as they are.

    Sets of tables are tried whole, and halved where they may not go back together; those that gain least by their
    narrow type come first.
    """

    def __init__(
        self,
        plan: Plan,
        narrow: Types,
        own: Types,
        *,
        cost_ms: Callable[[Plan, Types], float | None],
        fits: Callable[[Plan, Types], bool],
        limit_ms: float,
    ) -> None:
        self._plan = plan
        self._types = dict(narrow)
        self._own = own
        self._cost_ms = cost_ms
        self._fits = fits
        self._limit_ms = limit_ms
        self._left = MOST_PRICED

    def types(self) -> Types:
        """Return the types of all tables."""
        tables = self._plan.request.tables.tables
        gains = _gains(tables)
        changed = [table.name for table in tables if self._types[table.name] is not self._own[table.name]]
        self._try(sorted(changed, key=lambda name: gains[name]))
        return self._types

    def _try(self, names: Sequence[str]) -> None:
        if not names or not self._left:
            return
        self._left -= 1
        tried = {**self._types, **{name: self._own[name] for name in names}}
        cost_ms = self._cost_ms(self._plan, tried)
        if cost_ms is not None and cost_ms <= self._limit_ms and self._fits(self._plan, tried):
            self._types = tried
            return
        if len(names) > 1:
            half = (len(names) + 1) // 2
            self._try(names[:half])
            self._try(names[half:])


def _gains(tables: Sequence[Table]) -> Mapping[str, float]:
    """Return a measure of what a narrow type gains by table: its share of the bytes read, and of those stored."""
    reads = {table.name: table.pooling_factor * table.embedding_dim for table in tables}
    cells = {table.name: table.num_embeddings * table.embedding_dim for table in tables}
    all_reads, all_cells = sum(reads.values()), sum(cells.values())
    return {name: reads[name] / all_reads + cells[name] / all_cells for name in reads}


def _permitted(table: Table, request: PlanRequest) -> tuple[DataType, ...]:
    """Return the types that a table may be stored in, the widest first. Raises RequestError where none is left."""
    asked = request.constraints.data_types_of(table.name) or (table.data_type,)
    types = tuple(sorted(dict.fromkeys(asked), key=lambda kind: -BYTES_PER_ELEMENT[kind]))
    if request.constraints.sharding_types_of(table.name) != (ShardingType.DATA_PARALLEL,):
        return types
    if DataType.FP32 not in types:
        raise RequestError(
            f"constraints.data_types: table {table.name!r} may be {' or '.join(types)} alone, and data_parallel, its "
            "only sharding type, is for FP32; hint: permit FP32, or another sharding type"
        )
    return (DataType.FP32,)


def _own_type(table: Table, permitted: Sequence[DataType]) -> DataType:
    """Return the table's own type, or the widest where that is not permitted."""
    return table.data_type if table.data_type in permitted else permitted[0]


def _least_share(plan: Plan) -> float:
    """Return the share of a step that narrow types must save: the cost models' error, or a floor below it."""
    error = plan.bundle.measured_compute_mape
    return max(MIN_SAVED_SHARE, plan.bundle.compute_mape if error is None else error)
