"""Which placements can be run: nothing to report of every family's own, one sentence for each rule that is broken."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling, Table
from neuroshard_api.documents.topology import Rack, Topology
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, row_blocks
from neuroshard_api.sharding.placement_rules import (
    local_size_problem,
    placement_problems,
    pod_size_problem,
    shard_problem,
)
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, grid, on_host, on_node, random_placement

TOPOLOGY = builders.topology(4, num_nodes=2)
WITH_HOST = builders.topology(4, num_nodes=2, host_memory=builders.host_memory())
CPUS = builders.topology(
    4, num_nodes=2, host_memory=builders.host_memory(), device=builders.device_type(name="cpu-test")
)
A = builders.table("a", num_embeddings=10, embedding_dim=32)
B = builders.table("b", num_embeddings=3, embedding_dim=16)
WIDE_B = B.model_copy(update={"embedding_dim": 32})
MEAN_A, MEAN_B = (each.model_copy(update={"pooling": Pooling.MEAN}) for each in (A, B))


def problems(
    *tables: TablePlacement,
    of: tuple[Table, ...] = (A,),
    optimizer: Optimizer = Optimizer.SGD,
    topology: Topology = TOPOLOGY,
) -> list[str]:
    """Return the problems of placements of these tables on two nodes of two devices."""
    request = PlanRequest(tables=builders.table_set(*of), topology=topology, optimizer=optimizer)
    return list(placement_problems(tables, request))


@given(rows=st.integers(1, 50), parts=st.integers(1, 12))
def test_blocks_of_rows_are_those_of_torchrecs_buckets(rows: int, parts: int) -> None:
    """A row belongs to block row // ceil(rows / parts), and every block is where the one before it ends."""
    height = -(-rows // parts)
    owner = {
        row: part for part, (first, count) in enumerate(row_blocks(rows, parts)) for row in range(first, first + count)
    }

    assert owner == {row: row // height for row in range(rows)}


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30))
@settings(max_examples=60)
def test_every_family_passes_where_it_is_what_it_is_called(seed: int, rows: int) -> None:
    """But for tables with so few rows that a device has none of them."""
    rng = random.Random(seed)  # noqa: S311 - draws test data
    table = A.model_copy(update={"num_embeddings": rows})
    placement = random_placement(rng, table, TOPOLOGY)

    assert shard_problem(placement, rows=rows, columns=32, devices=TOPOLOGY, kind="cuda") is None
    for problem in problems(placement, of=(table,)):
        assert rows < 10  # three blocks of three rows leave the fourth device out
        assert "leaves device" in problem


@pytest.mark.parametrize("cache_load_factor", [None, 0.2])
def test_every_cut_of_a_fused_table_passes_in_host_memory(cache_load_factor: float | None) -> None:
    """By columns, by rows, and by node."""
    for placement in (by_columns(A, (0, 32)), by_rows(A, TOPOLOGY), grid(A, TOPOLOGY, (0, 16), (1, 16))):
        moved = on_host(placement, cache_load_factor=cache_load_factor)

        assert problems(moved, topology=WITH_HOST) == []


def changed(placement: TablePlacement, shard: int = 0, **fields: int) -> TablePlacement:
    """Return a placement with fields of one shard replaced."""
    shards = list(placement.shards)
    shards[shard] = shards[shard].model_copy(update=fields)
    return placement.model_copy(update={"shards": tuple(shards)})


def moved(placement: TablePlacement) -> TablePlacement:
    """Return a placement whose first two shards have changed devices."""
    first, second, *rest = placement.shards
    swapped = (first.model_copy(update={"device": second.device}), second.model_copy(update={"device": first.device}))
    return placement.model_copy(update={"shards": (*swapped, *rest)})


def called(placement: TablePlacement, kind: ShardingType) -> TablePlacement:
    """Return a placement under another name."""
    return placement.model_copy(update={"sharding_type": kind})


UNEVEN = (
    "tables[0].shards: row_wise on 4 devices means blocks of 3 rows in the order of the devices, since TorchRec sends "
    "lookups there whatever the shards are: device 0 holds rows 0 to 3, found rows 0 to 4"
    "; hint: cut the table so, or by "
    "columns (table 'a')"
)
WRONG_MEANS = (
    " next to others, for which TorchRec computes wrong values without an error; hint: shard it table_wise, "
    "column_wise, or data_parallel"
)
ALL_BY_ROWS = ", or all tables of the collection row_wise or table_row_wise"

BROKEN: dict[str, tuple[Callable[[], list[str]], str]] = {
    "uneven rows": (
        lambda: problems(changed(changed(by_rows(A, TOPOLOGY), 0, num_rows=4), 1, row_offset=4, num_rows=2)),
        UNEVEN,
    ),
    "rows in another order": (
        lambda: problems(moved(by_rows(A, TOPOLOGY))),
        "tables[0].shards: row_wise on 4 devices means blocks of 3 rows",
    ),
    "rows on one node only": (
        lambda: problems(called(on_node(A, 0, TOPOLOGY), ShardingType.ROW_WISE)),
        "tables[0].shards: row_wise on 4 devices",
    ),
    "a block of rows twice": (
        lambda: problems(by_rows(A, TOPOLOGY).model_copy(update={"shards": by_rows(A, TOPOLOGY).shards * 2})),
        "tables[0].shards: row_wise on 4 devices",
    ),
    "rows of part of the columns": (
        lambda: problems(changed(by_rows(A, TOPOLOGY), 0, num_columns=16)),
        "tables[0].sharding_type: row_wise means shards with all columns",
    ),
    "part of a node": (
        lambda: problems(called(by_columns(A, (1, 32)), ShardingType.TABLE_ROW_WISE)),
        "tables[0].shards: table_row_wise on 2 devices means blocks of 5 rows",
    ),
    "two nodes": (
        lambda: problems(called(by_rows(A, TOPOLOGY), ShardingType.TABLE_ROW_WISE)),
        "tables[0].sharding_type: table_row_wise means shards with all columns on one node",
    ),
    "grid with a gap": (
        lambda: problems(grid(A, TOPOLOGY, (0, 16), (1, 12))),
        "tables[0].shards: the blocks have 28 of 32 columns; hint: close the gap",
    ),
    "grid with a block in two": (
        lambda: problems(changed(grid(A, TOPOLOGY, (0, 16), (1, 16)), 0, device=2)),
        "tables[0].sharding_type: grid_shard means every block of columns on one node (columns 0 to 16)",
    ),
    "grid with uneven rows": (
        lambda: problems(changed(grid(A, TOPOLOGY, (0, 16), (1, 16)), 0, num_rows=4)),
        "tables[0].shards: grid_shard on 2 devices means blocks of 5 rows",
    ),
    "grid with columns twice": (
        lambda: problems(changed(grid(A, TOPOLOGY, (0, 16), (1, 16)), 2, column_offset=12)),
        "tables[0].shards: grid_shard means blocks of columns that cover the table once",
    ),
    "a wide block before a narrow one on a device": (
        lambda: problems(grid(A, TOPOLOGY, (1, 20), (0, 4), (1, 8))),
        "tables[0].shards: grid_shard has blocks of 20, 8 columns on device 2, and TorchRec registers the first",
    ),
    "a wide piece before a narrow one on a device": (
        lambda: problems(by_columns(A, (1, 20), (0, 4), (1, 8))),
        "tables[0].shards: column_wise has blocks of 20, 8 columns on device 1, and TorchRec registers the first",
    ),
    "a device without a row": (
        lambda: problems(by_rows(B, TOPOLOGY), of=(B,)),
        "tables[0].sharding_type: row_wise leaves device 3 without a row, for which FBGEMM has no kernel",
    ),
    "a copy is missing": (
        lambda: problems(everywhere(A, TOPOLOGY).model_copy(update={"shards": everywhere(A, TOPOLOGY).shards[1:]})),
        "tables[0].sharding_type: data_parallel means the whole table on every device",
    ),
    "copies under Adam": (
        lambda: problems(everywhere(A, TOPOLOGY), optimizer=Optimizer.ADAM),
        "tables[0].sharding_type: table 'a' is data_parallel, which adam does not train as the fused kernels do",
    ),
    "copies in FP16": (
        lambda: problems(everywhere(A, TOPOLOGY), of=(A.model_copy(update={"data_type": DataType.FP16}),)),
        "tables[0].sharding_type: data_parallel weights of type FP16 round otherwise",
    ),
    "fused copies": (
        lambda: problems(everywhere(A, TOPOLOGY).model_copy(update={"kernel": ComputeKernel.FUSED})),
        "tables[0].kernel: is fused, a data_parallel table runs with dense",
    ),
    "dense rows": (
        lambda: problems(by_rows(A, TOPOLOGY).model_copy(update={"kernel": ComputeKernel.DENSE})),
        "tables[0].kernel: is dense, a row_wise table runs with fused",
    ),
    "host memory that is not there": (
        lambda: problems(on_host(by_rows(A, TOPOLOGY))),
        (
            "tables[0].kernel: is fused_uvm, and the topology has no host_memory that tables may take"
            "; hint: give topology.host_"
        ),
    ),
    "host memory of a CPU": (
        lambda: problems(on_host(by_rows(A, TOPOLOGY)), topology=CPUS),
        "tables[0].kernel: is fused_uvm, and processes on a CPU have all tables in host memory with the kernel fused",
    ),
    "copies in host memory": (
        lambda: problems(on_host(everywhere(A, TOPOLOGY)), topology=WITH_HOST),
        "tables[0].kernel: is fused_uvm, a data_parallel table runs with dense; hint: leave it out",
    ),
    "a cache without a size": (
        lambda: problems(
            on_host(by_rows(A, TOPOLOGY), cache_load_factor=0.5).model_copy(update={"cache_load_factor": None}),
            topology=WITH_HOST,
        ),
        "tables[0].cache_load_factor: is missing, the kernel is fused_uvm_caching; hint: give rows of the cache over",
    ),
    "a size of no cache": (
        lambda: problems(
            on_host(by_rows(A, TOPOLOGY)).model_copy(update={"cache_load_factor": 0.5}), topology=WITH_HOST
        ),
        "tables[0].cache_load_factor: is 0.5, the kernel fused_uvm has no cache; hint: leave it out",
    ),
    "another type": (
        lambda: problems(by_rows(A, TOPOLOGY).model_copy(update={"data_type": DataType.FP16})),
        "tables[0].data_type: is FP16, the table's is FP32",
    ),
    "means under grid": (
        lambda: problems(grid(A, TOPOLOGY, (0, 32)), of=(MEAN_A,)),
        "tables[0].sharding_type: 'a' has mean pooling and is grid_shard" + WRONG_MEANS + ALL_BY_ROWS,
    ),
    "sequences of two widths": (
        lambda: problems(
            by_columns(A, (0, 16), (1, 16)),
            by_columns(WIDE_B, (0, 32)),
            of=tuple(each.model_copy(update={"pooling": Pooling.NONE}) for each in (A, WIDE_B)),
        ),
        "tables[0].shards: the sequence 'a' is cut by columns, and sequences have shards of 16, 32 columns",
    ),
    "a sequence by node": (
        lambda: problems(on_node(A, 0, TOPOLOGY), of=(A.model_copy(update={"pooling": Pooling.NONE}),)),
        "tables[0].sharding_type: TorchRec shards no sequence table_row_wise; hint: shard it table_wise, column_wise",
    ),
    "means by rows and by columns": (
        lambda: problems(by_columns(B, (0, 16)), by_rows(A, TOPOLOGY), of=(MEAN_B, MEAN_A)),
        "tables[1].sharding_type: 'a' has mean pooling and is row_wise" + WRONG_MEANS + ALL_BY_ROWS,
    ),
    "means and sums by rows": (
        lambda: problems(by_rows(A, TOPOLOGY), on_node(B, 0, TOPOLOGY), of=(A, MEAN_B)),
        "tables[1].sharding_type: 'b' has mean pooling and is table_row_wise" + WRONG_MEANS,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_rule_is_one_sentence(case: str) -> None:
    """The sentence begins with the field's path, names the table, and says what to do."""
    found, expected = BROKEN[case]

    (problem,) = found()
    assert problem.startswith(expected)
    assert "'a'" in problem or "'b'" in problem


def test_means_run_uncut_by_rows_and_all_by_rows() -> None:
    """These are the placements of means that TorchRec computes rightly; sums may be placed in any way next to them."""
    assert problems(by_rows(A, TOPOLOGY), everywhere(B, TOPOLOGY), of=(A, MEAN_B)) == []
    assert problems(by_columns(A, (0, 16), (1, 16)), by_columns(B, (3, 16)), of=(A, MEAN_B)) == []
    assert problems(by_rows(A, TOPOLOGY), on_node(B, 1, TOPOLOGY), of=(MEAN_A, MEAN_B)) == []


def test_means_and_widths_are_judged_within_a_collection() -> None:
    """Means of one leave rows to the tables of others, and sequences of two have widths of their own."""
    means, sums = (each.model_copy(update={"collection": path}) for each, path in ((MEAN_A, "users"), (B, "items")))
    assert problems(by_rows(A, TOPOLOGY), by_columns(B, (0, 16)), of=(means, sums)) == []
    (problem,) = problems(
        by_rows(A, TOPOLOGY), by_columns(B, (0, 16)), of=(means, sums.model_copy(update={"collection": "users"}))
    )
    assert "'a' has mean pooling and is row_wise next to others" in problem

    rows = [each.model_copy(update={"pooling": Pooling.NONE}) for each in (A, WIDE_B)]
    apart = tuple(each.model_copy(update={"collection": each.name}) for each in rows)
    assert problems(by_columns(A, (0, 16), (1, 16)), by_columns(WIDE_B, (0, 32)), of=apart) == []


def test_sequences_that_are_cut_alike_run() -> None:
    """All their shards have one width, next to bags of any."""
    rows = tuple(each.model_copy(update={"pooling": Pooling.NONE}) for each in (A, WIDE_B))
    halves = (by_columns(A, (0, 16), (1, 16)), by_columns(WIDE_B, (1, 16), (2, 16)))
    bags = A.model_copy(update={"name": "c"})

    assert problems(*halves, by_columns(bags, (0, 8), (1, 24)), of=(*rows, bags)) == []


def test_domains_of_another_size_are_refused_where_tables_are_cut_by_node() -> None:
    """TorchRec deals rows out to as many nodes as its variable says; without it, to those of one."""
    racks = TOPOLOGY.model_copy(update={"rack": Rack(num_nodes=TOPOLOGY.num_nodes, link=TOPOLOGY.intra_node)})
    tables = (by_rows(A, racks), on_node(B, 0, racks))

    assert pod_size_problem(tables, racks, "2") is None
    assert pod_size_problem(tables[:1], racks, None) is None
    assert pod_size_problem((on_node(B, 0, TOPOLOGY),), TOPOLOGY, None) is None
    for topology, found, expected in (
        (racks, None, "domains of 2 nodes, TORCHREC_RESOLVED_POD_SIZE is not set, which is 1; hint: set it to 2"),
        (TOPOLOGY, "2", "domains of 1 nodes, TORCHREC_RESOLVED_POD_SIZE is 2; hint: set it to 1"),
    ):
        problem = pod_size_problem((on_node(B, 0, topology),), topology, found)
        assert problem is not None
        assert expected in problem


def test_nodes_of_another_size_are_refused_where_tables_are_cut_by_node() -> None:
    """TorchRec divides ranks by LOCAL_WORLD_SIZE to find their node."""
    tables = (by_rows(A, TOPOLOGY), on_node(B, 1, TOPOLOGY))

    assert local_size_problem(tables, TOPOLOGY, 2) is None
    assert local_size_problem(tables[:1], TOPOLOGY, 4) is None
    problem = local_size_problem(tables, TOPOLOGY, 4)
    assert problem is not None
    assert (
        "table 'b' is table_row_wise on nodes of 2 devices, LOCAL_WORLD_SIZE is 4; hint: start 2 processes" in problem
    )
