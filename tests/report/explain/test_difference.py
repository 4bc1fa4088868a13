"""What changes from one plan to another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_costs.moved_bytes import moved_bytes
from neuroshard_report.explain.difference import plan_difference
from support import builders
from support.builders import request, table
from support.planner.searches import planned

TABLES = tuple(table(f"t{index}", num_embeddings=1000 * (index + 1), embedding_dim=16) for index in range(4))


def random_plan(seed: int) -> Plan:
    """Return a plan that a random placement found."""
    asked = request(*TABLES)
    search = asked.search.model_copy(update={"seed": seed})
    return planned(asked.model_copy(update={"algorithm": Algorithm.RANDOM, "search": search}))


def test_a_plan_does_not_differ_from_itself() -> None:
    """No table moves, and no part of the step changes."""
    found = plan_difference(random_plan(0), random_plan(0))

    assert (found.tables, found.moved_bytes, found.asked) == ((), 0, ())
    assert found.parts
    assert all(part.before_ms == part.after_ms for part in found.parts)
    assert found.has_equal_costs
    assert found.all_bytes > 0


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 50), st.integers(0, 50))
def test_moved_bytes_are_those_of_a_migration(first: int, second: int) -> None:
    """Of each table, and of each device; the parts of the slowest devices sum to the two prices."""
    before, after = random_plan(first), random_plan(second)
    found = plan_difference(before, after)
    moved = moved_bytes(before.tables, after.tables, after.request)

    assert {each.name: each.moved_bytes for each in found.tables} == {
        each.name: size for each, size in zip(TABLES, moved, strict=True) if size
    }
    assert found.moved_bytes == sum(moved)
    assert sum(each.received_bytes for each in found.devices) == pytest.approx(found.moved_bytes, abs=8)
    assert sum(part.before_ms for part in found.parts) == pytest.approx(before.predicted.total_ms)
    assert sum(part.after_ms for part in found.parts) == pytest.approx(after.predicted.total_ms)


def test_other_requests_are_compared_by_the_names_of_tables() -> None:
    """What they differ in is listed; tables of one plan alone have no bytes."""
    wider = TABLES[1].model_copy(update={"embedding_dim": 32})
    before = builders.plan(request(*TABLES[:3], num_devices=2))
    after = builders.plan(request(TABLES[0], wider, TABLES[3], num_devices=4, batch_size_per_device=128))
    found = plan_difference(before, after)
    fields = {each.field: (each.before, each.after) for each in found.asked}

    assert (found.removed, found.added, found.reshaped) == (("t2",), ("t3",), ("t1",))
    assert found.num_tables == 2
    assert fields["topology.devices_per_node"] == ("2", "4")
    assert fields["batch_size_per_device"][1] == "128"
    assert [each.before_ms is None for each in found.devices] == [False, False, True, True]


def test_a_part_of_a_request_that_the_other_does_not_have_is_one_field() -> None:
    """As a counted dense part, which has some thirty."""
    before = builders.plan(request(*TABLES))
    after = builders.plan(request(*TABLES, dense=builders.dense_profile(*TABLES)))
    found = plan_difference(before, after)

    assert [(each.field, each.before, each.after) for each in found.asked] == [("dense", None, "set")]


def test_plans_without_a_price_are_compared_by_their_shards() -> None:
    """Neither times nor memory are known then."""
    before, after = random_plan(0), random_plan(1)
    bare = GivenPlan(algorithm=after.algorithm, tables=after.tables, request=after.request)
    found = plan_difference(before, bare)

    assert found.tables == plan_difference(before, after).tables
    assert (found.after, found.parts, found.has_equal_costs) == (None, (), False)
    assert found.before is not None
    assert {each.after_ms for each in found.devices} == {each.after_bytes for each in found.devices} == {None}


def test_prices_of_other_cost_models_are_told_apart() -> None:
    """Their times say nothing about each other."""
    one = random_plan(0)
    other = one.model_copy(update={"bundle": one.bundle.model_copy(update={"weights_sha256": "1" * 64})})

    assert not plan_difference(one, other).has_equal_costs


def test_groups_of_devices_are_written_out() -> None:
    """A table whole on each of two groups is on twice the devices, and the second half gets it."""
    one = builders.plan(request(*TABLES, num_devices=2))
    groups = Replication(num_groups=2, layout=GroupLayout.CONTIGUOUS)
    two = one.model_copy(update={"request": request(*TABLES, num_devices=4), "replication": groups})
    found = plan_difference(one, two)

    assert len(found.devices) == 4
    assert [bool(each.received_bytes) for each in found.devices[:2]] == [False, False]
    assert found.moved_bytes == pytest.approx(found.all_bytes / 2, abs=8)
    assert found.devices[2].after_ms == found.devices[0].after_ms
    assert plan_difference(two, one).moved_bytes == 0
