"""Which collections of tables of means alone are sharded by rows: decided by planning each way.

    no rows cut  ->  all by rows  ->  the cheaper, with one collection at a time the other way while that is cheaper

No step of the search leads from one way to another (`ways_by_rows`). Results are the same: any gain counts.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import Alternative, ChoiceName, PlanChoice
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.moved_bytes import priced_ms

from neuroshard_planner.choices.trials import Trials
from neuroshard_planner.choices.ways_by_rows import MOST_CHOSEN, Rows, bound_of_way_ms, means_by_rows, with_rows
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.sharding_choice import default_types
from neuroshard_planner.searches import Search


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

    ways = Trials(costs, search, bound_ms=bound_of_way_ms)
    alternatives: dict[frozenset[int], Alternative] = {}

    def tried(chosen: frozenset[int], known_ms: float) -> Plan | None:
        """Return the plan with these collections by rows that costs less than is known. None: there is none."""
        by_rows = [collections[position] for position in sorted(chosen)]
        trial = ways.tried(_text(by_rows), with_rows(request, by_rows), below_ms=known_ms)
        alternatives[chosen] = trial.tried
        return trial.plan

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
