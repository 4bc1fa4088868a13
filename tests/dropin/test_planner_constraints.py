"""What the drop-in keeps of TorchRec's constraints and of what sharders allow, and what it names instead."""

import logging
from typing import Any

import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from support.dropin.dropin_models import META, Remapped, TwoTowers, config
from support.dropin.dropin_planners import kinds, planned, planner
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_modules import EmbeddingBagCollection


def test_constraints_of_torchrec_are_kept() -> None:
    """Types, widths, and lookups, by the table's name."""
    limits = {
        "country": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[40.0]),
        "tags": CUT,
    }
    made = planner(constraints=limits)
    made.plan(TwoTowers())
    shards = {table.name: table.shards for table in planned(made).tables}

    assert len(shards["country"]) == 1
    assert {each.num_columns for each in shards["tags"]} == {16}  # so many lookups are worth the cut


def test_what_has_no_counterpart_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments of TorchRec's planner, and fields of its constraints."""
    with caplog.at_level(logging.WARNING):
        planner(timeout_seconds=5, stats=None, constraints={"tags": ParameterConstraints(enforce_hbm=True)}).plan(
            TwoTowers()
        )

    assert "no counterpart of stats, timeout_seconds" in caplog.text
    assert "constraints['tags'].enforce_hbm is not kept" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"num_poolings": [2.0]},
        {"batch_sizes": [64]},
        {"is_weighted": True},
        {"feature_names": ["tags_id"]},
        {"output_dtype": TorchRecType.FP16},
        {"use_virtual_table": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_every_field_of_a_constraint_that_is_not_kept_is_named(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where it differs from its default."""
    with caplog.at_level(logging.WARNING):
        planner(constraints={"tags": ParameterConstraints(**given), "country": ParameterConstraints()}).plan(
            TwoTowers()
        )

    assert [line for line in caplog.messages if "not kept" in line] == [
        f"constraints['tags'].{next(iter(given))} is not kept"
    ]


def test_kernels_of_host_memory_are_kept_where_constraints_name_them() -> None:
    """In the memory that TorchRec's topology gives each rank, ddr_cap, those of a node together."""
    topology = Topology(
        world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30, ddr_cap=100 * 2**30
    )
    made = planner(
        topology=topology,
        constraints={"country": ParameterConstraints(compute_kernels=["fused_uvm_caching"])},
    )
    found = made.plan(TwoTowers())

    memory = planned(made).request.topology.host_memory
    assert memory is not None
    assert memory.bytes_per_node == 4 * 100 * 2**30
    kernels = {name: each.compute_kernel for tables in found.plan.values() for name, each in tables.items()}
    assert kernels.pop("country") == "fused_uvm_caching"
    assert set(kernels.values()) == {"fused"}


def test_host_memory_without_a_size_is_refused() -> None:
    """Nothing is assumed of the node."""
    limits = {"country": ParameterConstraints(compute_kernels=["fused_uvm"])}
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=4)
    with pytest.raises(DropInError, match="may run with fused_uvm, and the topology has no host_memory"):
        planner(topology=topology, constraints=limits).plan(TwoTowers())


def test_a_table_that_may_be_in_either_memory_is_on_the_device_where_nodes_have_none() -> None:
    """The list permits host memory and does not ask for it."""
    limits = {"country": ParameterConstraints(compute_kernels=["fused", "fused_uvm_caching"])}
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=4)
    made = planner(topology=topology, constraints=limits)
    found = made.plan(TwoTowers())

    assert planned(made).request.topology.host_memory is None
    assert {each.compute_kernel for tables in found.plan.values() for each in tables.values()} == {"fused"}


COLUMNS = ["table_wise", "column_wise"]
CUT = ParameterConstraints(sharding_types=COLUMNS, min_partition=16, pooling_factors=[2000.0])
"""That many lookups are worth a cut of a table of 32 columns."""


def test_a_collection_without_a_cut_table_keeps_table_wise_tables() -> None:
    """Each collection has kernels of its own; next to a cut table, whole ones are column_wise with one shard."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    made = planner(constraints={"tags": CUT, "id": whole, "country": whole})

    assert kinds(made.plan(TwoTowers())) == {
        "users": {"id": "table_wise", "country": "table_wise"},
        "items": {"id": "column_wise", "tags": "column_wise"},
    }


def test_a_table_that_may_only_be_column_wise_may_have_one_shard() -> None:
    """As TorchRec has it; it is called column_wise."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    columns = ParameterConstraints(sharding_types=["column_wise"], min_partition=8)
    made = planner(constraints={"country": columns, "id": whole, "tags": whole})
    found = made.plan(TwoTowers())

    assert {table.name: len(table.shards) for table in planned(made).tables}["country"] == 1
    assert kinds(found)["users"]["country"] == "column_wise"
    assert set(kinds(found)["items"].values()) == {"table_wise"}


def test_types_that_constraints_name_are_searched() -> None:
    """Rows of a table on all devices, columns of another."""
    module = EmbeddingBagCollection(tables=[config("a"), config("b")], device=META)
    limits = {
        "a": ParameterConstraints(sharding_types=["row_wise"]),
        "b": ParameterConstraints(sharding_types=COLUMNS),
    }
    found = planner(constraints=limits).plan(module).plan[""]

    assert found["a"].sharding_type == "row_wise"
    assert [shard.shard_sizes for shard in found["a"].sharding_spec.shards] == [[250, 16]] * 4
    assert found["b"].sharding_type in {"table_wise", "column_wise"}


def test_tables_of_managed_collision_are_cut_by_rows() -> None:
    """TorchRec's sharders allow nothing else, for bags and for sequences."""
    found = kinds(planner().plan(nn.ModuleDict({"remapped": Remapped(length=3)})))

    assert found["remapped.bags"] == {"ids": "row_wise"}
    assert found["remapped.rows"] == {"words": "row_wise"}


def test_buckets_of_managed_collision_that_are_uneven_are_refused() -> None:
    """As by TorchRec's planner: rows of a bucket stay on one device."""
    topology = Topology(world_size=3, compute_device="cuda", local_world_size=3, hbm_cap=80 * 2**30)

    with pytest.raises(DropInError, match="table 'ids' has 4 buckets of managed collision on 3 devices"):
        planner(topology=topology).plan(Remapped(length=3))


def test_means_hold_back_the_tables_of_their_collection_alone() -> None:
    """Rows of a table next to a table of means would be averaged; those of another collection are not."""
    rows = ParameterConstraints(sharding_types=["row_wise"])
    found = kinds(planner(constraints={"tags": rows}).plan(TwoTowers()))

    assert found["items"]["tags"] == "row_wise"
    with pytest.raises(DropInError, match="'users/id': row_wise is not searched next to tables of mean pooling"):
        planner(constraints={"id": rows}).plan(TwoTowers())


def test_constraints_are_given_by_name() -> None:
    """TorchRec's third argument is another one."""
    with pytest.raises(TypeError, match="positional"):
        NeuroShardPlanner(None, 4, {})  # type: ignore[call-arg]


def test_tables_without_limits_have_all_types_but_data_parallel() -> None:
    """The script itself has to update data_parallel tables; a limit of one table says nothing of the other."""
    limits = {"tags": ParameterConstraints(sharding_types=["table_wise"])}

    made = planner(constraints=limits)
    made.plan(TwoTowers())
    found = planned(made).request.constraints

    assert found.excluded_sharding_types == (ShardingType.DATA_PARALLEL,)
    assert found.max_shard_width == 2048, "what the kernels of the installed FBGEMM take on GPUs"
    assert found.sharding_types is None
    assert found.sharding_types_of("items/id") is None
    assert {name: each.sharding_types for name, each in found.tables.items()} == {"tags": (ShardingType.TABLE_WISE,)}
