"""Plans near the one in force: never dearer than it, with few bytes that move, and as the price says."""

from typing import Any

import pytest
from hypothesis import assume, given
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.moved_bytes import moved_bytes, priced_ms
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.migration import Incumbent
from support.builders import GIB, request, table, tables
from support.builders import plan as plan_builder
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import assert_valid, planned, search_requests

ROUNDING = 1e-9
MANY_MS_PER_GIB = 1e9


def replanned(asked: PlanRequest, before: Plan, **fields: Any) -> Plan:
    """Return the plan of a request whose tables are sharded as in another plan."""
    return plan(asked, bundle=ExactCosts(asked.topology.device), incumbent=Incumbent(tables=before.tables, **fields))


def drifted(asked: PlanRequest, before: Plan, *, times: float = 6.0) -> PlanRequest:
    """Return the request after the tables of the plan's first device are looked up that many times as often."""
    on_first = {each.name for each in before.tables if any(shard.device == 0 for shard in each.shards)}
    changed = tuple(
        each.model_copy(update={"pooling_factor": each.pooling_factor * times}) if each.name in on_first else each
        for each in asked.tables.tables
    )
    return asked.model_copy(update={"tables": asked.tables.model_copy(update={"tables": changed})})


ASKED = request(*tables(16, embedding_dim=64, pooling_factor=10.0, num_embeddings=100_000))


def test_a_plan_that_is_still_the_best_stays() -> None:
    """Nothing moves, and the shards are those of the plan in force, column by column."""
    before = planned(ASKED)
    after = replanned(ASKED, before, plan_sha256="1" * 64)

    assert after.tables == before.tables
    assert after.incumbent is not None
    assert (after.incumbent.moved, after.incumbent.fits, after.incumbent.plan_sha256) == ((), True, "1" * 64)
    assert after.incumbent.total_ms == pytest.approx(before.predicted.total_ms)


def test_after_a_drift_the_plan_is_as_cheap_as_a_new_one_and_moves_less() -> None:
    """Tables of the first device are looked up six times as often: some of them leave, and most others stay."""
    before = planned(ASKED)
    asked = drifted(ASKED, before)
    anew, near = planned(asked), replanned(asked, before)
    assert near.incumbent is not None

    assert near.incumbent.total_ms > 1.2 * near.predicted.total_ms
    assert near.predicted.total_ms <= anew.predicted.total_ms * (1 + 2 * asked.search.shard_tolerance)
    assert 0 < near.incumbent.moved_bytes < sum(moved_bytes(before.tables, anew.tables, asked))
    assert near.incumbent.moved_bytes == sum(moved_bytes(before.tables, near.tables, asked))


def test_a_higher_price_moves_less() -> None:
    """Down to nothing, once a byte costs more than it could save."""
    before = planned(ASKED)
    asked = drifted(ASKED, before)
    plans = [replanned(asked, before, price_ms_per_gib=price) for price in (0.0, 5.0, MANY_MS_PER_GIB)]
    moved = [each.incumbent.moved_bytes for each in plans if each.incumbent is not None]

    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0
    assert moved[-1] == 0


@pytest.mark.slow
@generated(4, 12)
@given(asked=search_requests())
def test_no_plan_costs_more_than_the_one_in_force(asked: PlanRequest) -> None:
    """Beyond the search's tolerance, whatever is asked for and whatever drifts; equal arguments give equal plans."""
    try:
        before = planned(asked)
        after = drifted(asked, before, times=4.0)
        found = replanned(after, before)
    except (InfeasibleError, RequestError):
        assume(condition=False)
        raise
    assert found.incumbent is not None

    assert_valid(after, found)
    if found.incumbent.fits:
        limit_ms = found.incumbent.total_ms * (1 + after.search.shard_tolerance) * (1 + ROUNDING)
        assert found.predicted.total_ms <= limit_ms
    assert found == replanned(after, before)


def test_a_plan_that_breaks_the_constraints_is_priced_and_left() -> None:
    """It says what it costs, and no table stays where it may not be."""
    before = planned(ASKED)
    name = before.tables[0].name
    elsewhere = tuple({0, 1, 2, 3} - {shard.device for shard in before.tables[0].shards})
    asked = ASKED.model_copy(update={"constraints": Constraints(tables={name: TableConstraints(devices=elsewhere)})})
    after = replanned(asked, before, price_ms_per_gib=MANY_MS_PER_GIB)
    assert after.incumbent is not None

    assert not after.incumbent.fits
    assert {shard.device for shard in after.tables[0].shards} <= set(elsewhere)
    assert [each.name for each in after.incumbent.moved] == [name]


@pytest.mark.parametrize("price", [0.2, 1.0])
def test_means_by_rows_stay_together_or_leave_together(price: float) -> None:
    """TorchRec computes a collection with means by rows and by columns wrongly; moves count in which of both it is."""
    means = {"pooling": Pooling.MEAN, "embedding_dim": 64, "pooling_factor": 3.0, "num_embeddings": 2000}
    big = table("big", num_embeddings=20_000_000, embedding_dim=16, pooling_factor=0.1, pooling=Pooling.MEAN)
    rows, every = Constraints(sharding_types=(ShardingType.ROW_WISE,)), Constraints(sharding_types=tuple(ShardingType))
    asked = request(big, *tables(12, **means), constraints=rows, search=SearchSettings(work_budget=3000))
    before = planned(asked)
    found = replanned(asked.model_copy(update={"constraints": every}), before, price_ms_per_gib=price)
    assert found.incumbent is not None

    assert plan_problems(found) == []
    assert len({each.sharding_type.is_by_columns for each in found.tables}) == 1
    assert found.incumbent.fits
    assert priced_ms(found) <= found.incumbent.total_ms * (1 + asked.search.shard_tolerance)


def test_a_baseline_is_compared_with_the_plan_in_force() -> None:
    """It is what was asked for, and is not changed for it."""
    before = planned(ASKED)
    asked = ASKED.model_copy(update={"algorithm": Algorithm.DIM_GREEDY})
    after = replanned(asked, before)
    assert after.incumbent is not None

    assert after.tables == planned(asked).tables
    assert after.incumbent.moved_bytes == sum(moved_bytes(before.tables, after.tables, asked))


def test_a_plan_of_other_tables_is_no_plan_in_force() -> None:
    """The error says which table, and what to give instead."""
    other = planned(request(table("other")))

    with pytest.raises(
        RequestError, match=r"incumbent: is of other tables .*'other' in the request; hint: give the plan"
    ):
        replanned(ASKED, other)


def test_moved_bytes_are_those_that_a_device_did_not_have() -> None:
    """Weights and optimizer state; what stays on its device, and what leaves, does not count."""
    member = table("wide", num_embeddings=GIB // 256, embedding_dim=64)
    asked = request(member, num_devices=2)
    whole = plan_builder(asked).tables[0]
    [shard] = whole.shards
    halves = tuple(
        shard.model_copy(update={"device": device, "column_offset": 32 * device, "num_columns": 32})
        for device in (shard.device, 1 - shard.device)
    )
    halves = tuple(each.model_copy(update={"column_offset": 32 * place}) for place, each in enumerate(halves))
    split = whole.model_copy(update={"shards": halves})

    [moved] = moved_bytes([whole], [split], asked)
    [back] = moved_bytes([split], [whole], asked)
    row_state = 4
    assert moved == member.num_embeddings * (32 * 4 + row_state)
    assert back == round(member.num_embeddings * (64 * 4 + row_state) / 2)
