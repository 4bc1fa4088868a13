"""Tables of means by rows: only where a collection has nothing else, and where that costs less."""

from itertools import combinations
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import Optimizer, Pooling
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import cuts_means
from neuroshard_planner.choices.ways_by_rows import MOST_CHOSEN, means_by_rows, with_rows
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from support.builders import GIB, request, table, tables, topology
from support.planner.searches import planned

HOT = table("hot", pooling=Pooling.MEAN, pooling_factor=200.0, embedding_dim=4)
EVERY_TYPE = tuple(ShardingType)
EVERY = Constraints(sharding_types=EVERY_TYPE)
HUGE = table("huge", pooling=Pooling.MEAN, num_embeddings=2 * 10**9, embedding_dim=4)


def types_of(plan: Plan) -> set[ShardingType]:
    """Return the sharding types of a plan."""
    return {each.sharding_type for each in plan.tables}


def test_a_hot_table_of_means_that_is_alone_is_by_rows() -> None:
    """Four columns cannot be cut; the plan answers the request as it was, and its bound is below."""
    asked = request(HOT, constraints=EVERY)

    found = planned(asked)

    assert types_of(found) == {ShardingType.ROW_WISE}
    assert found.request == asked
    assert found.lower_bound_ms <= found.predicted.total_ms
    assert plan_problems(found) == []
    columns = Constraints(sharding_types=BY_COLUMNS)
    assert found.predicted.total_ms < planned(request(HOT, constraints=columns)).predicted.total_ms


def hot_next_to(*others: str, **fields: Any) -> PlanRequest:
    """Return a request of a hot table of means, and of collections of cold ones, each of which may be by rows."""
    cold = [
        table(f"{name}{index}", collection=name, pooling_factor=3.0, pooling=Pooling.MEAN)
        for name in others
        for index in range(4)
    ]
    search = SearchSettings(work_budget=200)
    return request(HOT.model_copy(update={"collection": "users"}), *cold, constraints=EVERY, search=search, **fields)


def test_of_two_collections_of_means_one_is_by_rows() -> None:
    """The hot one, next to a cold one by columns; that costs less than both by columns, and than both by rows."""
    asked = hot_next_to("items")

    found = planned(asked)

    assert [each.sharding_type.is_by_columns for each in found.tables] == [False, True, True, True, True]
    assert plan_problems(found) == []
    for chosen in ((), means_by_rows(asked, EVERY_TYPE)):
        limited = with_rows(asked, chosen)
        if not chosen:
            limited = limited.model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS)})
        assert found.predicted.total_ms < planned(limited).predicted.total_ms


def test_a_plan_has_the_ways_that_were_tried_and_why_each_was_not_taken() -> None:
    """The way that was taken has no refusal, and a dearer one that was taken before says that another costs less."""
    found = planned(hot_next_to("items"))

    (choice,) = found.choices or ()
    assert choice.name is ChoiceName.MEANS_BY_ROWS
    assert choice.before_ms is not None
    refusals = {each.text: each.refusal for each in choice.alternatives}
    assert refusals.pop("means by rows: 'hot'") is None
    assert refusals
    assert all(refusals.values())
    for each in choice.alternatives:
        assert (each.total_ms == found.predicted.total_ms) == (each.refusal is None)
        assert each.total_ms is None or each.total_ms >= found.predicted.total_ms


@pytest.mark.parametrize("others", [("items",), ("items", "shops"), ("a", "b", "c", "d")], ids=["2", "3", "5"])
def test_the_bound_is_below_the_plan_of_every_choice(others: tuple[str, ...]) -> None:
    """Also of choices that are not searched: all choices of up to three collections, one by rows of five."""
    asked = hot_next_to(*others)
    collections = means_by_rows(asked, EVERY_TYPE)
    found = planned(asked)

    assert found.gap == pytest.approx(found.predicted.total_ms / found.lower_bound_ms - 1)
    most = len(collections) if len(collections) <= MOST_CHOSEN else 1
    for chosen in (each for size in range(most + 1) for each in combinations(collections, size)):
        by_rows = {name for rows in chosen for name in rows}
        own = {
            each.name: TableConstraints(sharding_types=BY_COLUMNS)
            for each in asked.tables.tables
            if each.name not in by_rows
        }
        limited = EVERY.model_copy(update={"tables": {**with_rows(asked, chosen).constraints.tables, **own}})
        plan = planned(asked.model_copy(update={"constraints": limited}))
        assert found.lower_bound_ms <= plan.predicted.total_ms


def test_means_that_cost_less_by_columns_stay_so() -> None:
    """Cold tables of means, one for each device."""
    found = planned(request(*tables(4, pooling=Pooling.MEAN), constraints=EVERY))

    assert all(kind.is_by_columns for kind in types_of(found))
    assert plan_problems(found) == []


def test_a_collection_of_means_is_by_rows_next_to_another_by_columns() -> None:
    """TorchRec runs each collection for itself, and none of means as a grid."""
    others = tables(4, collection="items", pooling_factor=3.0)
    own = {each.name: TableConstraints(sharding_types=BY_COLUMNS) for each in others}
    limits = EVERY.model_copy(update={"tables": own})
    hot = HOT.model_copy(update={"collection": "users"})
    found = planned(request(hot, *others, topology=topology(4, num_nodes=2), constraints=limits))

    assert found.tables[0].sharding_type in {ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE}
    assert all(each.sharding_type.is_by_columns for each in found.tables[1:])
    assert plan_problems(found) == []


def test_a_table_of_means_that_fits_no_device_is_by_rows() -> None:
    """By columns no plan fits at all."""
    asked = request(HUGE, topology=topology(4, memory_bytes=24 * GIB), optimizer=Optimizer.SGD, constraints=EVERY)

    found = planned(asked)

    assert types_of(found) == {ShardingType.ROW_WISE}
    assert found.request == asked


def test_where_nothing_fits_the_error_is_that_of_the_request() -> None:
    """It names what is enough by columns."""
    asked = request(HUGE.model_copy(update={"num_embeddings": 10**12}), constraints=EVERY)

    with pytest.raises(InfeasibleError, match="table 'huge' needs"):
        planned(asked)


@pytest.mark.parametrize(
    "limits",
    [
        Constraints(sharding_types=BY_COLUMNS),
        EVERY.model_copy(update={"tables": {"hot": TableConstraints(sharding_types=(ShardingType.TABLE_WISE,))}}),
        Constraints(sharding_types=(ShardingType.ROW_WISE,)),
    ],
    ids=["by columns", "one by columns", "by rows already"],
)
def test_constraints_that_leave_no_choice_are_kept(limits: Constraints) -> None:
    """There is no other request to plan."""
    other = HOT.model_copy(update={"name": "other"})

    assert means_by_rows(request(HOT, other, constraints=limits), EVERY_TYPE) == ()


def test_rows_of_means_stay_together_next_to_sums() -> None:
    """TorchRec divides the sums by the lengths of the means' bags."""
    asked = request(HOT, table("sum"), constraints=EVERY)

    assert means_by_rows(asked, EVERY_TYPE) == ()
    of_means = next(each for each in planned(asked).tables if each.name == HOT.name)
    assert not cuts_means(of_means.sharding_type, HOT)


def test_a_table_of_means_that_is_pinned_stays_by_columns() -> None:
    """Rows are on all devices; the attempt is not an error."""
    pinned = EVERY.model_copy(update={"tables": {"hot": TableConstraints(devices=(1,))}})

    assert types_of(planned(request(HOT, constraints=pinned))) == {ShardingType.TABLE_WISE}
