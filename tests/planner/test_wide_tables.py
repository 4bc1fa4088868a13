"""Tables wider than FBGEMM's kernels: cut by columns by every proposer, or refused by name."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.errors import InfeasibleError, PlanError, RequestError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.checks import plan_problems, require_sound
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_report.explain.comparison import compare
from support.builders import QUICK, dense_profile, device_type, host_memory, request, table, topology
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

ON_CPU = topology(2, device=device_type(name="cpu-8-cores"))


@st.composite
def wide_requests(draw: st.DrawFn) -> PlanRequest:
    """Draw a request with tables around and above every limit on a shard's width."""
    widths = draw(st.lists(st.sampled_from([64, 1024, 1028, 2048, 2052, 4096, 8192]), min_size=1, max_size=4))
    num_nodes, per_node = draw(st.sampled_from([(1, 1), (1, 3), (2, 2)]))
    return request(
        *(
            table(f"t{index}", embedding_dim=width, num_embeddings=draw(st.sampled_from([100, 100_000])))
            for index, width in enumerate(widths)
        ),
        topology=topology(num_nodes * per_node, num_nodes=num_nodes),
        constraints=Constraints(
            max_shard_width=draw(st.sampled_from([None, 520, 2048])), min_shard_width=draw(st.sampled_from([4, 300]))
        ),
        search=QUICK.model_copy(update={"work_budget": 300}),
        algorithm=draw(st.sampled_from([Algorithm.NEUROSHARD, *BASELINES])),
    )


@generated(15, 150)
@given(asked=wide_requests())
def test_no_plan_of_any_proposer_has_a_shard_wider_than_the_rule(asked: PlanRequest) -> None:
    """Under each algorithm every table is covered once, in shards that the rule and the constraints allow."""
    try:
        found = planned(asked)
    except InfeasibleError:
        assume(condition=False)
        raise

    require_sound(found)
    assert [each.name for each in found.tables] == [each.name for each in asked.tables.tables]
    for definition, placement in zip(asked.tables.tables, found.tables, strict=True):
        limit = asked.widest_shard(definition)
        assert limit is not None
        assert max(shard.num_columns for shard in placement.shards) <= limit
    assert found.lower_bound_ms <= found.predicted.total_ms


def test_shards_of_a_table_on_one_device_are_as_few_as_the_width_allows() -> None:
    """One device computes a table of 4,096 columns as four kernels' worth of 1,024, and of 2,048 where it may."""
    asked = request(table("text", embedding_dim=4096), topology=topology(1), search=QUICK)
    wider = asked.model_copy(update={"constraints": Constraints(max_shard_width=2048)})

    widths = [[shard.num_columns for shard in planned(each).tables[0].shards] for each in (asked, wider)]

    assert widths == [[1024] * 4, [2048] * 2]


def test_wide_tables_are_planned_next_to_a_counted_dense_part() -> None:
    """It was counted for the tables, and not for the blocks of their columns."""
    wide = table("text", embedding_dim=4096)
    asked = request(wide, topology=topology(2), search=QUICK, dense=dense_profile(wide))

    found = planned(asked)

    assert found.request == asked
    assert [each.dense_bytes for each in found.memory] == [asked.dense_bytes] * 2


def test_a_cpu_takes_any_width() -> None:
    """FBGEMM's kernels for CPUs have no limit."""
    whole = Constraints(sharding_types=(ShardingType.TABLE_WISE,))
    found = planned(request(table("text", embedding_dim=8192), topology=ON_CPU, constraints=whole, search=QUICK))

    assert found.tables[0].sharding_type is ShardingType.TABLE_WISE
    assert not any("FBGEMM" in each for each in found.warnings)


@pytest.mark.parametrize(
    ("fields", "own", "constraints", "words"),
    [
        ({"pooling": Pooling.NONE}, {}, {}, "a sequence is never cut by columns"),
        ({"colocation_group": "pair"}, {}, {}, "take it out of its group"),
        ({}, {"sharding_types": (ShardingType.ROW_WISE,)}, {}, "may only be row_wise; hint: allow column_wise"),
        ({}, {}, {"excluded_sharding_types": (ShardingType.COLUMN_WISE,)}, "column_wise is excluded"),
        ({}, {"max_shards": 2}, {}, "it may have 2 shards; hint: allow 4"),
        ({}, {"min_shard_width": 4096}, {}, "lower min_shard_width"),
    ],
)
def test_a_table_that_may_not_be_cut_is_refused_by_name(
    fields: dict[str, Any], own: dict[str, Any], constraints: dict[str, Any], words: str
) -> None:
    """The sentence names the table, the limit, and the way out."""
    asked = request(
        table("text", embedding_dim=4096, **fields),
        constraints=Constraints(tables={"text": TableConstraints(**own)}, **constraints),
    )

    with pytest.raises(RequestError, match=words) as error:
        planned(asked)

    assert "'text' has 4,096 columns" in str(error.value)


def test_what_every_second_release_runs_is_planned_whole_with_a_warning() -> None:
    """A table of 2,048 columns that may not be cut runs under FBGEMM 1.7 and later."""
    limits = Constraints(tables={"text": TableConstraints(max_shards=1)})
    found = planned(request(table("text", embedding_dim=2048), constraints=limits, search=QUICK))

    assert found.tables[0].num_column_blocks == 1
    assert any("'text' has a shard of 2,048 columns" in each and "1.7" in each for each in found.warnings)


def test_a_plan_from_elsewhere_with_too_wide_a_shard_is_refused() -> None:
    """Above what any release's kernels take, and above what the constraints name."""
    asked = request(table("text", embedding_dim=4096, num_embeddings=10), topology=topology(1))
    whole = TablePlacement(
        name="text",
        sharding_type=ShardingType.TABLE_WISE,
        shards=(Shard(device=0, row_offset=0, num_rows=10, column_offset=0, num_columns=4096),),
    )
    with pytest.raises(PlanError, match=r"shards\[0\].num_columns: has 4,096 columns.*at most 2,048.*'text'"):
        imported_plan([whole], asked, bundle=ExactCosts(asked.topology.device))

    found = planned(asked)
    narrower = asked.model_copy(update={"constraints": Constraints(max_shard_width=512)})
    assert (
        "a shard of 1024 columns, the constraints allow 512"
        in plan_problems(found.model_copy(update={"request": narrower}))[0]
    )


def test_the_plan_in_force_stays_where_it_is_and_is_cut_where_it_must() -> None:
    """Wide shards of an earlier limit become narrower ones on the same devices."""
    tables = (table("text", embedding_dim=4096), table("item", embedding_dim=64))
    before = planned(request(*tables, constraints=Constraints(max_shard_width=2048), search=QUICK))
    asked = request(*tables, search=QUICK)
    incumbent = Incumbent(tables=before.tables, price_ms_per_gib=1e9)

    found = plan(asked, bundle=ExactCosts(asked.topology.device), incumbent=incumbent)

    require_sound(found)
    assert found.incumbent is not None
    assert not found.incumbent.moved_bytes
    widest = [max(shard.num_columns for shard in each.tables[0].shards) for each in (before, found)]
    assert widest[0] > 1024 >= widest[1]


def test_a_wide_table_in_host_memory_has_one_kernel() -> None:
    """All blocks of columns of a table are where the constraints send it."""
    own = TableConstraints(compute_kernels=(ComputeKernel.FUSED_UVM,))
    asked = request(
        table("text", embedding_dim=4096),
        topology=topology(2, host_memory=host_memory()),
        constraints=Constraints(tables={"text": own}),
        search=QUICK,
    )

    found = planned(asked)

    require_sound(found)
    assert found.tables[0].compute_kernel is ComputeKernel.FUSED_UVM


def test_algorithms_are_compared_within_the_rule() -> None:
    """None of them prices a shard that no kernel computes."""
    asked = request(table("text", embedding_dim=4096), topology=topology(2), search=QUICK)
    algorithms = (Algorithm.RANDOM, Algorithm.NEUROSHARD)

    found = [each.outcome for each in compare(asked, bundle=ExactCosts(asked.topology.device), algorithms=algorithms)]

    assert [each is not None and each.num_shards >= 4 for each in found] == [True, True]
