"""Exported plans as JSON; nothing here needs torch."""

from typing import Any

import builders
import pytest
from exact_costs import ExactCosts
from neuroshard_api.document import DocumentError
from neuroshard_api.plan import Plan, Shard, ShardingType
from neuroshard_api.request import MemorySettings
from neuroshard_api.tables import DataType
from neuroshard_api.torchrec_plan import TorchRecPlan
from neuroshard_planner.interop.imported_plan import imported_plan
from neuroshard_planner.planning import plan as search


def plan_of(**fields: Any) -> Plan:
    """Return a plan for one heavy and two light tables on two nodes of two devices."""
    members = [
        builders.table("heavy", embedding_dim=256, pooling_factor=50.0),
        builders.table("light"),
        builders.table("small", embedding_dim=16),
    ]
    request = builders.request(*members, topology=builders.topology(4, num_nodes=2), **fields)
    return search(request, bundle=ExactCosts(request.topology.device))


def test_every_shard_has_its_rank_and_its_local_device() -> None:
    """Ranks count through all nodes, CUDA devices start anew in each."""
    plan = plan_of()

    exported = TorchRecPlan.of(plan, module_path="model.tables")

    assert exported.world_size == 4
    assert exported.local_world_size == 2
    tables = exported.modules["model.tables"]
    assert list(tables) == ["heavy", "light", "small"]
    for table in plan.tables:
        parameter = tables[table.name]
        assert parameter.sharding_type is ShardingType.COLUMN_WISE  # all in one kernel and one all-to-all
        assert parameter.ranks == tuple(shard.device for shard in table.shards)
        assert [shard.placement for shard in parameter.shards] == [
            f"rank:{shard.device}/cuda:{shard.device % 2}" for shard in table.shards
        ]
        assert [(shard.shard_offsets, shard.shard_sizes) for shard in parameter.shards] == [
            ((0, shard.column_offset), (shard.num_rows, shard.num_columns)) for shard in table.shards
        ]
    assert plan.tables[0].sharding_type is ShardingType.COLUMN_WISE
    assert plan.tables[2].sharding_type is ShardingType.TABLE_WISE


def test_shards_are_in_the_order_of_their_columns() -> None:
    """TorchRec joins column shards in the order of the list; repeated ranks and uneven widths are kept."""
    plan = plan_of()
    heavy = plan.tables[0]
    rows = heavy.shards[0].num_rows
    cut = [(0, 100, 156), (2, 0, 60), (0, 60, 40)]
    shards = tuple(
        Shard(device=device, num_rows=rows, column_offset=offset, num_columns=width) for device, offset, width in cut
    )
    bundle = ExactCosts(plan.request.topology.device)
    tables = (
        heavy.model_copy(update={"shards": shards, "sharding_type": ShardingType.COLUMN_WISE}),
        *plan.tables[1:],
    )

    exported = TorchRecPlan.of(imported_plan(tables, plan.request, bundle=bundle), module_path="")

    heavy_parameter = exported.modules[""]["heavy"]
    assert heavy_parameter.ranks == (2, 0, 0)
    assert [shard.shard_offsets[1] for shard in heavy_parameter.shards] == [0, 60, 100]


def test_on_the_cpu_every_rank_is_placed_on_its_host() -> None:
    """Gloo processes have no CUDA device."""
    tables = TorchRecPlan.of(plan_of(), compute_device="cpu").modules.popitem()[1]

    assert {shard.placement for parameter in tables.values() for shard in parameter.shards} <= {
        f"rank:{rank}/cpu" for rank in range(4)
    }


def test_narrower_outputs_are_asked_for() -> None:
    """A plan for FP16 outputs says so; FP32, the module's own, is left out."""
    narrow = TorchRecPlan.of(plan_of(memory=MemorySettings(output_data_type=DataType.FP16)))

    assert {parameter.output_dtype for parameter in narrow.modules.popitem()[1].values()} == {DataType.FP16}
    assert "output_dtype" not in TorchRecPlan.of(plan_of()).to_json()


def test_the_document_reads_back() -> None:
    """What is written is what is read."""
    exported = TorchRecPlan.of(plan_of())

    assert TorchRecPlan.from_json(exported.to_json()) == exported


def test_a_placement_without_a_rank_is_refused() -> None:
    """A damaged document is met with the field's path."""
    text = TorchRecPlan.of(plan_of()).to_json().replace("rank:0/", "host0/", 1)

    with pytest.raises(DocumentError, match="placement"):
        TorchRecPlan.from_json(text)


def test_whole_tables_alone_are_table_wise() -> None:
    """Where nothing is cut, TorchRec's plain type says it."""
    tables = TorchRecPlan.of(builders.plan()).modules.popitem()[1]

    assert {parameter.sharding_type for parameter in tables.values()} == {ShardingType.TABLE_WISE}


def test_a_table_cut_by_rows_is_refused() -> None:
    """Row shards give sums of parts, which the costs do not know."""
    plan = builders.plan()
    by_rows = plan.tables[1].model_copy(update={"sharding_type": ShardingType.ROW_WISE})

    with pytest.raises(DocumentError, match=r"tables\[1\].sharding_type: is row_wise, only .*'t1'"):
        TorchRecPlan.of(plan.model_copy(update={"tables": (plan.tables[0], by_rows, *plan.tables[2:])}))
