"""Which types the tables are stored in, where the constraints permit several: decided by planning with each extreme.

    plan with the tables' own types  ->  plan with the narrowest  ->  on that placement, tables back to their own types
                                     ->  plan with the types that are left  ->  the cheaper

Narrow types halve what is read and stored, and change results. So they are taken where the tables do not fit otherwise,
or save more of a step than the cost models can distinguish; and then by as few tables as keep nearly all of that.
A table goes back where the step costs no more than the search's tolerance allows, and everything still fits.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import Alternative, ChoiceName
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.stored_types import StoredTable, StoredTypes, permitted_types, with_types
from neuroshard_api.documents.tables import DataType, Table
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.moved_bytes import priced_ms
from neuroshard_costs.shards import BYTES_PER_ELEMENT, weights_bytes

from neuroshard_planner.choices.trials import Choice, Trials, cheaper_ms, least_gain
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.plans.same_placement import cost_under
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.plan_cost import device_traffic
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.units import BoolArray
from neuroshard_planner.searches import Search

MOST_SEARCHES = 4
"""Own types, the narrowest, those next to copies, and the last: they share a work budget that is named."""
MOST_PRICED = 48
"""Sets of tables of which it is tried whether they go back to their own types."""

Types = Mapping[str, DataType]


class StoredTypeChoice(Choice):
    """The choice of types for the tables of a request.

    Args:
        asked: permits types.
        trials: of the planning.
        incumbent: the plan in force. Near it, tables keep the types that they have there, where they fit in them.

    Raises:
        RequestError: no permitted type of a table can be trained in the ways that it may be sharded.
    """

    def __init__(self, asked: PlanRequest, trials: Trials, incumbent: Incumbent | None = None) -> None:
        super().__init__(asked, trials)
        self._is_permitted = asked.constraints.has_data_types
        self._permitted = permitted = {table.name: _permitted(table, asked) for table in asked.tables.tables}
        self._own = {table.name: _own_type(table, permitted[table.name]) for table in asked.tables.tables}
        self._narrow = {name: types[-1] for name, types in permitted.items()}
        self._in_force = None if incumbent is None or not self._is_permitted else self._kept(incumbent)
        self._are_kept = False
        self._own_plan: Plan | None = None
        self._own_ms: float | None = None
        self._reason: str | None = None

    def first(self, request: PlanRequest, *, search: Search) -> Plan:
        """Return the plan in the types in force, else in the tables' own, else in the narrowest.

        Raises:
            PlannerError: as the search; InfeasibleError where the tables do not fit in the narrowest types either.
        """
        if not self._is_permitted:
            return search(request)
        if self._in_force is not None:
            with suppress(InfeasibleError):  # as where tables or inputs have grown: then types are chosen again
                found = search(_with(request, self._in_force))
                self._are_kept = True
                return found
        try:
            return search(_with(request, self._own))
        except InfeasibleError:
            if self._narrow == self._own:
                raise
            return search(_with(request, self._narrow))

    def narrowest(self, request: PlanRequest) -> PlanRequest | None:
        """Return a request with the narrowest permitted types. None: it has them, or keeps those in force."""
        is_narrow = not self._is_permitted or self._are_kept or _types_of(request) == self._narrow
        return None if is_narrow else _with(request, self._narrow)

    def taken(self, own: Plan) -> None:
        """Note that groups take the narrowest types, since they save enough of that plan."""
        self._own_ms = own.predicted.total_ms

    def decided(self, best: Plan, /) -> Plan:
        """Return the best plan; its request has the tables in its types."""
        if not self._is_permitted or self._are_kept:
            return best
        found = self._best(best)
        self._trials.decided(
            ChoiceName.STORED_TYPES, before=best, best=found, preferred="fewer narrow types cost hardly more"
        )
        return found

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with its types, under the request's own constraints."""
        if not self._is_permitted:
            return plan
        own = {table.name: table.data_type for table in self._asked.tables.tables}
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
            own_ms=self._final_own_ms(plan) if changed else self._own_ms,
            reason=None if changed else self._reason or "the types in force are the tables' own",
        )
        return plan.model_copy(update={"stored_types": decided, "tables": tables, "warnings": warnings})

    def _kept(self, incumbent: Incumbent) -> Types:
        in_force = {table.name: table.data_type for table in incumbent.tables if table.data_type is not None}
        return {
            name: in_force[name] if in_force.get(name) in self._permitted[name] else kind
            for name, kind in self._own.items()
        }

    def _best(self, best: Plan) -> Plan:
        if _types_of(best.request) != self._own:  # they do not fit in their own
            return self._widened(best, None)
        self._own_plan, self._own_ms = best, best.predicted.total_ms
        if self._narrow == self._own:
            self._reason = "no table may have a narrower type"
            return best
        narrow = self._narrowest(best)
        return best if narrow is None else self._widened(narrow, best)

    def _narrowest(self, own: Plan) -> Plan | None:
        """Return the cheapest plan with the narrowest types that saves enough; copies may have their own. None: none.

        The reason is kept.
        """
        narrowest, below_ms = _with(own.request, self._narrow), cheaper_ms(own)
        first = self._trials.tried("narrowest types", narrowest, below_ms=below_ms, gains_on=own, instead_of=own)
        found, trials = first.plan, [first]
        copies = {
            table.name: self._own[table.name]
            for table in own.tables
            if table.sharding_type is ShardingType.DATA_PARALLEL
        }
        if copies:
            request = _with(own.request, {**self._narrow, **copies})
            below_ms = cheaper_ms(own) if found is None else found.predicted.total_ms
            other = self._trials.tried("narrowest types but of copies", request, below_ms=below_ms, instead_of=own)
            found = other.plan or found
            trials.append(other)
        if found is None:
            self._reason = self._why_not(own, [each.tried for each in trials])
        return found

    def _why_not(self, own: Plan, tried: Sequence[Alternative]) -> str:
        found = [each for each in tried if each.total_ms is not None]
        if not found:
            return f"the narrowest types: {tried[0].refusal}"
        own_ms, best = own.predicted.total_ms, min(found, key=lambda each: each.total_ms or 0.0)
        saved_ms = own_ms - (best.total_ms or 0.0)
        if saved_ms > own_ms - cheaper_ms(own):
            return f"the narrowest types: {best.refusal}"
        return (
            f"the narrowest types save {saved_ms:.3f} ms ({100 * (saved_ms / own_ms if own_ms else 0.0):.1f} %), "
            f"and {100 * least_gain(own):.1f} % are asked for"
        )

    def _widened(self, narrow: Plan, own: Plan | None) -> Plan:
        """Return the plan with as few narrow types as do: where ``own`` is None, for memory alone.

        Then the step may cost what it costs on this placement with the tables' own types.
        """
        types = _types_of(narrow.request)
        narrow_ms = narrow.predicted.total_ms
        back = GoingBack(narrow, self._own, costs=self._trials.costs)
        limit_ms = narrow_ms if own is not None else max(back.own_ms, narrow_ms)
        limit_ms *= 1 + self._asked.search.shard_tolerance
        kept = back.types(limit_ms)
        if kept == types:
            return narrow
        moves_ms = priced_ms(narrow) - narrow_ms
        request = _with(narrow.request, kept)
        below_ms = math.nextafter(limit_ms + moves_ms, math.inf)
        return (
            self._trials.tried("fewest narrow types", request, below_ms=below_ms, near=narrow, instead_of=narrow).plan
            or narrow
        )

    def _final_own_ms(self, plan: Plan) -> float | None:
        """Return the cost of the tables' own types in the form that the plan has otherwise."""
        if self._own_plan is None or plan.replication is not None:
            return self._own_ms
        cost = cost_under(_with(plan.request, self._own), plan, self._own_plan, costs=self._trials.costs)
        return self._own_ms if cost is None else cost.total_ms


def _with(request: PlanRequest, types: Types) -> PlanRequest:
    return request.model_copy(update={"tables": with_types(request.tables, types)})


def _types_of(request: PlanRequest) -> Types:
    return {table.name: table.data_type for table in request.tables.tables}


class GoingBack:
    """Which tables of a plan go back from narrow types to their own, its shards as they are.

    Sets of units are tried whole, and halved where they may not go back together; those that gain least by their
    narrow type come first. What a shard adds to its device hardly depends on the types of others, so that two problems
    price all sets.
    """

    def __init__(self, plan: Plan, own: Types, *, costs: CostModel) -> None:
        self._request = plan.request
        self._types, self._own = _types_of(plan.request), own
        self._costs = costs
        problems = (Problem(plan.request, costs), Problem(_with(plan.request, own), costs))
        self._problem = problems[0]
        self._parts = [(problem, placement_of(plan.tables, problem)) for problem in problems]
        """What is placed in narrow types, and in the tables' own; shards are in one order."""
        placement = self._parts[0][1]
        self._tables = plan.tables
        self._units = problems[0].kinds.unit[placement.kinds]
        self._traffic = device_traffic(problems[0], placement)
        self._is_back = np.zeros(len(problems[0].units), dtype=np.bool_)
        self._left = MOST_PRICED

    @property
    def own_ms(self) -> float:
        """Cost of the placement with all tables in their own types."""
        return self._cost_ms(np.ones_like(self._is_back))

    def types(self, limit_ms: float) -> Types:
        """Return the types of all tables with which the step costs at most the limit, and everything fits."""
        tables, units = self._request.tables.tables, self._problem.units
        gains = _gains(tables)
        changed = [
            position
            for position, unit in enumerate(units)
            if any(self._types[tables[table].name] is not self._own[tables[table].name] for table in unit.tables)
        ]
        of_unit = [sum(gains[tables[table].name] for table in unit.tables) for unit in units]
        self._try(sorted(changed, key=lambda unit: of_unit[unit]), limit_ms)
        return self._types_with(self._is_back)

    def _try(self, units: Sequence[int], limit_ms: float) -> None:
        if not units or not self._left:
            return
        self._left -= 1
        tried = self._is_back.copy()
        tried[units] = True
        if self._cost_ms(tried) <= limit_ms and self._fits(tried):
            self._is_back = tried
            return
        if len(units) > 1:
            half = (len(units) + 1) // 2
            self._try(units[:half], limit_ms)
            self._try(units[half:], limit_ms)

    def _cost_ms(self, is_back: BoolArray) -> float:
        """Return the cost of the placement with these units in their own types."""
        of_shards = is_back[self._units]
        narrow, own = (
            problem.device_sums(placement.kinds[mine], placement.devices[mine])
            for (problem, placement), mine in zip(self._parts, (~of_shards, of_shards), strict=True)
        )
        levels = np.concatenate((self._problem.pass_levels(narrow + own), self._traffic), axis=1)
        return float(self._problem.step_cost.total_ms(levels.max(axis=0)))

    def _fits(self, is_back: BoolArray) -> bool:
        problem = Problem(_with(self._request, self._types_with(is_back)), self._costs)
        return problem.fits(placement_of(self._tables, problem))

    def _types_with(self, is_back: BoolArray) -> Types:
        tables, back = self._request.tables.tables, np.flatnonzero(is_back).tolist()
        names = (tables[table].name for unit in back for table in self._problem.units[unit].tables)
        return {**self._types, **{name: self._own[name] for name in names}}


def _gains(tables: Sequence[Table]) -> Mapping[str, float]:
    """Return a measure of what a narrow type gains by table: its share of the bytes read, and of those stored."""
    reads = {table.name: table.pooling_factor * table.embedding_dim for table in tables}
    cells = {table.name: table.num_embeddings * table.embedding_dim for table in tables}
    all_reads, all_cells = sum(reads.values()), sum(cells.values())
    return {name: reads[name] / all_reads + cells[name] / all_cells for name in reads}


def _permitted(table: Table, request: PlanRequest) -> tuple[DataType, ...]:
    """Return the types that a table may be stored in, the widest first. Raises RequestError where none is left."""
    try:
        types = permitted_types(table, request)
    except ValueError as error:
        raise RequestError(str(error)) from error
    return tuple(sorted(types, key=lambda kind: -BYTES_PER_ELEMENT[kind]))


def _own_type(table: Table, permitted: Sequence[DataType]) -> DataType:
    """Return the table's own type, or the widest where that is not permitted."""
    return table.data_type if table.data_type in permitted else permitted[0]
