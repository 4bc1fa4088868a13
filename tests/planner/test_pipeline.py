"""What was asked and what was chosen: a plan keeps the first, and its costs are those of both together."""

from typing import Any

import pytest
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_api.documents.gradient_exchange import GradientChoices, GradientType
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.resolved_request import request_of_group
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling
from neuroshard_api.documents.topology import Link
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_report.explain.alone import of_group
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

SLOW = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
WIRE = CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,))
TYPES = Constraints(data_types=(DataType.FP32, DataType.FP16))


def asked(**fields: Any) -> PlanRequest:
    """Return a request of tables with repeats on two nodes."""
    members = [
        table.model_copy(update={"duplication_group": "user", "duplication_factor": 6.0, "pooling": Pooling.SUM})
        for table in builders.tables(8, embedding_dim=32, pooling_factor=20.0, num_embeddings=20_000)
    ]
    defaults = {
        "topology": builders.topology(8, num_nodes=2, inter_node=SLOW),
        "batch_size_per_device": 4096,
        "optimizer": Optimizer.SGD,
        "search": builders.QUICK,
    }
    return builders.request(tables=builders.table_set(*members, session_run=8), **{**defaults, **fields})


GROUPS = {"replication": ReplicationChoices(sync_every_steps=10)}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "repeats": ("deduplicate", {"deduplicate": ("user",)}),
    "types on the wire": ("wire", {"communication": WIRE}),
    "types of tables": ("tables", {"constraints": TYPES, "topology": builders.topology(2)}),
    "groups": ("topology", {"constraints": Constraints(sharding_types=BY_COLUMNS), **GROUPS}),
    "all": (
        "deduplicate",
        {
            "deduplicate": ("user",),
            "communication": WIRE,
            "constraints": TYPES.model_copy(update={"sharding_types": BY_COLUMNS}),
            "gradient_choices": GradientChoices(types=(GradientType.BF16,)),
            **GROUPS,
        },
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_keeps_what_was_asked_and_says_what_was_chosen(form: str) -> None:
    """The same request gives the same bytes again; the resolved one gives the plan's own price for its shards."""
    field, fields = FORMS[form]
    request = asked(**fields)
    costs = ExactCosts(request.topology.device)

    plan = planned(request)

    assert plan.request == request
    assert getattr(plan.resolved, field) != getattr(request.model_copy(update={"deduplicate": None}), field)
    assert plan_problems(plan) == []
    assert planned(Plan.from_json(plan.to_json()).request).to_json() == plan.to_json()
    own = of_group(plan)
    again = imported_plan(own.tables, own.resolved, bundle=costs)
    assert again.predicted.total_ms == pytest.approx(own.predicted.total_ms, rel=1e-12)
    assert again.memory == own.memory
    assert own.resolved == again.resolved
    nothing_left = ("communication", "gradient_choices", "replication")
    assert [getattr(own.resolved, field) for field in nothing_left] == [None, None, None]


def test_a_request_that_permits_nothing_is_resolved() -> None:
    """Also where it gives types: they are what it asks for."""
    plan = planned(asked(wire=WIRE.pairs[0]))

    assert plan.resolved == plan.request
    assert plan.choices is None


@pytest.mark.parametrize(
    ("given", "limited"),
    [
        (Constraints(), Constraints(excluded_sharding_types=(ShardingType.DATA_PARALLEL,))),
        (
            Constraints(sharding_types=(ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL)),
            Constraints(sharding_types=(ShardingType.ROW_WISE,)),
        ),
        (
            Constraints(excluded_sharding_types=(ShardingType.ROW_WISE,)),
            Constraints(excluded_sharding_types=(ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL)),
        ),
    ],
)
def test_no_table_of_a_group_is_a_copy_on_all_devices(given: Constraints, limited: Constraints) -> None:
    """All other constraints are as they were asked for."""
    group = builders.topology(4)

    assert request_of_group(asked(constraints=given), group) == asked(constraints=limited, topology=group)
