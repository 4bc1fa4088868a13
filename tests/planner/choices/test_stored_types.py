"""Types of tables: chosen where they pay or where nothing fits otherwise, and written down."""

from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.stored_types import with_types
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.choices.stored_types import GoingBack
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.pipeline import plan as plan_of
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_report.explain.stored_types import stored_type_of, stored_types_text
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

BOTH = (DataType.FP32, DataType.FP16)
GIB = 2**30


def asked(**fields: Any) -> PlanRequest:
    """Return a request of tables that are read often and everywhere, each of 0.24 GiB in FP32."""
    members = builders.tables(6, pooling_factor=20.0, zipf_exponent=0.0)
    constraints = Constraints(data_types=BOTH)
    return builders.request(
        *members, **{"constraints": constraints, "search": SearchSettings(work_budget=400), **fields}
    )


def types_of(plan: Plan) -> dict[str, DataType]:
    """Return the types in which a plan stores its tables."""
    return {table.name: table.data_type for table in plan.resolved.tables.tables}


def test_tables_are_narrow_where_that_saves_more_than_the_models_error() -> None:
    """The plan says the types, what they save, and that results change; its request is as it was asked."""
    plan = planned(asked())

    found = plan.stored_types
    assert found is not None
    assert found.tables
    assert found.own_ms is not None
    assert plan.predicted.total_ms < 0.98 * found.own_ms
    assert set(types_of(plan).values()) == set(BOTH) or set(types_of(plan).values()) == {DataType.FP16}
    assert found.saved_bytes == sum(2 * 64 * 1_000_000 for _ in found.tables)
    assert {table.name for table in plan.tables if table.data_type} == {each.name for each in found.tables}
    assert plan.request == asked()
    assert not plan_problems(plan)
    assert any(warning.startswith("stored_types: ") for warning in plan.warnings)
    name = found.tables[0].name
    assert stored_type_of(plan, name) is not None
    assert "changes results" in (stored_types_text(plan) or "")
    assert Plan.from_json(plan.to_json()) == plan


def test_no_table_is_narrow_whose_optimizer_refuses_that() -> None:
    """FBGEMM's Adam refuses FP16 on GPUs: such tables keep FP32, and one that may be FP16 alone is named."""
    plan = planned(asked(optimizer=Optimizer.ADAM, search=SearchSettings(work_budget=50)))

    assert set(types_of(plan).values()) == {DataType.FP32}
    assert not any(lever.name is LeverName.STORED_TYPES for lever in plan.levers or ())
    with pytest.raises(RequestError, match=r"table 't0': .* with adam refuses weights of type FP16 .* use FP32"):
        planned(asked(optimizer=Optimizer.ADAM, constraints=Constraints(data_types=(DataType.FP16,))))


def test_only_tables_that_lower_the_step_are_narrow() -> None:
    """Those of a device that no other waits for keep their own type."""
    heavy, light = builders.tables(2, pooling_factor=1.0)
    heavy = heavy.model_copy(update={"pooling_factor": 100.0})
    plan = planned(
        asked(
            tables=builders.table_set(heavy, light),
            topology=builders.topology(2),
            constraints=Constraints(data_types=BOTH, sharding_types=(ShardingType.TABLE_WISE,), max_shards_per_table=1),
        )
    )

    assert plan.stored_types is not None
    assert [table.name for table in plan.stored_types.tables] == [heavy.name]
    assert stored_type_of(plan, light.name) == "its own: a narrow type would not shorten the step"


def test_a_placement_of_several_types_is_priced_as_a_plan_of_them() -> None:
    """Two problems, of the narrow types and of the tables' own, price every set of tables between them."""
    members = builders.tables(7, pooling_factor=20.0, data_type=DataType.FP16)
    plan = planned(builders.request(*members, search=SearchSettings(work_budget=400)))
    own = dict.fromkeys([table.name for table in members], DataType.FP32)
    costs = ExactCosts(plan.request.topology.device)
    narrow_ms = plan.predicted.total_ms

    back = GoingBack(plan, own, costs=costs)
    types = back.types((narrow_ms + back.own_ms) / 2)

    assert len(set(types.values())) == 2
    mixed = plan.request.model_copy(update={"tables": with_types(plan.request.tables, types)})
    problem = Problem(mixed, costs)
    exact_ms = predicted_cost(problem, placement_of(plan.tables, problem), costs.manifest.source).total_ms
    assert back._cost_ms(back._is_back) == pytest.approx(exact_ms, rel=1e-12)


def test_tables_that_do_not_fit_otherwise_are_narrow() -> None:
    """The plan says that there was none with their own types; without the choice, nothing fits."""
    constraints = Constraints(data_types=BOTH, max_memory_bytes_per_device=int(1.9 * GIB))
    request = asked(
        tables=builders.table_set(*builders.tables(4, num_embeddings=2_000_000, pooling_factor=0.001)),
        topology=builders.topology(1),
        batch_size_per_device=64,
        constraints=constraints,
    )

    plan = planned(request)

    assert plan.stored_types is not None
    assert plan.stored_types.tables
    assert plan.stored_types.own_ms is None
    assert not plan_problems(plan)
    with pytest.raises(InfeasibleError):
        planned(request.model_copy(update={"constraints": constraints.model_copy(update={"data_types": None})}))


def test_tables_that_do_not_fit_in_the_types_in_force_get_others() -> None:
    """A plan in force of wider types, made where there was more memory, keeps no job from one that fits."""
    asked_now = asked(
        tables=builders.table_set(*builders.tables(4, num_embeddings=2_000_000, pooling_factor=0.001)),
        topology=builders.topology(1),
        batch_size_per_device=64,
        constraints=Constraints(data_types=BOTH, max_memory_bytes_per_device=int(1.9 * GIB)),
    )
    before = planned(asked_now.model_copy(update={"constraints": Constraints()}))
    bundle = ExactCosts(asked_now.topology.device)

    found = plan_of(asked_now, bundle=bundle, incumbent=Incumbent(tables=before.tables))

    assert set(types_of(before).values()) == {DataType.FP32}
    assert DataType.FP16 in types_of(found).values()
    assert not plan_problems(found)


def test_a_request_of_the_tables_own_type_gets_the_plan_without_a_choice() -> None:
    """The same shards and costs; the plan says that no other type was permitted."""
    only = planned(asked(constraints=Constraints(data_types=(DataType.FP32,)), search=SearchSettings(work_budget=400)))
    plain = planned(asked(constraints=Constraints(), search=SearchSettings(work_budget=100)))

    assert only.tables == plain.tables
    assert only.predicted == plain.predicted
    assert only.stored_types is not None
    assert only.stored_types.reason == "no table may have a narrower type"
    assert plain.stored_types is None
    assert "data_types" not in plain.to_json()


def test_a_table_keeps_the_type_that_its_own_constraint_names() -> None:
    """Also where all others may have another, and where its own type is not among those named."""
    own = {"t0": TableConstraints(data_types=(DataType.FP32,)), "t1": TableConstraints(data_types=(DataType.FP16,))}
    plan = planned(asked(constraints=Constraints(data_types=BOTH, tables=own)))

    assert types_of(plan)["t0"] is DataType.FP32
    assert types_of(plan)["t1"] is DataType.FP16


def test_copies_on_every_device_stay_fp32() -> None:
    """A table that may be data_parallel alone is FP32; where FP32 is not permitted the request is refused."""
    own = TableConstraints(sharding_types=(ShardingType.DATA_PARALLEL,))
    plan = planned(asked(constraints=Constraints(data_types=BOTH, tables={"t0": own})))
    assert types_of(plan)["t0"] is DataType.FP32

    narrow = own.model_copy(update={"data_types": (DataType.FP16,)})
    with pytest.raises(RequestError, match=r"'t0' may be FP16 alone, and data_parallel.* permit FP32, or another"):
        planned(asked(constraints=Constraints(data_types=BOTH, tables={"t0": narrow})))


def test_types_without_a_training_kernel_are_refused() -> None:
    """FBGEMM trains FP32 and FP16 weights on every device; the message names the field and what to use."""
    for name in ("BF16", "INT8"):
        with pytest.raises(
            DocumentError,
            match=rf"data_types.*weights of type {name} on any device"
            rf"; hint: use FP32 or FP16",
        ):
            Constraints.from_data({"schema_version": "constraints/v1", "data_types": [name]})
    with pytest.raises(DocumentError, match="data_types"):
        Constraints.from_data({"schema_version": "constraints/v1", "data_types": []})


def test_a_plan_with_a_type_that_nothing_chose_is_refused() -> None:
    """The record and the placement have one type, and the request's table its own."""
    plan = planned(asked())
    assert plan.stored_types is not None
    index = next(index for index, table in enumerate(plan.tables) if table.data_type)
    for path, value, found in (
        (f"tables.{index}.data_type", "FP32", "chosen: is FP16"),
        (f"request.tables.tables.{index}.data_type", "FP16", "own: is FP32"),
    ):
        with pytest.raises(DocumentError, match=rf"stored_types.tables\[0\].{found}"):
            Plan.from_data(builders.data_with(plan, path, value))
    limited = builders.data_with(plan, "request.constraints.data_types", ["FP32"])
    assert any(
        "is stored as FP16, the constraints allow FP32" in each for each in plan_problems(Plan.from_data(limited))
    )
