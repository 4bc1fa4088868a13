"""Plans with embedding servers: which tables are on them, and two searches, of the tables on devices and of the others.

Servers are the third place of a table, after devices and host memory, which the search of the devices deals out between
them. The processes of the servers take the place of devices in the search of theirs. Tables are sent there in the order
of what servers take for a byte of them: large, narrow, and rarely looked-up ones first. Tables that are named are
there in any case. Where more may be chosen, sets of the first tables of that order are tried, and the set of those that
would be in host memory otherwise. Each set is bounded by the time of its servers, and by the lower bound of the
devices' plan; those that promise most are searched.
"""

from collections.abc import Callable, Iterator, Sequence

from neuroshard_api.documents.dense_layout import DenseChoices, DensePolicy
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import Alternative, ChoiceName, PlanChoice
from neuroshard_api.documents.plan_parts import IncumbentPlan, ServedTables, TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.served_request import PROCESS_BYTES, request_of_servers, without_tables
from neuroshard_api.documents.servers import MOST_LOOKUPS, ServerPolicy, table_problem
from neuroshard_api.process.hints import without_hint
from neuroshard_costs.exchanges import TransferModel
from neuroshard_costs.moved_bytes import moved_tables, priced_ms
from neuroshard_costs.served_cost import ahead_of, hidden_ms, next_to_servers, served_cost
from neuroshard_costs.servers import evenly_shared_ms
from neuroshard_dense.whole_step import whole_step, with_whole_step

from neuroshard_planner.choices.trials import cheaper_ms
from neuroshard_planner.choices.ways_by_rows import bound_of_choices_ms
from neuroshard_planner.errors import InfeasibleError, PlannerError
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.plans.same_placement import bounded
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.searches import remembered

NearSearch = Callable[[PlanRequest, Incumbent | None], Plan]
MOST_SEARCHED = 4
"""Sets of tables that are searched where one fits already."""
MOST_NAMED = 3
"""Tables that are named in a line."""
SERVER_WORK = 2000
"""Device evaluations of the search of tables on servers, where its request names no budget."""


def plan_with_servers(
    request: PlanRequest, *, search: NearSearch, costs: CostModel, incumbent: Incumbent | None
) -> Plan:
    """Return the plan of a request with embedding servers.

    Args:
        request: has the servers.
        search: returns the plan of the tables on devices, near the plan in force, and that of the tables on servers.
        costs: those of the trainers' devices.
        incumbent: the plan in force.

    Raises:
        RequestError, InfeasibleError, MissingPackageError: as `pipeline.plan`.
    """
    pool = request.servers
    assert pool is not None, "the caller looked"
    split = _Split(request, search=search, costs=costs, incumbent=incumbent)
    pinned = frozenset(pool.tables)
    if pool.policy is ServerPolicy.NEVER or request.algorithm is not Algorithm.NEUROSHARD:
        return split.plan(pinned)
    return _chosen(request, split, pinned)


def _chosen(request: PlanRequest, split: "_Split", pinned: frozenset[str]) -> Plan:
    """Return the plan with the tables on servers that the policy permits."""
    pool = request.servers
    assert pool is not None, "the caller looked"
    options = server_options(request, taken=pinned)
    sets = [pinned | {*options[:count]} for count in range(len(options) + 1)]
    tried: list[Alternative] = []
    try:
        best = split.plan(pinned)
    except InfeasibleError as error:
        if not options:
            raise InfeasibleError(_with_refusal(str(error), request, pinned)) from error
        first = _least_fitting(sets[1:], split, error)
        tried.append(Alternative(text=_named(pinned), refusal=without_hint(str(error))))
        best, start = split.plan(first), first
        tried.append(Alternative(text=_named(first), total_ms=best.predicted.total_ms))
    else:
        start = pinned
        if pool.policy is ServerPolicy.IF_NEEDED:
            return best
    before_ms = None if tried else best.predicted.total_ms
    if pool.policy is ServerPolicy.AUTO:
        own = pinned | {each.name for each in best.tables if each.compute_kernel.is_on_host and each.name in options}
        larger = [own, *_growing(sets, start)]
        if split.incumbent_names is not None and split.incumbent_names >= pinned:
            larger.insert(0, split.incumbent_names)
        best = _cheapest(best, [each for each in dict.fromkeys(larger) if each not in {start, pinned}], split, tried)
    chosen = frozenset() if best.servers is None else frozenset(each.name for each in best.servers.tables)
    written = [
        each if each.refusal is not None or each.text == _named(chosen) else _refused(each, "another set costs less")
        for each in tried
    ]
    if not written:
        return best
    choice = PlanChoice(name=ChoiceName.SERVERS, before_ms=before_ms, alternatives=tuple(written))
    return best.model_copy(update={"choices": (*(best.choices or ()), choice)})


def _with_refusal(message: str, request: PlanRequest, pinned: frozenset[str]) -> str:
    """Return the error of a request none of whose further tables may be on servers, with the reason of its largest."""
    others = [table for table in request.tables.tables if table.name not in pinned]
    largest = max(others, key=lambda each: each.num_embeddings * each.embedding_dim)
    problem = table_problem(request, largest)
    why = (
        f"{largest.name!r} exceeds their memory or lookups, or is the last on devices"
        if problem is None
        else without_hint(problem).split(": ", 1)[1]
    )
    found, *hint = message.split("; hint: ", 1)
    return "; hint: ".join([f"{found}; and no further table may be on servers: {why}", *hint])


def _refused(alternative: Alternative, refusal: str) -> Alternative:
    return alternative.model_copy(update={"refusal": refusal})


def _growing(sets: Sequence[frozenset[str]], start: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield larger sets, each of twice as many further tables, and the largest."""
    begin = sets.index(start) if start in sets else 0
    step = 1
    while begin + step < len(sets):
        yield sets[begin + step]
        step *= 2
    yield sets[-1]


def _cheapest(best: Plan, sets: Sequence[frozenset[str]], split: "_Split", tried: list[Alternative]) -> Plan:
    """Return the cheapest of a plan and those with these tables on servers, and record what was tried."""
    bounded = []
    for names in sets:
        try:
            bounded.append((split.bound_ms(names), len(names), names))
        except PlannerError as error:
            tried.append(Alternative(text=_named(names), refusal=without_hint(str(error))))
    searched = 0
    for bound_ms, _, names in sorted(bounded, key=lambda each: each[:2]):
        total_ms = refusal = None
        if bound_ms >= cheaper_ms(best):
            refusal = f"no plan of it takes less than {bound_ms:.3f} ms"
        elif searched == MOST_SEARCHED:
            refusal = f"{MOST_SEARCHED} sets with lower bounds were searched"
        else:
            searched += 1
            try:
                found = split.plan(names)
            except PlannerError as error:
                refusal = without_hint(str(error))
            else:
                total_ms = found.predicted.total_ms
                if priced_ms(found) < cheaper_ms(best):
                    best = found
                else:
                    refusal = f"its best plan takes {total_ms:.3f} ms"
        tried.append(Alternative(text=_named(names), total_ms=total_ms, bound_ms=bound_ms, refusal=refusal))
    return best


def _least_fitting(sets: Sequence[frozenset[str]], split: "_Split", error: InfeasibleError) -> frozenset[str]:
    """Return the smallest of ascending sets with a plan, as far as doubling and halving find it. Raises ``error``."""
    last = len(sets) - 1
    low, high = -1, min(0, last)
    while high == -1 or not split.fits(sets[high]):
        if high == last:
            raise error
        low, high = high, min(2 * high + 1, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if split.fits(sets[middle]) else (middle, high)
    return sets[high]


def _named(names: frozenset[str]) -> str:
    first = sorted(names)[:MOST_NAMED]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"on servers: {', '.join(first) or 'none'}{more}"


def server_options(request: PlanRequest, *, taken: frozenset[str] = frozenset()) -> Sequence[str]:
    """Return the names of tables that may be on a request's servers, those first that cost least for a byte.

    They are as many as the servers have memory for, and answer lookups of; one table stays on devices.

    Args:
        request: has the servers.
        taken: names of tables that are on them already.
    """
    pool = request.servers
    assert pool is not None, "the caller looked"
    tables = {table.name: table for table in request.tables.tables}
    bytes_of = dict(zip(tables, memory_ledger(request).least_bytes.tolist(), strict=True))
    held = [bytes_of[name] for name in tables if name in taken]
    lookups = MOST_LOOKUPS * pool.count - sum(tables[name].pooling_factor for name in tables if name in taken)
    options = [name for name in tables if name not in taken and table_problem(request, tables[name]) is None]
    found: list[str] = []
    for name in sorted(options, key=lambda name: (evenly_shared_ms(tables[name], request) / bytes_of[name], name)):
        with_it, own_lookups = [*held, bytes_of[name]], tables[name].pooling_factor
        of_process = pool.bytes_per_process - PROCESS_BYTES
        room = pool.num_processes * (of_process - min(max(with_it), of_process // 2))  # a copy in checkpoints
        if sum(with_it) <= room and own_lookups <= lookups:
            held, lookups = with_it, lookups - own_lookups
            found.append(name)
    return found[: max(0, len(tables) - len(taken) - 1)]


def without_served(request: PlanRequest, names: frozenset[str]) -> PlanRequest:
    """Return the request of the tables that are left on devices."""
    if not names:
        return request.model_copy(update={"servers": None})
    near = without_tables(request, names)
    if near.dense is None:
        return near
    # A sharded dense part would be gathered by all ranks.
    choices = near.dense_choices or DenseChoices()
    return near.model_copy(update={"dense_choices": choices.model_copy(update={"policy": DensePolicy.REPLICATE})})


def priced_servers(request: PlanRequest, far: PlanRequest, served: Plan, costs: TransferModel) -> ServedTables:
    """Return tables on servers with their price.

    Args:
        request: with the servers.
        far: of the tables on servers, whose processes take the place of devices.
        served: a plan of it.
        costs: those of the trainers' devices.
    """
    predicted = served_cost(request, far, served.tables, costs, computed=served.predicted)
    return ServedTables(tables=served.tables, predicted=predicted, memory=served.memory)


def with_servers(plan: Plan, request: PlanRequest, served: ServedTables, costs: TransferModel) -> Plan:
    """Return the plan of the tables on devices with those on servers, and the times of both.

    Args:
        plan: of the tables on devices.
        request: with the servers.
        served: tables on them, with a price.
        costs: those of the plan.
    """
    assert served.predicted is not None, "the caller priced it"
    ahead = ahead_of(request, plan.step, served.predicted, costs)
    predicted = next_to_servers(plan.predicted, served.predicted, ahead)
    # Of the tables on devices next to servers: slower devices hide as much more of them.
    baselines = tuple(
        each if each.total_ms is None else each.model_copy(update={"total_ms": max(each.total_ms, predicted.total_ms)})
        for each in plan.baselines
    )
    changes = {"request": request, "servers": served, "predicted": predicted, "baselines": baselines}
    return with_whole_step(bounded(plan, plan.lower_bound_ms, **changes), costs=costs)


class _Split:
    """Plans of one request by the tables on its servers, each made once."""

    def __init__(
        self, request: PlanRequest, *, search: NearSearch, costs: CostModel, incumbent: Incumbent | None
    ) -> None:
        self._request = request
        self._search = search
        self._costs = costs
        self._incumbent = incumbent
        self.plan = remembered(self._planned)
        """Returns the plan with these tables on servers. Raises InfeasibleError."""
        self._on_servers = remembered(self._served)
        """Returns these tables on servers, with their price. Raises InfeasibleError."""

    @property
    def incumbent_names(self) -> frozenset[str] | None:
        """The tables that are on servers in the plan in force. None: there is none, or it is of other tables."""
        before = self._incumbent
        if before is None or {each.name for each in (*before.tables, *before.served)} != {
            table.name for table in self._request.tables.tables
        }:
            return None
        return frozenset(each.name for each in before.served)

    def fits(self, names: frozenset[str]) -> bool:
        """Return whether there is a plan with these tables on servers."""
        try:
            self.plan(names)
        except InfeasibleError:
            return False
        return True

    def bound_ms(self, names: frozenset[str]) -> float:
        """Return a cost that no plan with these tables on servers is seen to go below. Raises PlannerError."""
        predicted = self._on_servers(names).predicted
        assert predicted is not None, "it was priced"
        bound_ms = bound_of_choices_ms(without_served(self._request, names), self._costs)
        # With lookahead a dense part hides servers as well, and no time of theirs is certain to be seen.
        return bound_ms if self._request.looks_ahead else max(predicted.total_ms, bound_ms)

    def _served(self, names: frozenset[str]) -> ServedTables:
        far = request_of_servers(self._request, names)
        budget = self._request.search.work_budget or SERVER_WORK
        far = far.model_copy(update={"search": far.search.model_copy(update={"work_budget": budget})})
        try:
            served = self._search(far, None)
        except InfeasibleError as error:
            raise InfeasibleError(
                f"the tables on embedding servers do not fit, where each of {far.topology.num_devices} processes is a "
                f"device: {without_hint(str(error))}; hint: give more servers or memory, or leave tables on the "
                "trainers' devices (servers.tables)"
            ) from error
        return priced_servers(self._request, far, served, self._costs)

    def _planned(self, names: frozenset[str]) -> Plan:
        served = self._on_servers(names) if names else None
        before, known = self._incumbent, self.incumbent_names
        found = self._search(without_served(self._request, names), before if known == names else None)
        if served is None:
            found = found.model_copy(update={"request": self._request})
        else:
            found = with_servers(found, self._request, served, self._costs)
        if before is None or known is None:
            return found
        return found.model_copy(update={"incumbent": self._written_down(found, before, known)})

    def _written_down(self, plan: Plan, before: Incumbent, names: frozenset[str]) -> IncumbentPlan:
        """Return the plan in force with its cost under this request, and the tables that move, also to servers."""
        problem = Problem(without_served(self._request, names), self._costs)
        placement = placement_of(before.tables, problem)
        cost = predicted_cost(problem, placement, plan.predicted.source)
        total_ms, fits = cost.total_ms, problem.fits(placement)
        if names:
            far = request_of_servers(self._request, names)
            priced = Problem(far, self._costs)
            own = placement_of(before.served, priced)
            computed = predicted_cost(priced, own, plan.predicted.source)
            servers = served_cost(self._request, far, before.served, self._costs, computed=computed)
            step = None
            if self._request.looks_ahead:
                step = whole_step(problem.request, before.tables, embedding_ms=cost.total_ms, costs=self._costs)
            total_ms += servers.total_ms - hidden_ms(cost, servers, ahead_of(self._request, step, servers, self._costs))
            fits = fits and priced.fits(own)
        earlier = self._all_places(before.tables, before.served)
        later = self._all_places(plan.tables, () if plan.servers is None else plan.servers.tables)
        return IncumbentPlan(
            plan_sha256=before.plan_sha256,
            total_ms=total_ms,
            fits=fits,
            price_ms_per_gib=before.price_ms_per_gib,
            moved=moved_tables(earlier, later, self._request),
        )

    def _all_places(
        self, tables: Sequence[TablePlacement], served: Sequence[TablePlacement]
    ) -> Sequence[TablePlacement]:
        """Return all tables in the request's order, processes of servers numbered after the devices."""
        first, found = self._request.topology.num_devices, {each.name: each for each in tables}
        for each in served:
            shards = tuple(shard.model_copy(update={"device": shard.device + first}) for shard in each.shards)
            found[each.name] = each.model_copy(update={"shards": shards})
        return [found[table.name] for table in self._request.tables.tables]
