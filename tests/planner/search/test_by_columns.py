"""Courses, perturbations, and when the search has nothing to do."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_api.documents.tables import Optimizer, TableSet
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.memory.packing import Packing
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.by_columns import IteratedSearch
from neuroshard_planner.workload_store import read_workload
from support.builders import GIB, request, table, tables, topology
from support.planner.searches import placed, planned, problem_of

from benchmarks.reference_search import reference_search
from benchmarks.search_ablation import drawn
from benchmarks.tasks import random_tables, task_tables, weights_only_request, workload_request


def test_one_device_has_one_plan_at_once() -> None:
    """Nothing can be cut or moved, so a thousand tables take no search, and the plan is its own lower bound."""
    found = planned(request(*tables(1000, num_embeddings=1000), num_devices=1))

    assert found.search.placements == 1
    assert found.search.evaluations == planned(request(*tables(10), num_devices=1)).search.evaluations
    assert found.gap == 0.0
    assert not found.search.budget_exhausted
    assert {len(each.shards) for each in found.tables} == {1}


def test_tables_that_are_all_pinned_have_one_plan() -> None:
    """A choice of devices that constraints take away is none, on any number of devices."""
    pins = {f"t{index}": TableConstraints(devices=(index % 4,)) for index in range(8)}

    found = planned(request(*tables(8), constraints=Constraints(tables=pins)))

    assert [each.shards[0].device for each in found.tables] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.gap == 0.0


def test_one_usable_device_without_room_is_infeasible() -> None:
    """The only placement is checked against memory like any other."""
    asked = request(
        table("a", num_embeddings=10**8),
        topology=topology(2, memory_bytes=GIB),
        constraints=Constraints(forbidden_devices=(1,)),
    )

    with pytest.raises(InfeasibleError, match="table 'a' needs 24"):
        planned(asked)


def dcnv2(**fields: Any) -> PlanRequest:
    """Return MLPerf's DLRM-DCNv2 on a node of eight H100."""
    found = read_workload("mlperf-dlrm-dcnv2")
    return request(
        *found.tables,
        topology=preset("h100-80gb").topology(num_nodes=1, devices_per_node=8),
        batch_size_per_device=8192,
        **fields,
    )


@pytest.mark.slow
def test_a_free_search_finds_at_least_what_a_limit_on_shards_would() -> None:
    """Local search alone may end among narrow shards that are dearer than a third as many."""
    bundle = bundled_bundle("h100-80gb")

    free, limited = (
        plan(dcnv2(constraints=limits, search=SearchSettings()), bundle=bundle)
        for limits in (
            Constraints(sharding_types=BY_COLUMNS),
            Constraints(sharding_types=BY_COLUMNS, max_shards_per_table=4),
        )
    )

    assert free.predicted.total_ms <= limited.predicted.total_ms * 1.0005


def test_a_search_that_improves_nothing_ends_before_its_budget() -> None:
    """Equal tables on as many devices are at their best from the start, whatever the budget and the bound."""
    problem = problem_of(request(*tables(4, embedding_dim=4), search=SearchSettings(seed=1)))

    found = IteratedSearch(problem, [], work_budget=10**9).run(bound_ms=0.0)

    assert found is not None
    assert not found.budget_exhausted
    assert problem.work < 1000 * problem.tuning.most_stalled
    assert np.bincount(found.placement.devices, minlength=4).tolist() == [1, 1, 1, 1]


def test_a_table_fills_what_others_leave_of_a_tight_memory() -> None:
    """Five tables on four devices: even cuts of the largest leave the hottest no device of its own."""
    problem = Problem(drawn(82).request, bundled_bundle("h100-80gb"))
    packing = Packing(problem.request)
    pieces = next(packing.fills(packing.capacity_bytes))
    fill = placed(problem, *((piece.unit, piece.num_columns, piece.device) for piece in pieces))

    found = IteratedSearch(problem, [], work_budget=18_000).run(bound_ms=0.0)

    assert found is not None
    assert problem.total_ms([found.placement])[0] <= problem.total_ms([fill])[0] * 0.95


def few_tables(num_tables: int, num_nodes: int, *, seed: int, search: SearchSettings) -> PlanRequest:
    """Return a request of random tables by columns."""
    return PlanRequest(
        tables=random_tables(num_tables, 8 * num_nodes, np.random.default_rng(seed), name="few"),
        topology=preset("h100-80gb").topology(num_nodes=num_nodes, devices_per_node=8),
        batch_size_per_device=8192,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=Constraints(sharding_types=BY_COLUMNS),
        search=search,
    )


def test_few_tables_fill_many_devices_where_only_columns_are_permitted() -> None:
    """Four tables on 16 devices: even cuts of each leave some devices idle, and others with a third more columns."""
    asked = few_tables(4, 2, seed=85, search=SearchSettings())

    found = plan(asked, bundle=bundled_bundle("h100-80gb"))

    assert found.gap < 0.05


def test_even_columns_give_way_to_fewer_shards_within_the_tolerance() -> None:
    """Nine shards cost 2 % more than 16 with equal columns on all devices."""
    exact, tolerant = (
        plan(
            few_tables(6, 1, seed=90, search=SearchSettings(work_budget=2000, shard_tolerance=tolerance)),
            bundle=bundled_bundle("h100-80gb"),
        )
        for tolerance in (0.0, 0.05)
    )

    most, fewest = (sum(len(table.shards) for table in each.tables) for each in (exact, tolerant))
    assert fewest < 0.7 * most
    assert tolerant.predicted.total_ms <= 1.05 * exact.predicted.total_ms


@pytest.mark.parametrize("most_rounds", [1, 6])
def test_rounds_go_on_as_long_as_the_last_one_gained(most_rounds: int) -> None:
    """Each takes a quarter of the work; here every one gains enough for the next."""
    asked = workload_request(read_workload("nvidia-synthetic-criteo"), 16, devices_per_node=8)
    problem = problem_of(asked, tuning=SearchTuning(least_round_gain=-1.0))
    before = problem.work

    IteratedSearch(problem, [], work_budget=2000, most_rounds=most_rounds).run(bound_ms=0.0)

    assert problem.work - before >= 2000 * (1 + most_rounds / 4)


@pytest.mark.parametrize("most_rounds", [1, 6])
def test_a_round_that_gains_nothing_is_the_last(most_rounds: int) -> None:
    """Where the budget brings the search to its best placement, one more round of a quarter of the work shows that."""
    members = [
        table(f"t{index}", pooling_factor=1.0 + 3.7 * index % 11, embedding_dim=16 * (index % 5 + 1))
        for index in range(20)
    ]
    problem = problem_of(request(*members))
    before = problem.work

    found = IteratedSearch(problem, [], work_budget=3000, most_rounds=most_rounds).run(bound_ms=0.0)

    assert found is not None
    assert 3000 * 1.25 <= problem.work - before < 3000 * 1.5


@pytest.mark.parametrize(("gap", "goes_on"), [(0.12, True), (0.08, False)])
def test_far_above_the_bound_rounds_go_on_in_vain(gap: float, *, goes_on: bool) -> None:
    """They are twice as long."""
    problem = problem_of(request(*(table(f"t{index}", embedding_dim=4) for index in range(4))))
    search = IteratedSearch(problem, [], work_budget=2000, most_rounds=3)
    best = search.opening()
    assert best is not None
    total_ms = float(problem.total_ms([best])[0])

    found = search.run(bound_ms=total_ms / (1 + gap))

    assert found is not None
    assert problem.total_ms([found.placement])[0] == pytest.approx(total_ms, rel=1e-6)
    assert (problem.work >= 2000 * (1 + 3 / 2)) is goes_on


def test_an_opening_that_comes_early_changes_no_result() -> None:
    """Work of others between the opening and the rest does not count."""
    asked = request(*tables(12, pooling_factor=20.0), table("wide", embedding_dim=256, pooling_factor=80.0))
    at_once = IteratedSearch(problem_of(asked), [], work_budget=3000).run(bound_ms=0.0)
    problem = problem_of(asked)
    search = IteratedSearch(problem, [], work_budget=3000)

    opening = search.opening()
    assert opening is not None
    problem.total_ms([opening] * 1000)
    found = search.run(bound_ms=0.0)

    assert at_once is not None
    assert found is not None
    assert np.array_equal(found.placement.kinds, at_once.placement.kinds)
    assert np.array_equal(found.placement.devices, at_once.placement.devices)


def test_a_plan_costs_about_as_much_as_that_of_the_published_algorithm_at_most() -> None:
    """A task of the paper's kind; `never_dearer` in benchmarks/ compares more of them, and larger ones."""
    problem = problem_of(weights_only_request(TableSet(tables=task_tables()[6].tables[:8]), 4))

    found = IteratedSearch(problem, [], work_budget=20_000).run(bound_ms=0.0)

    reference = reference_search(problem)
    assert found is not None
    assert reference is not None
    found_ms, reference_ms = problem.total_ms([found.placement, reference])
    assert found_ms <= reference_ms * 1.01
