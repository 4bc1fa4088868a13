"""Dealing out the shards of placements of all families."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, MemorySettings, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import COLUMNS, NODE_ROWS
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.dealing import Dealing, nodes_dealt_out
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.options import Forms, OptionTable, with_options
from support.builders import GIB, request, table, tables, topology
from support.planner.searches import problem_of

ALL = tuple(ShardingType)


def mixed_problem(
    num_tables: int, *, num_nodes: int = 2, memory_gib: float = 80.0, heaviest_first: bool = False
) -> Problem:
    """Return tables of different loads on nodes of two devices, all types allowed."""
    poolings = sorted((float(1 + 3 * index) for index in range(num_tables)), reverse=heaviest_first)
    members = [
        table(f"t{index}", num_embeddings=10_000, pooling_factor=pooling) for index, pooling in enumerate(poolings)
    ]
    return problem_of(
        request(
            *members,
            topology=topology(2 * num_nodes, num_nodes=num_nodes, memory_bytes=int(memory_gib * GIB)),
            constraints=Constraints(sharding_types=ALL),
            memory=MemorySettings(reserve_fraction=0.0),
        )
    )


def traits_of(problem: Problem) -> Traits:
    """Return additive loads at the mean device of all forms."""
    return Traits(problem, tangent(problem, Forms(problem).mean_sums()))


def converted(problem: Problem, kinds: dict[int, ShardingType]) -> Placement:
    """Return whole tables on device 0, but these units in the first form of a type, their blocks on the first nodes."""
    forms = Forms(problem)
    start = Placement(kinds=problem.whole, devices=np.zeros(len(problem.units), dtype=np.int64))
    room = np.full(problem.num_devices, np.inf)
    load = np.arange(problem.num_devices, dtype=np.float64)
    options = []
    for unit, kind in kinds.items():
        form = next(each for each in forms.of(unit) if each.sharding_type is kind)
        options.append(next(forms.placed(unit, form, load, room)))
    return with_options(problem, start, options)


def families_by_unit(problem: Problem, placement: Placement) -> dict[int, int]:
    """Return the family of each unit."""
    kinds = problem.kinds
    return dict(zip(kinds.unit[placement.kinds].tolist(), kinds.family[placement.kinds].tolist(), strict=True))


def columns_by_unit(problem: Problem, placement: Placement) -> list[int]:
    """Return the columns of each unit, over all of its shards."""
    kinds = problem.kinds
    units = kinds.unit[placement.kinds]
    return [int(kinds.num_columns[placement.kinds[units == unit]].sum()) for unit in range(len(problem.units))]


def test_blocks_of_rows_are_spread_over_nodes_by_load() -> None:
    """Four tables that were all on the first node: the heaviest and the lightest share one, the others the other."""
    problem = mixed_problem(4)
    placement = converted(problem, dict.fromkeys(range(4), ShardingType.TABLE_ROW_WISE))
    loads = traits_of(problem)()[:, :2].sum(axis=1)

    dealt = nodes_dealt_out(problem, placement, loads)

    assert dealt is not None
    nodes = {unit: set((dealt.devices[problem.kinds.unit[dealt.kinds] == unit] // 2).tolist()) for unit in range(4)}
    assert nodes[3] == nodes[0]
    assert nodes[1] == nodes[2]
    assert nodes[0] != nodes[1]


def test_blocks_stay_off_nodes_that_a_table_may_not_be_on() -> None:
    """The constraint counts, not the load."""
    own = {"t0": TableConstraints(devices=(2, 3))}
    asked = request(
        *tables(2), topology=topology(4, num_nodes=2), constraints=Constraints(sharding_types=ALL, tables=own)
    )
    problem = problem_of(asked)
    placement = converted(problem, {1: ShardingType.TABLE_ROW_WISE})
    forms = Forms(problem)
    form = next(each for each in forms.of(0) if each.sharding_type is ShardingType.TABLE_ROW_WISE)
    room, load = np.full(4, np.inf), np.zeros(4)
    placement = with_options(problem, placement, [next(forms.placed(0, form, load, room))])
    loads = traits_of(problem)()[:, :2].sum(axis=1)

    dealt = nodes_dealt_out(problem, placement, loads)

    assert dealt is not None
    assert set(dealt.devices[problem.kinds.unit[dealt.kinds] == 0].tolist()) == {2, 3}


def test_there_is_no_dealing_out_where_the_blocks_have_no_room() -> None:
    """Rather than on a device beyond its memory."""
    problem = mixed_problem(2, memory_gib=0.001)
    placement = converted(problem, {0: ShardingType.TABLE_ROW_WISE})

    assert nodes_dealt_out(problem, placement, np.ones(len(problem.kinds))) is None


@settings(max_examples=8, deadline=None)
@given(
    kinds=st.dictionaries(
        st.integers(0, 5),
        st.sampled_from([ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.DATA_PARALLEL]),
        max_size=6,
    )
)
def test_units_keep_their_families_and_all_of_their_columns(kinds: dict[int, ShardingType]) -> None:
    """What is dealt out fits, and is the same each time."""
    problem = mixed_problem(6)
    placement = converted(problem, kinds)
    dealing = Dealing(problem, OptionTable(problem), traits=traits_of(problem))

    found = dealing.dealt_out(placement, work_budget=problem.work + 500, refines=True)
    again = dealing.dealt_out(placement, work_budget=problem.work + 500, refines=True)

    assert found is not None
    assert again is not None
    assert problem.fits(found)
    assert families_by_unit(problem, found) == families_by_unit(problem, placement)
    assert columns_by_unit(problem, found) == columns_by_unit(problem, placement)
    assert float(problem.total_ms([found])[0]) == float(problem.total_ms([again])[0])


def test_columns_go_beside_the_blocks_of_an_uneven_placement() -> None:
    """One node has a heavy table by rows, so that tables by columns prefer the other."""
    problem = mixed_problem(5)
    placement = converted(problem, {4: ShardingType.TABLE_ROW_WISE})
    dealing = Dealing(problem, OptionTable(problem), traits=traits_of(problem))

    found = dealing.dealt_out(placement, work_budget=problem.work + 4000, refines=False)

    assert found is not None
    assert float(problem.total_ms([found])[0]) < float(problem.total_ms([placement])[0])
    family = problem.kinds.family[found.kinds]
    blocks = set((found.devices[family == NODE_ROWS] // 2).tolist())
    columns = problem.kinds.num_columns[found.kinds] * (family != NODE_ROWS)
    by_node = np.bincount(found.devices // 2, weights=columns, minlength=2)
    (loaded,) = blocks
    assert by_node[1 - loaded] >= by_node[loaded]


@pytest.mark.parametrize("unit", [1, 2])
def test_a_unit_whose_form_found_no_room_is_dealt_out_by_columns(unit: int) -> None:
    """Its assignment has no cut for it: it stays in the plan, with all of its columns."""
    problem = mixed_problem(4, heaviest_first=True)
    options = OptionTable(problem)
    cuts = options.last.copy()
    cuts[[0, unit]] = -1

    dealt = Dealing(problem, options, traits=traits_of(problem)).dealt_out(
        converted(problem, {0: ShardingType.TABLE_ROW_WISE}), work_budget=problem.work + 5_000, refines=False, cuts=cuts
    )

    assert dealt is not None
    assert families_by_unit(problem, dealt) == {0: NODE_ROWS, 1: COLUMNS, 2: COLUMNS, 3: COLUMNS}
    assert columns_by_unit(problem, dealt)[1:] == [definition.num_columns for definition in problem.units[1:]]


def test_nothing_is_dealt_out_where_nothing_fits() -> None:
    """The search of other placements goes on without it."""
    problem = mixed_problem(3, memory_gib=0.001)
    dealing = Dealing(problem, OptionTable(problem), traits=traits_of(problem))
    placement = converted(problem, {0: ShardingType.TABLE_ROW_WISE})

    assert dealing.dealt_out(placement, work_budget=problem.work + 1000, refines=False) is None
