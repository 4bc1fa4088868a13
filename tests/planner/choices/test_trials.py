"""Trials of forms: what becomes of their plans and of placements in hand, and why a form was not taken."""

import re
from functools import partial

import pytest
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.choices.trials import Trials
from neuroshard_planner.planning import searched
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_planner.plans.same_placement import cheaper_placement
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns

GROUPS = ("group 0", "group 1")


def asked(*groups: str) -> PlanRequest:
    """Return a request of tables in two groups that repeat, without the repeats of some."""
    members = [
        table.model_copy(update={"duplication_group": GROUPS[position % 2], "duplication_factor": 4.0})
        for position, table in enumerate(builders.tables(6, pooling_factor=40.0))
    ]
    return builders.request(
        tables=builders.table_set(*members, session_run=8), deduplicate=groups or None, search=builders.QUICK
    )


@pytest.mark.parametrize(
    ("best", "of_one", "of_both"),
    [
        ("all lists", r"it saves .* ms \(.* %\), and 2\.0 % are asked for", r"it saves .* 2\.0 % are asked for"),
        ("one", "None", "one is preferred"),
        ("both", "another form costs less", "None"),
    ],
)
def test_a_form_is_refused_for_the_reason_for_which_another_is_the_best(best: str, of_one: str, of_both: str) -> None:
    """A cheaper form is not refused for its cost: it saves too little, or the other is preferred."""
    costs = ExactCosts(asked().topology.device)
    trials = Trials(costs, partial(searched, bundle=costs, incumbent=None))
    plans = {"all lists": trials.plan(asked())}
    for text, groups in (("one", GROUPS[:1]), ("both", GROUPS)):
        found = trials.tried(text, asked(*groups), below_ms=float("inf")).plan
        assert found is not None
        plans[text] = found

    trials.decided(ChoiceName.REPEATS, before=plans["all lists"], best=plans[best], preferred="one is preferred")

    (choice,) = trials.choices
    one, both = (str(each.refusal) for each in choice.alternatives)
    assert re.fullmatch(of_one, one)
    assert re.fullmatch(of_both, both)


def test_a_search_that_leaves_out_fewer_repeats_does_not_lose_the_placement_in_hand() -> None:
    """Its plan has that placement where its own is dearer."""
    both, one = asked(*GROUPS), asked(*GROUPS[:1])
    costs = ExactCosts(both.topology.device)
    plan = searched(both, costs, None)
    together = [by_columns(each, (0, each.embedding_dim)) for each in one.tables.tables]
    found = imported_plan(together, one, bundle=costs)

    better = cheaper_placement(found, plan, costs=costs)

    assert better.tables == plan.tables
    assert better.request == one
    assert better.predicted == imported_plan(plan.tables, one, bundle=costs).predicted
    assert better.predicted.total_ms < found.predicted.total_ms
