"""The forms that a plan was compared with, as `neuroshard explain` shows them."""

from neuroshard_report.explain.plan import explain_plan
from neuroshard_report.terminal.explanation import render_plan_explanation
from rich.console import Console
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned


def test_an_explanation_says_what_was_tried_and_why_it_was_not_taken() -> None:
    """Repeats that save less than the cost models distinguish; a request without a choice has no such table."""
    members = [
        table.model_copy(update={"duplication_group": "user", "duplication_factor": 1.01})
        for table in builders.tables(4)
    ]
    request = builders.request(
        tables=builders.table_set(*members, session_run=8), deduplicate=("user",), search=builders.QUICK
    )
    shown = []
    for asked in (request, request.model_copy(update={"deduplicate": None})):
        plan = planned(asked)
        console = Console(width=300, record=True)
        console.print(render_plan_explanation(explain_plan(plan, bundle=ExactCosts(asked.topology.device))))
        shown.append(console.export_text())

    with_choice, without = shown
    line = next(line for line in with_choice.splitlines() if "no repeats of user" in line)
    assert line.startswith("repeats")
    assert "no plan of it takes less than" in line or "its best plan takes" in line
    assert "another form" not in without
