"""Which collections of tables of means alone are sharded by rows: decided by planning each way.

    no rows cut  ->  all by rows  ->  the cheaper, with one collection at a time the other way while that is cheaper

TorchRec computes means rightly where they are whole, cut by columns, or copied, and where all tables of a collection
have mean pooling and are row_wise or table_row_wise. No step of the search leads from one to the other, so that each
way is a request of its own: a choice of the collections that are by rows. Results are the same: any gain counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import Alternative, ChoiceName, PlanChoice
from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import BY_ROWS, collections_of
from neuroshard_costs.moved_bytes import priced_ms

from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import default_types
from neuroshard_planner.search.bounds import FamilyBounds, single_unit_bound_ms
from neuroshard_planner.searches import Search

MOST_CHOSEN = 4
"""Collections that are tried one at a time, and of which all choices are bounded; their bounds double with each."""

Rows = Mapping[str, TableConstraints]
"""Constraints of the tables of a collection that let it be by rows alone."""


def cheaper_with_means(request: PlanRequest, *, costs: CostModel, search: Search) -> Plan:
    """Return the cheapest plan that is found with collections of means by columns and by rows.

    Its request is that of the way it is of; its bound holds for that way alone (`bound_of_choices_ms`). Its ``choices``
    have the ways that were tried.

    Args:
        request: of any tables; without a collection of means alone, the search's plan of it is returned.
        costs: price placements.
        search: finds the plan of a request, in which a table of means is by rows only where its constraints name rows.

    Raises:
        PlannerError: as the search.
    """
    collections = means_by_rows(request, default_types(request, costs.manifest))
    if not collections:
        return search(request)

    alternatives: dict[frozenset[int], Alternative] = {}

    def tried(chosen: frozenset[int], known_ms: float) -> Plan | None:
        """Return the plan with these collections by rows that costs less than is known. None: there is none."""
        by_rows = with_rows(request, [collections[position] for position in sorted(chosen)])
        bound_ms = total_ms = refusal = None
        found: Plan | None = None
        try:
            bound_ms = _bound_ms(by_rows, costs)
            if bound_ms >= known_ms:
                refusal = f"no plan of it takes less than {bound_ms:.3f} ms"
            else:
                found = search(by_rows)
                total_ms = found.predicted.total_ms
        except (InfeasibleError, RequestError) as error:
            refusal = request.in_its_names(str(error))
        if found is not None and priced_ms(found) >= known_ms:
            found, refusal = None, f"its best plan takes {total_ms:.3f} ms"
        text = _text([collections[position] for position in sorted(chosen)])
        alternatives[chosen] = Alternative(text=text, total_ms=total_ms, bound_ms=bound_ms, refusal=refusal)
        return found

    every = frozenset(range(len(collections)))
    one_by_one = [frozenset({position}) for position in range(min(len(every), MOST_CHOSEN))] if len(every) > 1 else []
    before_ms = None
    try:
        best, chosen, flips = search(request), frozenset[int](), [every, *one_by_one]
        before_ms = best.predicted.total_ms
    except InfeasibleError:
        found = tried(every, np.inf)
        if found is None:
            raise
        best, chosen, flips = found, every, one_by_one
    for each in flips:
        found = tried(chosen ^ each, priced_ms(best))
        if found is not None:
            best, chosen = found, chosen ^ each
    written = tuple(
        each if ways == chosen or each.refusal else each.model_copy(update={"refusal": "another form costs less"})
        for ways, each in alternatives.items()
    )
    choice = PlanChoice(name=ChoiceName.MEANS_BY_ROWS, before_ms=before_ms, alternatives=written)
    return best.model_copy(update={"choices": (choice,)})


def _text(by_rows: Sequence[Rows]) -> str:
    """Return the name of a way: the first tables of the collections that are by rows, and the number of others."""
    if not by_rows:
        return "no means by rows"
    collections = (f"{next(iter(rows))!r}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}" for rows in by_rows)
    return f"means by rows: {'; '.join(collections)}"


def bound_of_choices_ms(request: PlanRequest, costs: CostModel, problem: Problem | None = None) -> float:
    """Return a cost that no plan of a request goes below, whichever collections of means are by rows.

    Args:
        request: that is bounded.
        costs: price placements.
        problem: of the request, if the caller has it.

    Raises:
        RequestError: the request contradicts itself.
    """
    collections = means_by_rows(request, default_types(request, costs.manifest))
    if not collections:
        return FamilyBounds(problem or Problem(request, costs)).least_ms
    if len(collections) > MOST_CHOSEN:
        return single_unit_bound_ms(Problem(request, costs))
    return min(_bounds_ms(request, collections, costs))


def means_by_rows(request: PlanRequest, default: tuple[ShardingType, ...]) -> tuple[Rows, ...]:
    """Return the collections of means alone that may be by columns and by rows, those of most weights first.

    ``default`` are the types of tables whose constraints name none.
    """
    tables, constraints = request.tables.tables, request.constraints
    found: list[tuple[int, Rows]] = []
    for positions in collections_of(tables):
        names = [tables[index].name for index in positions]
        asked = [request.placed_types_of(name) or default for name in names]
        left = [tuple(kind for kind in types if kind in BY_ROWS) for types in asked]
        if not all(tables[index].is_mean for index in positions) or not all(left) or left == asked:
            continue
        rows = {
            name: constraints.tables.get(name, TableConstraints()).model_copy(update={"sharding_types": types})
            for name, types in zip(names, left, strict=True)
        }
        found.append((sum(tables[index].num_embeddings * tables[index].embedding_dim for index in positions), rows))
    return tuple(rows for _, rows in sorted(found, key=lambda each: -each[0]))


def with_rows(request: PlanRequest, collections: Sequence[Rows]) -> PlanRequest:
    """Return the request with these collections by rows."""
    own = dict(chain(request.constraints.tables.items(), *(rows.items() for rows in collections)))
    return request.model_copy(update={"constraints": request.constraints.model_copy(update={"tables": own})})


def _bound_ms(request: PlanRequest, costs: CostModel) -> float:
    return FamilyBounds(Problem(request, costs)).least_ms


def _bounds_ms(request: PlanRequest, collections: Sequence[Rows], costs: CostModel) -> Iterator[float]:
    """Yield the bound of each choice that does not contradict the constraints; all by columns raises RequestError."""
    yield _bound_ms(request, costs)
    for chosen in chain.from_iterable(combinations(collections, size + 1) for size in range(len(collections))):
        with suppress(RequestError):
            yield _bound_ms(with_rows(request, chosen), costs)
