"""Exported plans as JSON; nothing here needs torch."""

from functools import cache
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm, Shard, TablePlacement
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import Rack, Topology
from neuroshard_api.documents.torchrec_plan import TorchRecParameter, TorchRecPlan
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.imported_plan import imported_plan
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, grid, on_host, on_node


@cache
def plan_of(**fields: Any) -> Plan:
    """Return a plan for one heavy and two light tables on two nodes of two devices."""
    members = [
        builders.table("heavy", embedding_dim=256, pooling_factor=50.0),
        builders.table("light"),
        builders.table("small", embedding_dim=16),
    ]
    request = builders.request(*members, topology=builders.topology(4, num_nodes=2), **fields)
    return search(request, bundle=ExactCosts(request.topology.device))


def test_tables_by_node_are_cut_over_the_nodes_of_a_domain() -> None:
    """The document says how many, and its shards are checked for them."""
    plain = builders.topology(4, num_nodes=2)
    racks = builders.topology(4, num_nodes=2, rack=Rack(num_nodes=2, link=plain.intra_node))
    user = builders.table("user")
    domain = TorchRecPlan.of(given_plan(builders.request(user, topology=racks), on_node(user, 0, racks)))
    whole = TorchRecPlan.of(given_plan(builders.request(user, topology=plain), by_columns(user, (3, 64))))

    assert (domain.local_world_size, domain.pod_size) == (2, 2)
    [parameters] = domain.modules.values()
    assert [each.placement for each in parameters["user"].shards] == [
        f"rank:{rank}/cuda:{rank % 2}" for rank in range(4)
    ]
    assert whole.pod_size is None
    with pytest.raises(DocumentError, match="pod_size: domains of 6 processes do not divide 4"):
        TorchRecPlan.from_json(domain.to_json().replace('"pod_size": 2', '"pod_size": 3'))


def test_every_shard_has_its_rank_and_its_local_device() -> None:
    """Ranks count through all nodes, CUDA devices start again in each."""
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


@pytest.mark.parametrize("form", DeduplicationForm)
def test_groups_without_repeats_are_in_the_export(form: DeduplicationForm) -> None:
    """The price is that of batches without their repeats; shards are those of any form."""
    plan = plan_of()
    group = DeduplicatedGroup(group="heavy", features=("heavy",), factor=4.0, form=form)

    exported = TorchRecPlan.of(plan.model_copy(update={"deduplication": (group,)}))

    assert TorchRecPlan.from_json(exported.to_json()).deduplication == (group,)
    assert exported.modules == TorchRecPlan.of(plan).modules
    assert TorchRecPlan.of(plan).deduplication is None


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


TOPOLOGY = builders.topology(4, num_nodes=2)
TABLES = (
    builders.table("few", num_embeddings=7, embedding_dim=16),
    builders.table("many", num_embeddings=10, embedding_dim=32),
)


def exported(*tables: TablePlacement) -> dict[str, TorchRecParameter]:
    """Return TorchRec's form of two tables on two nodes of two devices."""
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=TOPOLOGY)
    return TorchRecPlan.of(given_plan(request, *tables), module_path="").modules[""]


def test_rows_are_written_in_the_order_of_the_ranks() -> None:
    """Blocks are equal but for the last: 10 rows on 4 ranks are 3, 3, 3, and 1."""
    many = exported(everywhere(TABLES[0], TOPOLOGY), by_rows(TABLES[1], TOPOLOGY))["many"]

    assert (many.sharding_type, many.compute_kernel, many.ranks) == ("row_wise", "fused", (0, 1, 2, 3))
    assert [shard.shard_sizes for shard in many.shards] == [(3, 32), (3, 32), (3, 32), (1, 32)]
    assert [shard.shard_offsets for shard in many.shards] == [(0, 0), (3, 0), (6, 0), (9, 0)]


def test_replicated_tables_have_a_dense_kernel_and_no_shards() -> None:
    """TorchRec finds their ranks alone; a fused kernel would raise an empty AssertionError."""
    many = exported(by_rows(TABLES[0], TOPOLOGY), everywhere(TABLES[1], TOPOLOGY))["many"]

    assert (many.sharding_type, many.compute_kernel, many.ranks) == ("data_parallel", "dense", (0, 1, 2, 3))
    assert many.shards == ()


def test_host_kernels_are_written_with_the_size_of_their_cache() -> None:
    """TorchRec takes the load factor as a part of CacheParams."""
    topology = builders.topology(4, num_nodes=2, host_memory=builders.host_memory())
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=topology)
    placed = (on_host(by_columns(TABLES[0], (1, 16)), cache_load_factor=0.25), on_host(by_rows(TABLES[1], topology)))
    written = TorchRecPlan.of(given_plan(request, *placed), module_path="")

    few, many = written.modules[""].values()
    assert (few.compute_kernel, few.cache_load_factor) == ("fused_uvm_caching", 0.25)
    assert (many.compute_kernel, many.cache_load_factor) == ("fused_uvm", None)
    assert TorchRecPlan.from_json(written.to_json()) == written


def test_a_whole_table_joins_the_kernel_of_cut_ones_unless_constraints_name_its_type() -> None:
    """A script that asks for table_wise alone finds it, at the price of a kernel and an exchange."""
    placed = (by_columns(TABLES[0], (1, 16)), by_columns(TABLES[1], (0, 16), (1, 16)))
    for asked, expected in ((None, "column_wise"), ((ShardingType.TABLE_WISE,), "table_wise")):
        constraints = Constraints(tables={"few": TableConstraints(sharding_types=asked)})
        request = PlanRequest(tables=builders.table_set(*TABLES), topology=TOPOLOGY, constraints=constraints)
        few, many = TorchRecPlan.of(given_plan(request, *placed), module_path="").modules[""].values()

        assert (few.sharding_type, many.sharding_type) == (expected, "column_wise")


def test_tables_on_a_node_join_the_kernel_of_the_grid() -> None:
    """A table by rows on one node is a grid of one block; alone it keeps its own name."""
    joined = exported(on_node(TABLES[0], 1, TOPOLOGY), grid(TABLES[1], TOPOLOGY, (0, 12), (0, 20)))
    alone = exported(on_node(TABLES[0], 1, TOPOLOGY), by_rows(TABLES[1], TOPOLOGY))

    assert [(each.sharding_type, each.ranks) for each in joined.values()] == [
        ("grid_shard", (2, 3)),
        ("grid_shard", (0, 1, 0, 1)),
    ]
    assert alone["few"].sharding_type is ShardingType.TABLE_ROW_WISE


@pytest.mark.parametrize(
    ("devices", "asked", "ranks"),
    [
        pytest.param(builders.topology(1), ShardingType.ROW_WISE, (0,), id="rows of one device"),
        pytest.param(builders.topology(1), ShardingType.DATA_PARALLEL, (0,), id="the copy of one device"),
        pytest.param(builders.topology(1), ShardingType.GRID, (0,), id="the block of one device"),
        pytest.param(builders.topology(2), ShardingType.TABLE_ROW_WISE, (0, 1), id="rows of the only node"),
        pytest.param(builders.topology(2), ShardingType.GRID, (0, 1), id="one block of the only node"),
        pytest.param(builders.topology(2, num_nodes=2), ShardingType.TABLE_ROW_WISE, (0,), id="a node of one device"),
        pytest.param(builders.topology(2), ShardingType.COLUMN_WISE, (0,), id="one block of columns"),
    ],
)
def test_types_that_few_devices_make_trivial_keep_the_asked_name(
    devices: Topology, asked: ShardingType, ranks: tuple[int, ...]
) -> None:
    """A script that is tried on fewer devices finds the types of its constraints, and the kernel that runs them."""
    request = builders.request(
        builders.table("only", embedding_dim=4), topology=devices, constraints=Constraints(sharding_types=(asked,))
    )
    plan = search(request, bundle=ExactCosts(request.topology.device))

    only = TorchRecPlan.of(plan, module_path="").modules[""]["only"]

    assert (only.sharding_type, only.ranks) == (asked, ranks)
    assert all((memory.gradient_bytes > 0) is (asked is ShardingType.DATA_PARALLEL) for memory in plan.memory)
    assert only.compute_kernel is ComputeKernel.of(asked)


def test_the_version_before_is_read() -> None:
    """It named types, kernels, and shards as this one does."""
    text = TorchRecPlan.of(plan_of()).to_json()

    assert TorchRecPlan.from_json(text.replace("plan/v2", "plan/v1")) == TorchRecPlan.from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("few.shards.0.shard_sizes", [3, 16], ".few.shards: row_wise on 4 devices means blocks of 2 rows"),
        ("few.ranks", [1, 0, 2, 3], ".few.shards: row_wise on 4 devices means blocks of 2 rows"),
        ("few.shards.1.placement", "rank:0/cuda:0", ".few.shards: must be placed on ranks"),
        ("few.shards", [], "few: shards: are missing in a row_wise table"),
        ("few.compute_kernel", "dense", "few: compute_kernel: is dense, a row_wise table runs with fused"),
        ("few.compute_kernel", "fused_uvm_caching", "few: cache_load_factor: is missing, the kernel is fused_uvm_cach"),
        (
            "few.cache_load_factor",
            0.5,
            "few: cache_load_factor: is 0.5, the kernel fused has no cache; hint: leave it out",
        ),
        ("many.ranks", [0, 1], ".many.ranks: data_parallel means all ranks"),
        ("many.compute_kernel", "fused", "many: compute_kernel: is fused, a data_parallel table runs with dense"),
        ("few.sharding_type", "grid_shard", ".few.sharding_type: grid_shard means every block"),
    ],
)
def test_what_torchrec_would_train_wrongly_is_refused(path: str, value: object, problem: str) -> None:
    """An export that was edited is checked when it is read."""
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=TOPOLOGY)
    plan = given_plan(request, by_rows(TABLES[0], TOPOLOGY), everywhere(TABLES[1], TOPOLOGY))
    written = TorchRecPlan.of(plan, module_path="tables")

    with pytest.raises(DocumentError) as caught:
        TorchRecPlan.from_data(builders.data_with(written, f"modules.tables.{path}", value))
    assert problem in str(caught.value)


def test_both_names_of_tables_on_nodes_are_refused_in_one_module() -> None:
    """They would be two lookups and two pairs of collectives."""
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=TOPOLOGY)
    plan = given_plan(request, on_node(TABLES[0], 1, TOPOLOGY), grid(TABLES[1], TOPOLOGY, (0, 12), (0, 20)))
    written = TorchRecPlan.of(plan, module_path="tables")

    with pytest.raises(DocumentError, match=r"table_row_wise and grid_shard tables; hint: write all as"):
        TorchRecPlan.from_data(builders.data_with(written, "modules.tables.few.sharding_type", "table_row_wise"))


def test_a_plan_that_cannot_be_run_is_not_exported() -> None:
    """The sentence names field, table, and remedy."""
    plan = builders.plan()
    by_row = plan.tables[1].model_copy(update={"sharding_type": ShardingType.ROW_WISE})

    with pytest.raises(DocumentError, match=r"tables\[1\].shards: row_wise on 4 devices means .*'t1'"):
        TorchRecPlan.of(plan.model_copy(update={"tables": (plan.tables[0], by_row, *plan.tables[2:])}))


def test_tables_that_name_their_collections_are_exported_by_path() -> None:
    """Under their names there, without the path that tells equal names apart; a given path is that of all."""
    members = [
        builders.table("users/id", collection="users"),
        builders.table("country", collection="users"),
        builders.table("towers.items/id", collection="towers.items"),
    ]
    request = builders.request(*members)
    plan = search(request, bundle=ExactCosts(request.topology.device))
    exported = TorchRecPlan.of(plan)

    assert {path: list(tables) for path, tables in exported.modules.items()} == {
        "users": ["id", "country"],
        "towers.items": ["id"],
    }
    ranks = {placed.name: tuple(shard.device for shard in placed.shards) for placed in plan.tables}
    assert exported.modules["towers.items"]["id"].ranks == ranks["towers.items/id"]
    assert list(TorchRecPlan.of(plan, module_path="all").modules["all"]) == [member.name for member in members]


def test_two_tables_of_one_name_in_a_collection_are_refused() -> None:
    """TorchRec could not tell them apart."""
    members = [builders.table("users/id", collection="users"), builders.table("id", collection="users")]
    request = builders.request(*members)
    plan = search(request, bundle=ExactCosts(request.topology.device))

    with pytest.raises(DocumentError, match="'users/id' and 'id' are both 'id' in users; hint: rename one"):
        TorchRecPlan.of(plan)
