"""What would help a plan: named where it pays, with the option and the field, and kept as promised."""

from typing import Any

import pytest
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.tables import DataType
from neuroshard_planner.levers import questions, with_levers
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.terminal.plan import render_plan
from rich.console import Console
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned


def levered(request: PlanRequest) -> Plan:
    """Return the plan of a request with its levers."""
    return with_levers(planned(request), costs=ExactCosts(request.topology.device))


def exchanging(**fields: Any) -> PlanRequest:
    """Return a request whose exchange between nodes takes most of the step."""
    defaults = {
        "topology": builders.topology(16, num_nodes=2),
        "batch_size_per_device": 8192,
        "search": SearchSettings(work_budget=2000),
        "constraints": Constraints(sharding_types=BY_COLUMNS),
    }
    return builders.request(*builders.tables(32, embedding_dim=128), **{**defaults, **fields})


def test_a_lever_that_pays_is_named_with_its_option_and_kept() -> None:
    """The plan with it costs what was promised, within 3 %."""
    plan = levered(exchanging())

    assert plan.levers is not None
    (wire,) = (each for each in plan.levers if each.name is LeverName.WIRE_TYPES)
    (question,) = (each for each in questions(plan) if each.name is LeverName.WIRE_TYPES)
    assert planned(question.request).predicted.total_ms == pytest.approx(wire.total_ms, rel=0.03)
    assert wire.total_ms < 0.9 * plan.predicted.total_ms
    assert wire.option == "--wire-forward BF16 --wire-backward BF16"
    assert plan.levers == tuple(sorted(plan.levers, key=lambda each: -each.saved_share))
    assert Plan.from_json(plan.to_json()) == plan
    console = Console(width=500, record=True)
    console.print(render_plan(plan))
    assert f"{wire.option}, or spec.training.communication" in console.export_text()


@pytest.mark.parametrize(
    "fields",
    [
        {"topology": builders.topology(1), "constraints": Constraints(data_types=(DataType.FP32,))},
        {"algorithm": Algorithm.DIM_GREEDY},
    ],
    ids=["nothing travels, and types are given", "baseline"],
)
def test_no_lever_is_named_where_none_helps(fields: dict[str, Any]) -> None:
    """The plan has no such field."""
    plan = levered(exchanging(**fields))

    assert plan.levers is None
    assert "levers" not in plan.to_json()


def test_what_is_permitted_already_is_no_lever() -> None:
    """Also where the plan decided against it."""
    repeated = [
        table.model_copy(update={"duplication_group": "user", "duplication_factor": 1.01})
        for table in builders.tables(4)
    ]
    request = builders.request(tables=builders.table_set(*repeated, session_run=8), search=builders.QUICK)

    assert LeverName.REPEATS in {each.name for each in questions(planned(request))}
    asked = planned(request.model_copy(update={"deduplicate": ("user",)}))
    assert LeverName.REPEATS not in {each.name for each in questions(asked)}
