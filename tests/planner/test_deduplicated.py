"""Plans that leave out repeated lists, where that costs less."""

from typing import Any

import builders
import pytest
from exact_costs import ExactCosts
from neuroshard_api.plan import GivenPlan, Plan
from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import Table
from neuroshard_planner.explain.table import explain_table
from neuroshard_planner.plans.checks import plan_problems
from searches import planned


def history(name: str, factor: float, group: str | None = None, **fields: Any) -> Table:
    """Return a table of long lists that repeat."""
    defaults = {"pooling_factor": 40.0, "embedding_dim": 64, "num_embeddings": 1_000_000}
    return builders.table(name, duplication_group=group or name, duplication_factor=factor, **{**defaults, **fields})


def asked(*members: Table, **fields: Any) -> PlanRequest:
    """Return a request that may leave out the repeats of every group."""
    tables = builders.table_set(*members, *builders.tables(4), session_run=8)
    return builders.request(tables=tables, deduplicate=tables.duplication_groups, **fields)


def on_all_lists(request: PlanRequest) -> Plan:
    """Return the plan that leaves nothing out."""
    return planned(request.model_copy(update={"deduplicate": None}))


def test_a_plan_leaves_out_repeats_that_cost_more_than_their_expansion() -> None:
    """It says which, in which form, and what that saves; and it is sound and survives JSON."""
    request = asked(history("seen", 8.0, "user"), history("bought", 8.0, "user"))

    plan = planned(request)

    (group,) = plan.deduplication or ()
    assert (group.group, group.features, group.form) == ("user", ("seen", "bought"), "first_sample")
    assert group.factor == pytest.approx(8.0, rel=0.01)
    assert plan.all_lists_ms is not None
    assert plan.all_lists_ms == pytest.approx(on_all_lists(request).predicted.total_ms)
    assert group.saved_ms is not None
    assert plan.predicted.total_ms < 0.7 * plan.all_lists_ms
    assert group.saved_ms >= plan.all_lists_ms - plan.predicted.total_ms - 1e-9
    assert plan.request.deduplicate == ("user",)
    assert not plan_problems(plan)
    assert GivenPlan.from_json(plan.to_json()).deduplicated_features == (("seen", "bought"),)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_plan_on_data_that_does_not_repeat_is_the_plan_on_all_lists(factor: float) -> None:
    """To the last byte."""
    request = asked(history("seen", factor))

    assert planned(request).to_json() == on_all_lists(request).to_json()


def test_a_group_that_saves_nothing_is_kept_whole() -> None:
    """Wide embeddings of single lookups cost more to expand than to look up."""
    request = asked(
        history("seen", 8.0), history("city", 1.02, pooling_factor=1.0, embedding_dim=512, num_embeddings=1000)
    )

    plan = planned(request)

    assert [group.group for group in plan.deduplication or ()] == ["seen"]
    assert plan.request.deduplicate == ("seen",)


def test_memory_has_room_for_a_batch_without_repeats() -> None:
    """The ledger of the plan's shards is that of all lists."""
    request = asked(history("seen", 8.0), num_devices=1)

    assert planned(request).memory == on_all_lists(request).memory


def test_a_table_is_explained_with_its_repeats() -> None:
    """Group, factor, and form where they are left out, and what is known where they are not."""
    request = asked(history("seen", 8.0), history("page", 1.01))
    costs = ExactCosts(request.topology.device)

    def repeats(name: str) -> str | None:
        return explain_table(planned(request), name, bundle=costs).repeats

    assert repeats("seen") is not None
    assert "group 'seen', 8.00 samples per distinct list in runs of 8; repeats are left out (first_sample" in str(
        repeats("seen")
    )
    assert repeats("page") == "group 'page', 1.01 samples per distinct list in runs of 8; all lists are looked up"
    assert repeats(request.tables.tables[-1].name) is None


def test_the_search_counts_the_expansion_of_plans_by_columns() -> None:
    """On one device there is one placement: nothing is left between its cost and the lower bound."""
    plan = planned(asked(history("seen", 8.0), topology=builders.topology(1)))

    assert plan.predicted.devices[0].expansion_ms
    assert plan.gap == pytest.approx(0, abs=1e-3)
