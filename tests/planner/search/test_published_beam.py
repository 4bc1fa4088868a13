"""The published search as a start of the search here."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import TableSet
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.search.iterated import IteratedSearch
from neuroshard_planner.search.local_search import merged
from neuroshard_planner.search.published_beam import halved, published_beam, published_work
from support.builders import request, table, tables
from support.depth import generated
from support.planner.searches import marginal_placement, problem_of, search_requests, shards_of

from benchmarks.reference_search import reference_search
from benchmarks.tasks import draw_pool, sampled_tables, task_tables, weights_only_request

UNLIMITED = 10**9


def task(num_tables: int, num_devices: int = 4) -> PlanRequest:
    """Return a task of the paper's kind."""
    return weights_only_request(TableSet(tables=task_tables()[6].tables[:num_tables]), num_devices)


@pytest.mark.parametrize("num_devices", [4, 8])
def test_it_finds_what_the_published_search_finds(num_devices: int) -> None:
    """All limits on columns are tried, and equal lists count as often as they occur."""
    problem = problem_of(task(6, num_devices))

    found = published_beam(problem, work_budget=UNLIMITED)

    reference = reference_search(problem)
    assert reference is not None
    assert problem.total_ms(found)[0] == pytest.approx(problem.total_ms([reference])[0], rel=1e-6)


def test_its_first_placement_is_that_of_the_whole_tables() -> None:
    """No work for a level leaves the start of the published search."""
    problem = problem_of(request(*(table(f"t{index}", pooling_factor=20.0 + index) for index in range(6))))
    whole = marginal_placement(problem, problem.whole)
    assert whole is not None

    (found,) = published_beam(problem, work_budget=problem.work + 70)

    assert problem.total_ms([found])[0] == problem.total_ms([whole])[0]


def test_without_work_it_finds_nothing() -> None:
    """Large sets leave it out: whole tables alone would take what the search has."""
    problem = problem_of(request(*tables(6)))

    assert published_beam(problem, work_budget=problem.work) == []


def test_a_spent_budget_does_not_keep_it_from_its_own_work() -> None:
    """The opening may take the whole budget of a small set; the plan is still no dearer than the published one."""
    problem = problem_of(task(8))

    found = IteratedSearch(problem, [], work_budget=1, published_work=published_work(problem)).run(bound_ms=0.0)

    assert found is not None
    reference = reference_search(problem)
    assert reference is not None
    assert problem.total_ms([found.placement])[0] <= problem.total_ms([reference])[0] * (1 + 1e-6)


@pytest.mark.slow
def test_no_plan_is_dearer_than_the_published_one_with_one_shard_of_a_table_per_device() -> None:
    """The published algorithm may put two shards of a table on a device, which the networks may price below one."""
    generator = np.random.default_rng(5_150_078)
    tables_drawn = sampled_tables(draw_pool(), int(generator.integers(10, 60)), generator, name="task")
    problem = Problem(weights_only_request(tables_drawn, 8), bundled_bundle("h100-80gb"))

    found = IteratedSearch(problem, [], work_budget=1, published_work=published_work(problem)).run(bound_ms=0.0)

    assert found is not None
    reference = reference_search(problem)
    assert reference is not None
    least_ms, merged_ms = problem.total_ms([reference, merged(problem, reference)])
    assert merged_ms > least_ms * 1.001
    assert problem.total_ms([found.placement])[0] <= merged_ms * (1 + 1e-6)


@pytest.mark.parametrize(("num_tables", "num_devices", "is_given"), [(60, 16, True), (120, 8, True), (200, 8, False)])
def test_sets_that_it_finishes_are_given_work_for_it(num_tables: int, num_devices: int, *, is_given: bool) -> None:
    """Larger sets would wait for it longer than for the rest of the search."""
    problem = problem_of(request(*tables(num_tables), num_devices=num_devices))

    assert (published_work(problem) > 0) == is_given


def test_no_plan_is_dearer_than_its_placements() -> None:
    """Neither local search nor the tolerance for fewer shards gives up what the published beam found."""
    problem = problem_of(task(8))

    found = IteratedSearch(problem, [], work_budget=20_000).run(bound_ms=0.0)

    assert found is not None
    other = problem_of(task(8))  # which numbers its kinds of shards by itself
    published = published_beam(other, work_budget=UNLIMITED)
    assert problem.total_ms([found.placement])[0] <= other.total_ms(published)[0] * (1 + 1e-6)


def test_a_list_without_a_placement_is_split_further() -> None:
    """A table wider than every limit on columns has to be halved before anything fits."""
    problem = problem_of(request(table("only", embedding_dim=64)))

    assert published_beam(problem, work_budget=UNLIMITED) != []


def test_halves_keep_to_the_constraints() -> None:
    """Neither more shards than allowed nor narrower ones are made, and pinned tables are never cut."""
    constraints = Constraints(
        tables={
            "t0": TableConstraints(max_shards=1),
            "t1": TableConstraints(min_shard_width=64),
            "t2": TableConstraints(devices=(1,)),
        }
    )
    problem = problem_of(request(*tables(4, embedding_dim=64), constraints=constraints))

    lists = halved(problem, problem.whole)

    cut = [np.bincount(problem.kinds.unit[kinds], minlength=4).tolist() for kinds in lists]
    assert cut == [[1, 1, 1, 2]]


@generated(8, 25)
@given(search_requests(), st.integers(0, 2000))
def test_its_placements_keep_columns_memory_and_devices(asked: PlanRequest, work: int) -> None:
    """Whatever the request and however little work there is."""
    problem = problem_of(asked)

    for placement in published_beam(problem, work_budget=problem.work + work):
        columns = np.bincount(problem.kinds.unit[placement.kinds], weights=problem.kinds.num_columns[placement.kinds])
        assert columns.tolist() == [unit.num_columns for unit in problem.units]
        assert problem.fits(placement)
        if problem.allowed is not None:
            assert all(problem.allowed[unit, device] for unit, _, device in shards_of(problem, placement))
