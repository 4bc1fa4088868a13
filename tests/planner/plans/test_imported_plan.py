"""Plans from elsewhere: what is checked before they have a price, and which bound they have."""

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_planner.errors import PlanError
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.imported_plan import imported_plan
from support.builders import request, table
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, by_rows

HOT = table("hot", embedding_dim=256, pooling_factor=80.0)
SEQUENCE = HOT.model_copy(update={"pooling": Pooling.NONE})


def imported(placement: TablePlacement, asked: PlanRequest) -> Plan:
    """Return the plan of one table."""
    return imported_plan((placement,), asked, bundle=ExactCosts(asked.topology.device))


def test_a_broken_constraint_is_named_before_the_price() -> None:
    """Plans that keep it have a higher bound than what this one costs."""
    asked = request(HOT, constraints=Constraints(max_shards_per_table=1))

    with pytest.raises(PlanError, match="'hot' has 4 shards, the constraints allow 1"):
        imported(by_columns(HOT, *((device, 64) for device in range(4))), asked)


def test_cuts_that_are_not_searched_have_the_bound_of_all_plans() -> None:
    """The search leaves sequences whole: the bound of its plans is above what this one costs."""
    found = imported(by_columns(SEQUENCE, *((device, 64) for device in range(4))), request(SEQUENCE))

    assert plan_problems(found) == []
    assert 0 < found.lower_bound_ms < found.predicted.total_ms


def test_a_sequence_by_rows_has_the_price_of_an_all_to_all() -> None:
    """Its rows travel as they are: no partial sums are added up."""
    asked = request(SEQUENCE)
    found = imported(by_rows(SEQUENCE, asked.topology), asked)
    bags = imported(by_rows(HOT, asked.topology), request(HOT))

    assert plan_problems(found) == []
    indices, rows = found.predicted.devices[0].collectives
    assert (rows.kind, rows.family) == (CollectiveKind.ALL_TO_ALL, Family.ROWS)
    assert rows.forward_ms > 0
    assert rows.backward_ms > 0
    of_bags = {each.kind: each for each in bags.predicted.devices[0].collectives}
    assert of_bags.keys() == {CollectiveKind.INDICES, CollectiveKind.REDUCE_SCATTER}
    assert indices == of_bags[CollectiveKind.INDICES]
    assert 0 < found.lower_bound_ms < found.predicted.total_ms
