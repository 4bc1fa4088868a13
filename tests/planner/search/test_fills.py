"""Fills: equal columns on all devices, next to copies."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import COLUMNS, NODE_ROWS, REPLICATED
from neuroshard_planner.planning import searched
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.assignments import Fill, fills
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.options import Forms, OptionTable
from support.builders import request, table, topology

ALL = tuple(ShardingType)
H100 = bundled_bundle("h100-80gb")
NUM_DEVICES = 16


def problem(*types_of_last: ShardingType) -> Problem:
    """Return four tables of few rows and four of many on 16 devices, of 16 columns each; the last may have types."""
    rows = [100] * 4 + [20_000_000] * 4
    members = [table(f"t{index}", num_embeddings=count, embedding_dim=16) for index, count in enumerate(rows)]
    members[-1] = members[-1].model_copy(update={"pooling_factor": 30.0})
    own = {"t7": {"sharding_types": types_of_last}} if types_of_last else {}
    return Problem(
        request(
            *members,
            topology=topology(NUM_DEVICES, num_nodes=2),
            batch_size_per_device=8192,
            constraints=Constraints.model_validate({"sharding_types": ALL, "tables": own}),
        ),
        H100,
    )


def fills_of(given: Problem, best: Placement) -> list[Fill]:
    """Return fills next to a placement."""
    forms = Forms(given)
    traits = Traits(given, tangent(given, forms.mean_sums()))()
    return fills(given, forms, OptionTable(given), traits, best)


def whole(given: Problem) -> Placement:
    """Return whole tables, two on each of four devices."""
    return Placement(kinds=given.whole, devices=np.arange(len(given.units)) % 4)


def test_copies_of_the_tables_of_few_rows_make_room_for_four_columns_on_each_device() -> None:
    """64 columns of the other tables on 16 devices, in shards of four; without copies there are eight on each."""
    given = problem()
    kinds, count = given.kinds, OptionTable(given).count

    found = {
        tuple(sorted(set(kinds.unit[own[kinds.family[own] == REPLICATED]].tolist()))): each.cuts
        for each in fills_of(given, whole(given))
        for own in [each.placement.kinds]
    }

    assert set(found) == {(), (0, 1, 2, 3)}
    assert count[found[0, 1, 2, 3][4:]].tolist() == [4, 4, 4, 4]
    assert (found[0, 1, 2, 3][:4] == -1).all()


def test_the_cheapest_come_first_and_promise_less_than_what_is_known() -> None:
    """None is returned that gains nothing."""
    given = problem()
    best = whole(given)

    found = [each.even_ms for each in fills_of(given, best)]

    assert found == sorted(found)
    assert found[-1] < given.total_ms([best])[0]


@pytest.mark.parametrize("types", [(ShardingType.TABLE_ROW_WISE,), (ShardingType.TABLE_WISE,)])
def test_units_of_other_families_stay_and_those_that_may_not_be_copied_are_not(types: tuple[ShardingType, ...]) -> None:
    """A table by rows of a node keeps its devices; a table by columns alone is filled in."""
    given = problem(*types)
    form = next(iter(Forms(given).of(7)))
    size = len(form.kinds)
    rest = whole(given).at(np.arange(7))
    best = Placement.joined(rest, Placement(kinds=form.kinds, devices=np.arange(size)))

    for each in fills_of(given, best):
        own = each.placement.at(given.kinds.unit[each.placement.kinds] == 7)
        families = set(given.kinds.family[own.kinds].tolist())
        assert families == ({NODE_ROWS} if types == (ShardingType.TABLE_ROW_WISE,) else {COLUMNS})
        if families == {NODE_ROWS}:
            assert own.devices.tolist() == list(range(size))


def test_a_plan_has_the_equal_columns_that_no_single_change_leads_to() -> None:
    """Sixteen tables of 16 columns on 64 devices have four columns on each, next to ten copies."""
    rows = [3, 4, 10, 15, 18, 24, 27, 105, 305, 583, *(1_000_000 * count for count in range(1, 17))]
    members = [table(f"t{index}", num_embeddings=count, embedding_dim=16) for index, count in enumerate(rows)]
    asked = request(
        *members,
        topology=topology(64, num_nodes=8),
        batch_size_per_device=8192,
        constraints=Constraints(sharding_types=ALL),
    )

    plan = searched(asked, H100, None)

    kinds = [each.sharding_type for each in plan.tables]
    assert kinds.count(ShardingType.DATA_PARALLEL) == 10
    assert {shard.num_columns for each in plan.tables[10:] for shard in each.shards} == {4}
