"""The search over all families, against exhaustion and against the search by columns."""

import random
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, MemorySettings, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.shards import COLUMNS
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.bound.family_bounds import FamilyBounds, single_unit_bound_ms
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.planning import attempts, find
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.all_families import MixedSearch
from neuroshard_planner.search.by_columns import IteratedSearch
from neuroshard_planner.workload_store import read_workload
from support.builders import GIB, request, table, tables, topology
from support.depth import depth, generated
from support.planner.searches import DEEP, planned, problem_of, search_requests

from benchmarks.exhaustion import least_ms
from benchmarks.optimality import drawn_request, drawn_tables
from benchmarks.tasks import workload_request

ALL = tuple(ShardingType)
SEEDS_PER_TEST = 6
TW, CW, RW, TWRW, GRID, DP = ALL
WAYS = ((TW,), (TW, CW), (RW,), (TWRW,), (TWRW, GRID), (DP,))

OF_LARGE_SETS = SearchTuning(most_small_units=1)
"""Two units are many."""


def random_request(seed: int) -> PlanRequest:
    """Return 3 to 5 tables on two nodes of two devices, all types allowed."""
    rng = random.Random(seed)  # noqa: S311 - draws test data
    return request(
        *drawn_tables(rng),
        topology=topology(4, num_nodes=2),
        batch_size_per_device=rng.choice((512, 8192)),
        optimizer=rng.choice((Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD)),
        constraints=Constraints(sharding_types=ALL),
        search=DEEP,
    )


def gap_to_best(seed: int) -> float:
    """Return by which share the search's plan costs more than the best of all; check the bound against that one."""
    problem = problem_of(random_request(seed))
    bounds = FamilyBounds(problem)
    found = find(problem, baselines=attempts(problem), bounds=bounds)
    best_ms = least_ms(problem)

    assert bounds.least_ms <= best_ms * (1 + 1e-6)
    assert problem.fits(found.placement)
    return float(problem.total_ms([found.placement])[0]) / best_ms - 1


def families_of(found: Plan) -> set[ShardingType]:
    """Return the sharding types of a plan."""
    return {each.sharding_type for each in found.tables}


@pytest.mark.deep
@pytest.mark.parametrize("first", range(0, 12, SEEDS_PER_TEST))
def test_it_finds_the_best_of_all_plans_of_small_problems(first: int) -> None:
    """Five percent above the best of all at most, nearly always at it; the bound is never above the best."""
    gaps = [gap_to_best(seed) for seed in range(first, first + depth(3, SEEDS_PER_TEST))]

    assert max(gaps) <= 0.05
    assert np.median(gaps) <= 0.001


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(depth(4, 8)))
def test_the_bound_holds_for_the_types_that_constraints_name_of_each_table(seed: int) -> None:
    """Below the best of all plans of small problems, also where some tables may not be by columns."""
    draw = random.Random(seed)  # noqa: S311 - draws test data
    free = random_request(seed)
    own = {
        each.name: TableConstraints(sharding_types=tuple(dict.fromkeys(chain(*draw.sample(WAYS, 2)))))
        for each in free.tables.tables
    }
    problem = problem_of(free.model_copy(update={"constraints": Constraints(tables=own)}))

    assert problem.has_further_types
    assert FamilyBounds(problem).least_ms <= least_ms(problem) * (1 + 1e-6)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 112, depth(3, 1)))
def test_the_bound_holds_for_every_set_of_families_under_cost_networks(seed: int) -> None:
    """Restricted to some families, all plans of small problems cost at least what the bound of their sets says."""
    draw = random.Random(seed)  # noqa: S311 - draws test data
    ways = tuple(dict.fromkeys(chain(*draw.sample(WAYS, 3))))
    asked = random_request(seed).model_copy(update={"constraints": Constraints(sharding_types=ways)})
    problem = Problem(asked, bundled_bundle("h100-80gb"))

    bounds = FamilyBounds(problem)

    assert 0 < bounds.least_ms <= least_ms(problem) * (1 + 1e-6)


def test_a_plan_with_rows_or_copies_has_the_bound_of_all_named_types() -> None:
    """It is above what the dearest table costs alone."""
    own = {"t1": TableConstraints(sharding_types=(RW,))}
    asked = request(*tables(6, pooling_factor=20.0), constraints=Constraints(sharding_types=BY_COLUMNS, tables=own))
    problem = problem_of(asked)

    found = planned(asked)

    assert any(not kind.is_by_columns for kind in families_of(found))
    assert found.lower_bound_ms == pytest.approx(FamilyBounds(problem).least_ms)
    assert found.lower_bound_ms > single_unit_bound_ms(problem)


def test_a_set_too_large_for_this_search_names_a_table_that_may_not_be_by_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan breaks a constraint; a set that may be by columns is planned so."""
    monkeypatch.setattr("neuroshard_planner.problem.sharding_choice.MOST_MIXED", 7)
    by_rows, free = (
        request(*tables(2), constraints=Constraints(sharding_types=types)) for types in ((ShardingType.ROW_WISE,), ALL)
    )

    with pytest.raises(
        RequestError, match=r"'t0' may be row_wise alone.*here 2 tables times 4 devices.*add table_wise"
    ):
        planned(by_rows)
    assert all(kind.is_by_columns for kind in families_of(planned(free)))


@pytest.mark.parametrize(
    "kind", [ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID, ShardingType.DATA_PARALLEL]
)
def test_tables_that_may_only_be_sharded_in_one_way_are(kind: ShardingType) -> None:
    """The plan has no problem of its own, also where another way would be cheaper."""
    asked = request(*tables(3), topology=topology(4, num_nodes=2), constraints=Constraints(sharding_types=(kind,)))

    found = planned(asked)

    assert families_of(found) == {kind}
    assert plan_problems(found) == []


def test_one_table_by_rows_goes_beside_others_by_columns() -> None:
    """The other tables have no other types."""
    own = {"t1": TableConstraints(sharding_types=(ShardingType.ROW_WISE,))}

    limits = Constraints(sharding_types=BY_COLUMNS, tables=own)
    found = planned(request(*tables(6, pooling_factor=20.0), constraints=limits))

    assert found.tables[1].sharding_type is ShardingType.ROW_WISE
    assert all(each.sharding_type.is_by_columns for each in found.tables if each.name != "t1")
    assert plan_problems(found) == []


def test_all_tables_by_rows_are_tried_where_the_first_few_by_rows_are_dear() -> None:
    """Without any table by columns, the collectives of columns cost nothing; each step on the way there costs more."""
    asked, bundle = drawn_request(40002), bundled_bundle("h100-80gb")
    rows = asked.model_copy(update={"constraints": Constraints(sharding_types=(ShardingType.ROW_WISE,))})

    found, by_rows = (plan(each, bundle=bundle).predicted.total_ms for each in (asked, rows))
    assert found <= by_rows * (1 + 1e-12)  # the same terms may be summed in another order


def test_a_table_that_no_column_of_fits_a_device_is_cut_by_rows() -> None:
    """Four columns are the narrowest shard; blocks of rows have no such limit."""
    huge = table("huge", num_embeddings=2 * 10**9, embedding_dim=4)
    asked = request(huge, *tables(3), topology=topology(4, memory_bytes=24 * GIB), optimizer=Optimizer.SGD)

    with pytest.raises(InfeasibleError):
        planned(asked.model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS)}))
    found = planned(asked)

    assert found.tables[0].sharding_type is ShardingType.ROW_WISE
    assert plan_problems(found) == []


@pytest.mark.parametrize("kind", [ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.DATA_PARALLEL])
def test_every_baseline_keeps_to_the_sharding_types(kind: ShardingType) -> None:
    """Tables that may not be whole are as they may be, the others whole; no plan is compared with what is forbidden."""
    own = {"t0": TableConstraints(sharding_types=(kind,))}
    asked = request(*tables(3), topology=topology(4, num_nodes=2), constraints=Constraints(tables=own))
    found = planned(asked)

    assert len(found.baselines) == len(BASELINES)
    for baseline in found.baselines:
        alone = planned(asked.model_copy(update={"algorithm": baseline.algorithm}))
        assert plan_problems(alone) == []
        assert baseline.total_ms == pytest.approx(alone.predicted.total_ms)
        assert [each.sharding_type for each in alone.tables] == [kind, *[ShardingType.TABLE_WISE] * 2]
    assert found.predicted.total_ms <= min(each.total_ms or np.inf for each in found.baselines) * (1 + 1e-6)


def test_baselines_without_a_table_to_place_are_what_the_constraints_say() -> None:
    """All tables by rows leave a heuristic no choice."""
    asked = request(
        *tables(2), algorithm=Algorithm.DIM_GREEDY, constraints=Constraints(sharding_types=(ShardingType.ROW_WISE,))
    )

    assert {each.sharding_type for each in planned(asked).tables} == {ShardingType.ROW_WISE}


def test_shards_by_columns_are_represented_as_without_other_types() -> None:
    """Networks round sums by the shape of a batch: other bits would lead the search by columns elsewhere."""
    members = read_workload("mlperf-dlrm-dcnv2")
    asked = workload_request(members, 16, devices_per_node=8)
    bundle = bundled_bundle("h100-80gb")
    alone = Problem(asked.model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS)}), bundle)
    assert FamilyBounds(alone).least_ms > 0
    mixed = Problem(asked, bundle)
    assert FamilyBounds(mixed).least_ms > 0

    by_columns = np.flatnonzero(mixed.kinds.family == COLUMNS)

    assert len(mixed.kinds) > len(by_columns)
    assert np.array_equal(mixed.kinds.representation[by_columns], alone.kinds.representation)


@generated(4, 20)
@given(asked=search_requests(types=None))
def test_every_plan_keeps_its_promises(asked: PlanRequest) -> None:
    """Valid within constraints and memory, no dearer than by columns, the bound below, and the same a second time."""
    check_promises(asked)


@generated(4, 20)
@given(asked=search_requests(types=None))
def test_so_does_every_plan_that_is_searched_as_those_of_large_sets_are(asked: PlanRequest) -> None:
    """Two tables are many enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neuroshard_planner.problem.problem.DEFAULT", OF_LARGE_SETS)
        check_promises(asked)


def check_promises(asked: PlanRequest) -> None:
    """Plan a request by columns and in all types, twice."""
    asked = asked.model_copy(update={"optimizer": Optimizer.SGD})
    columns = asked.constraints.model_copy(update={"sharding_types": BY_COLUMNS})
    try:
        by_columns = planned(asked.model_copy(update={"constraints": columns})).predicted.total_ms
    except InfeasibleError:
        by_columns = np.inf
    try:
        found = planned(asked)
    except InfeasibleError:
        assert by_columns == np.inf
        return

    assert plan_problems(found) == []
    assert found.lower_bound_ms <= found.predicted.total_ms
    assert found.predicted.total_ms <= by_columns * (1 + 1e-6)
    assert planned(asked).to_json() == found.to_json()


def test_proposals_that_promise_no_gain_are_not_followed() -> None:
    """Even over devices they would cost as much as what is known; what promises more is followed."""
    asked = random_request(3)
    problem = problem_of(asked)
    columns = IteratedSearch(problem, [], work_budget=1000)
    opening = columns.opening()
    assert opening is not None
    search = MixedSearch(problem, options=columns.options, work_budget=1000)
    sets = FamilyBounds(problem).sets

    assert search.begun(opening, sets, limit_ms=1e-6) == []
    assert len(search.begun(opening, sets, limit_ms=np.inf)) > 1


def test_placements_of_a_large_set_descend_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two of them are equal before, and nothing that a descent tries betters them after it."""
    problem = problem_of(random_request(25), tuning=OF_LARGE_SETS)
    columns = IteratedSearch(problem, [], work_budget=4000)
    opening = columns.opening()
    assert opening is not None
    search = MixedSearch(problem, options=columns.options, work_budget=4000)
    descended = list[Placement]()
    descend = search._descended

    def noted(placements: Sequence[Placement], until: int) -> list[Placement]:
        descended.extend(placements)
        return descend(placements, until)

    monkeypatch.setattr(search, "_descended", noted)

    found = search.begun(opening, FamilyBounds(problem).sets, limit_ms=np.inf)[-len(descended) :]

    contents = [sorted(zip(each.kinds.tolist(), each.devices.tolist(), strict=True)) for each in descended]
    assert 1 <= len(descended) <= problem.tuning.num_best
    assert all(contents.count(each) == 1 for each in contents)
    made = search.improvements
    assert made
    assert problem.total_ms([search.refined(each) for each in found]).tolist() == problem.total_ms(found).tolist()
    assert search.improvements == made


def test_a_small_budget_of_a_large_set_is_divided_among_descents() -> None:
    """One that the opening alone may take would end the first whole descent."""
    problem = problem_of(random_request(2), tuning=OF_LARGE_SETS)
    budget = problem.tuning.opening_work(problem.num_devices) - 1
    columns = IteratedSearch(problem, [], work_budget=budget)
    opening = columns.opening()
    assert opening is not None
    search = MixedSearch(problem, options=columns.options, work_budget=budget)

    found = search.begun(opening, FamilyBounds(problem).sets, limit_ms=np.inf)

    position = next(row for row, each in enumerate(found) if each is opening)
    assert len(found) - position - 1 > problem.tuning.num_best


@pytest.mark.parametrize("types", [(TW, DP), (TW,)], ids=["others may be copied", "others whole"])
def test_a_table_bound_to_rows_is_by_rows_where_whole_tables_leave_it_no_room(types: tuple[ShardingType, ...]) -> None:
    """The opening by columns fits, and leaves no room for the blocks; another order of the whole tables does."""
    rows = {"a": 29_360_128, "b": 20_971_520, "c": 12_582_912, "d": 16_777_216, "s": 1000, "s2": 1000}
    lookups = {"a": 60.0, "b": 5.0, "c": 5.0, "d": 0.1, "s": 3.0, "s2": 3.0}
    own = {name: TableConstraints(sharding_types=(TW,)) for name in ("a", "b", "c")}
    own |= {"d": TableConstraints(sharding_types=(RW,))}
    own |= {name: TableConstraints(sharding_types=types) for name in ("s", "s2")}
    asked = request(
        *(table(name, num_embeddings=count, pooling_factor=lookups[name]) for name, count in rows.items()),
        topology=topology(2, memory_bytes=int(10.4 * GIB)),
        batch_size_per_device=8192,
        optimizer=Optimizer.SGD,
        memory=MemorySettings(reserve_fraction=0.0),
        constraints=Constraints(tables=own),
    )

    found = plan(asked, bundle=bundled_bundle("h100-80gb"))

    assert plan_problems(found) == []
    assert next(each for each in found.tables if each.name == "d").sharding_type is RW
    assert found.predicted.total_ms >= found.lower_bound_ms


@generated(3, 8)
@given(seed=st.integers(0, 2**16))
def test_no_plan_breaks_a_constraint_where_memory_is_tight(seed: int) -> None:
    """Each table is sharded in a way that it may be, or nothing fits."""
    draw = random.Random(seed)  # noqa: S311 - draws test data
    num_devices = draw.choice((4, 6))
    members = [
        table(f"t{index}", num_embeddings=draw.choice((1000, 500_000, 2_000_000, 8_000_000)), pooling_factor=lookups)
        for index, lookups in enumerate(draw.choices((1.0, 5.0, 60.0), k=draw.randint(2, 5)))
    ]
    own = {each.name: TableConstraints(sharding_types=draw.choice(WAYS)) for each in members if draw.random() < 0.5}
    total = sum(each.num_embeddings * each.embedding_dim * 4 for each in members)
    memory_bytes = int(total / num_devices * draw.uniform(1.02, 1.6)) + 300 * 2**20
    asked = request(
        *members,
        topology=topology(num_devices, num_nodes=2, memory_bytes=memory_bytes),
        optimizer=Optimizer.SGD,
        memory=MemorySettings(reserve_fraction=0.0),
        constraints=Constraints(tables=own),
    )

    try:
        found = plan(asked, bundle=bundled_bundle("h100-80gb"))
    except InfeasibleError:
        return

    assert plan_problems(found) == []
    assert found.predicted.total_ms >= found.lower_bound_ms


def test_single_tables_are_converted_where_assignments_promise_nothing() -> None:
    """The table of most lookups bounds every plan by columns; the other assignments look dearer than they are."""
    members = [table("hot", num_embeddings=3_000_000, embedding_dim=256, pooling_factor=80.0)]
    members += [table(f"t{index}", num_embeddings=10_000, pooling_factor=1.0) for index in range(5)]
    asked = request(*members, topology=topology(4), constraints=Constraints(sharding_types=ALL, min_shard_width=256))
    by_columns = request(
        *members, topology=topology(4), constraints=Constraints(sharding_types=(TW, CW), min_shard_width=256)
    )

    assert planned(asked).predicted.total_ms < 0.7 * planned(by_columns).predicted.total_ms
