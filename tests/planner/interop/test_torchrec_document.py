"""Exported plans as JSON; nothing here needs torch."""

from typing import Any

import builders
import pytest
from exact_costs import ExactCosts
from neuroshard_api.document import DocumentError
from neuroshard_api.plan import Plan, Shard, ShardingType
from neuroshard_api.request import MemorySettings
from neuroshard_api.tables import DataType
from neuroshard_planner.errors import PlanError
from neuroshard_planner.imported_plan import imported_plan
from neuroshard_planner.interop.torchrec_document import TorchRecPlan, torchrec_plan
from neuroshard_planner.search import plan as search


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

    exported = torchrec_plan(plan, module_path="model.tables")

    assert exported.world_size == 4
    assert exported.local_world_size == 2
    tables = exported.modules["model.tables"]
    assert list(tables) == ["heavy", "light", "small"]
    for table in plan.tables:
        parameter = tables[table.name]
        assert parameter.sharding_type is table.sharding_type
        assert parameter.ranks == tuple(shard.device for shard in table.shards)
        assert [shard.placement for shard in parameter.shards] == [
            f"rank:{shard.device}/cuda:{shard.device % 2}" for shard in table.shards
        ]
        assert [(shard.shard_offsets, shard.shard_sizes) for shard in parameter.shards] == [
            ((0, shard.column_offset), (shard.num_rows, shard.num_columns)) for shard in table.shards
        ]
    assert tables["heavy"].sharding_type is ShardingType.COLUMN_WISE


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

    exported = torchrec_plan(imported_plan(tables, plan.request, bundle=bundle), module_path="")

    heavy_parameter = exported.modules[""]["heavy"]
    assert heavy_parameter.ranks == (2, 0, 0)
    assert [shard.shard_offsets[1] for shard in heavy_parameter.shards] == [0, 60, 100]


def test_on_the_cpu_every_rank_is_placed_on_its_host() -> None:
    """Gloo processes have no CUDA device."""
    tables = torchrec_plan(plan_of(), compute_device="cpu").modules.popitem()[1]

    assert {shard.placement for parameter in tables.values() for shard in parameter.shards} <= {
        f"rank:{rank}/cpu" for rank in range(4)
    }


def test_narrower_outputs_are_asked_for() -> None:
    """A plan for FP16 outputs says so; FP32, the module's own, is left out."""
    narrow = torchrec_plan(plan_of(memory=MemorySettings(output_data_type=DataType.FP16)))

    assert {parameter.output_dtype for parameter in narrow.modules.popitem()[1].values()} == {DataType.FP16}
    assert "output_dtype" not in torchrec_plan(plan_of()).to_json()


def test_the_document_reads_back() -> None:
    """What is written is what is read."""
    exported = torchrec_plan(plan_of())

    assert TorchRecPlan.from_json(exported.to_json()) == exported


def test_a_placement_without_a_rank_is_refused() -> None:
    """A damaged document is met with the field's path."""
    text = torchrec_plan(plan_of()).to_json().replace("rank:0/", "host0/", 1)

    with pytest.raises(DocumentError, match="placement"):
        TorchRecPlan.from_json(text)


def test_a_damaged_plan_is_not_exported() -> None:
    """What does not match its request would train wrongly or not at all."""
    plan = plan_of()
    damaged = plan.model_copy(update={"tables": plan.tables[1:]})

    with pytest.raises(PlanError, match="'heavy' of the request is missing"):
        torchrec_plan(damaged)
