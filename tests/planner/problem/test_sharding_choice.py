"""Which sharding types are left for each table, and the message where none is."""

from typing import Any

import pytest
from neuroshard_api.documents.bundle import BundleManifest, Calibration
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling, Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType
from neuroshard_planner.errors import RequestError
from neuroshard_planner.problem.sharding_choice import default_types
from support.builders import request, table, tables, topology
from support.planner.exact_costs import ExactCosts
from support.planner.searches import problem_of

TW, CW, RW, TWRW, GRID, DP = ShardingType
ALL = tuple(ShardingType)
TWO_NODES = topology(4, num_nodes=2)
SIMULATED = ExactCosts(TWO_NODES.device).manifest
MEASURED = SIMULATED.model_copy(update={"source": "measured:H100"})
MEASURED_ROWS = MEASURED.model_copy(
    update={
        "calibration": Calibration(
            source="measured:H100",
            num_records=8,
            compute_scale=(1.0, 1.0),
            reduction_factors={Family.ROWS: (1.2, 1.1)},
            mape_before=0.2,
            mape_after=0.1,
        )
    }
)


def types_of(asked: PlanRequest) -> list[set[ShardingType]]:
    """Return the types of each unit."""
    return [set(types) for types in problem_of(asked).sharding_types]


@pytest.mark.parametrize(
    ("manifest", "excluded", "left"),
    [
        pytest.param(SIMULATED, None, set(ALL), id="simulated"),
        pytest.param(SIMULATED, (DP,), {*ALL} - {DP}, id="one is excluded"),
        pytest.param(MEASURED, None, {TW, CW}, id="measured"),
        pytest.param(MEASURED_ROWS, None, {TW, CW, RW}, id="measured, also of rows"),
    ],
)
def test_unnamed_types_are_those_whose_collectives_the_cost_models_know(
    manifest: BundleManifest, excluded: tuple[ShardingType, ...] | None, left: set[ShardingType]
) -> None:
    """A simulator knows all; measurements, those that they are of."""
    asked = request(table(), topology=TWO_NODES, constraints=Constraints(excluded_sharding_types=excluded))

    assert {*default_types(asked, manifest)} == left


def test_all_types_are_left_where_nothing_excludes_one() -> None:
    """FP32, row-wise Adagrad, sum pooling, two nodes of two devices."""
    assert types_of(request(table(), topology=TWO_NODES, constraints=Constraints(sharding_types=ALL))) == [set(ALL)]


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        pytest.param({"optimizer": Optimizer.ADAM}, {TW, CW, RW, TWRW, GRID}, id="moments would decay"),
        pytest.param({"topology": topology(4)}, {TW, CW, RW, DP}, id="one node"),
        pytest.param({"topology": topology(4, num_nodes=4)}, {TW, CW, RW, DP}, id="nodes of one device"),
        pytest.param({"topology": topology(1)}, {TW, CW, DP}, id="one device"),
    ],
)
def test_request_wide_settings_exclude_types(fields: dict[str, Any], left: set[ShardingType]) -> None:
    """What TorchRec cannot run or what changes nothing is not searched."""
    asked: dict[str, Any] = {"topology": TWO_NODES, "constraints": Constraints(sharding_types=ALL)} | fields

    assert types_of(request(table(), **asked)) == [left]


@pytest.mark.parametrize(
    ("member", "left"),
    [
        pytest.param(table("a", data_type=DataType.FP16), {TW, CW, RW, TWRW, GRID}, id="FP16 copies round otherwise"),
        pytest.param(table("a", num_embeddings=3), {TW, CW, TWRW, GRID, DP}, id="fewer rows than devices"),
        pytest.param(table("a", colocation_group="g"), {TW, CW}, id="co-located"),
        pytest.param(table("a", pooling=Pooling.MEAN), {TW, CW, DP}, id="means"),
        pytest.param(table("a", pooling=Pooling.NONE), {TW, CW, RW, DP}, id="a sequence by node"),
    ],
)
def test_a_table_excludes_types(member: Table, left: set[ShardingType]) -> None:
    """Rows and types of a table, its group, and its pooling."""
    asked = request(member, topology=TWO_NODES, constraints=Constraints(sharding_types=ALL))

    assert types_of(asked) == [left]


def test_rows_of_means_are_not_cut_next_to_sums() -> None:
    """TorchRec would divide the sums by their bags' lengths too; the sums themselves may be cut."""
    asked = request(
        table("a"), table("b", pooling=Pooling.MEAN), topology=TWO_NODES, constraints=Constraints(sharding_types=ALL)
    )

    assert types_of(asked) == [set(ALL), {TW, CW, DP}]


def test_means_leave_the_tables_of_other_collections_all_types() -> None:
    """TorchRec runs each collection for itself, and sequences are never in one with bags."""
    asked = request(
        table("a", pooling=Pooling.MEAN, collection="users"),
        table("b", collection="items"),
        table("c", pooling=Pooling.NONE, collection="users"),
        topology=TWO_NODES,
        constraints=Constraints(sharding_types=ALL),
    )

    assert types_of(asked) == [{TW, CW, DP}, set(ALL), {TW, CW, RW, DP}]


def test_devices_leave_the_types_that_fit_them() -> None:
    """Both devices of a node allow a table cut by its rows, all devices every type, one device neither."""
    pins = {
        "t0": TableConstraints(devices=(0, 1)),
        "t1": TableConstraints(devices=(0, 1, 2, 3)),
        "t2": TableConstraints(devices=(1,)),
    }
    asked = request(*tables(3), topology=TWO_NODES, constraints=Constraints(sharding_types=ALL, tables=pins))

    assert types_of(asked) == [{TW, CW, TWRW, GRID}, set(ALL), {TW, CW}]


def test_a_forbidden_device_excludes_what_is_on_all() -> None:
    """The other node is still whole."""
    asked = request(table(), topology=TWO_NODES, constraints=Constraints(sharding_types=ALL, forbidden_devices=(3,)))

    assert types_of(asked) == [{TW, CW, TWRW, GRID}]


def test_kernels_exclude_the_types_that_need_others() -> None:
    """Copies run with the dense kernel, everything else with the fused one."""
    asked = request(
        table(),
        topology=TWO_NODES,
        constraints=Constraints(sharding_types=ALL, compute_kernels=(ComputeKernel.DENSE,)),
    )

    assert types_of(asked) == [{DP}]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        pytest.param(
            request(
                *tables(2),
                constraints=Constraints(sharding_types=(TW, CW), compute_kernels=(ComputeKernel.DENSE,)),
            ),
            "for table 't0': table_wise needs the kernel fused, allowed are dense; column_wise needs",
            id="kernel",
        ),
        pytest.param(
            request(*tables(2), constraints=Constraints(sharding_types=(RW,), forbidden_devices=(0,))),
            "row_wise needs all devices, some of which devices or forbidden_devices exclude",
            id="a device is forbidden",
        ),
        pytest.param(
            request(*tables(2), constraints=Constraints(sharding_types=(DP,)), optimizer=Optimizer.ADAM),
            "would decay; hint: add table_wise with the kernel fused, or use one of sgd, rowwise_adagrad, adagrad",
            id="optimizer",
        ),
        pytest.param(
            request(*tables(2, num_embeddings=3), constraints=Constraints(sharding_types=(RW,))),
            "row_wise cannot be run: row_wise leaves a device without a row",
            id="rows",
        ),
        pytest.param(
            request(
                table(), topology=TWO_NODES, constraints=Constraints(sharding_types=(GRID,), forbidden_devices=(3,))
            ),
            "grid_shard needs two whole nodes, or table_row_wise next to it",
            id="a grid on one node",
        ),
    ],
)
def test_a_table_without_any_type_is_named_with_what_excludes_each(asked: PlanRequest, problem: str) -> None:
    """The sentence says for each type what excludes it, and how to go on."""
    with pytest.raises(RequestError, match=problem):
        _ = problem_of(asked).sharding_types


@pytest.mark.parametrize(
    ("devices", "asked", "left"),
    [
        pytest.param(topology(1), {RW}, {TW}, id="rows of one device"),
        pytest.param(topology(1), {DP}, {DP}, id="the copy of one device"),
        pytest.param(topology(4), {TWRW}, {RW}, id="rows of the only node"),
        pytest.param(topology(4), {GRID}, {RW}, id="one block of the only node"),
        pytest.param(topology(4, num_nodes=4), {TWRW}, {TW}, id="rows of a node of one device"),
        pytest.param(topology(4, num_nodes=4), {GRID}, {TW, CW}, id="blocks on nodes of one device"),
        pytest.param(TWO_NODES, {CW}, {TW, CW}, id="one block of columns"),
    ],
)
def test_types_that_few_devices_make_trivial_are_placed_as_what_they_come_to(
    devices: Topology, asked: set[ShardingType], left: set[ShardingType]
) -> None:
    """A script of 16 GPUs is tried on one under the types that it names."""
    assert types_of(request(table(), topology=devices, constraints=Constraints(sharding_types=tuple(asked)))) == [left]


def test_a_plan_has_one_type_of_tables_cut_by_the_rows_of_a_node() -> None:
    """TorchRec makes one call of table_row_wise tables and another of grid_shard ones; an export has one of them."""
    own = {"t1": TableConstraints(sharding_types=(TW, TWRW))}
    asked = request(*tables(2), topology=TWO_NODES, constraints=Constraints(sharding_types=ALL, tables=own))

    assert types_of(asked) == [{TW, CW, RW, TWRW, DP}, {TW, TWRW}]

    own["t0"] = TableConstraints(sharding_types=(GRID,))
    asked = request(*tables(2), topology=TWO_NODES, constraints=Constraints(tables=own))
    with pytest.raises(RequestError, match="'t1' may be table_row_wise and not grid_shard, 't0' grid_shard alone"):
        _ = problem_of(asked).sharding_types
