"""Collections of tables of means alone: by columns or by rows, each way as a request, and the bound of all ways.

TorchRec computes means rightly where they are whole, cut by columns, or copied, and where all tables of a collection
have mean pooling and are row_wise or table_row_wise. So each way is a choice of the collections that are by rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations

from neuroshard_api.documents.request import PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import BY_ROWS, collections_of

from neuroshard_planner.bound.family_bounds import FamilyBounds, single_unit_bound_ms
from neuroshard_planner.errors import RequestError
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import default_types

MOST_CHOSEN = 4
"""Collections that are tried one at a time, and of which all choices are bounded; their bounds double with each."""

Rows = Mapping[str, TableConstraints]
"""Constraints of the tables of a collection that let it be by rows alone."""


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


def bound_of_way_ms(request: PlanRequest, costs: CostModel) -> float:
    """Return a cost that no plan of a request goes below in which means are by rows where its constraints say so."""
    return FamilyBounds(Problem(request, costs)).least_ms


def _bounds_ms(request: PlanRequest, collections: Sequence[Rows], costs: CostModel) -> Iterator[float]:
    """Yield the bound of each choice that does not contradict the constraints; all by columns raises RequestError."""
    yield bound_of_way_ms(request, costs)
    for chosen in chain.from_iterable(combinations(collections, size + 1) for size in range(len(collections))):
        with suppress(RequestError):
            yield bound_of_way_ms(with_rows(request, chosen), costs)
