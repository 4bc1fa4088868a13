"""Assignments of ways to units, and the placements that they lead to."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, MemorySettings, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.shards import COLUMNS, FAMILIES, NODE_ROWS, ROWS, IndexArray
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.all_families import assignments_of
from neuroshard_planner.search.assignments import Assignment, Assignments, bound_to_convert
from neuroshard_planner.search.dealing import proposed
from neuroshard_planner.search.options import Form, Forms, OptionTable
from support.builders import GIB, request, table, topology
from support.planner.searches import problem_of

ALL = tuple(ShardingType)
EVERY_FAMILY = [tuple(range(len(FAMILIES)))]


def problem(
    *poolings: float,
    num_nodes: int = 2,
    memory_gib: float = 80.0,
    num_rows: int = 100_000,
    own: Mapping[str, ShardingType] | None = None,
) -> Problem:
    """Return tables of these pooling factors on nodes of two devices; ``own`` are the only types of some tables."""
    members = [
        table(f"t{index}", num_embeddings=num_rows, pooling_factor=pooling) for index, pooling in enumerate(poolings)
    ]
    constraints = {name: TableConstraints(sharding_types=(kind,)) for name, kind in (own or {}).items()}
    return problem_of(
        request(
            *members,
            topology=topology(2 * num_nodes, num_nodes=num_nodes, memory_bytes=int(memory_gib * GIB)),
            constraints=Constraints(sharding_types=ALL, tables=constraints),
            memory=MemorySettings(reserve_fraction=0.0),
        )
    )


def every_assignment(found: Assignments) -> IndexArray:
    """Return [n, units] the ways of all assignments."""
    return np.array(list(product(*(range(*ends) for ends in zip(found._starts, found._ends, strict=True)))))


def first_form(problem: Problem, unit: int, kind: ShardingType) -> Form:
    """Return a unit's first form of a type."""
    return next(form for form in Forms(problem).of(unit) if form.sharding_type is kind)


def put(problem: Problem, *kinds: ShardingType | None, loads: list[float] | None = None) -> Placement | None:
    """Return whole tables, one after the other on the devices, but with these forms of the first units."""
    start = Placement(kinds=problem.whole, devices=np.arange(len(problem.units)) % problem.num_devices)
    forms = tuple(None if kind is None else first_form(problem, unit, kind) for unit, kind in enumerate(kinds))
    forms += (None,) * (len(problem.units) - len(forms))
    of_kinds = np.ones(len(problem.kinds))
    if loads is not None:
        of_kinds[problem.whole] = loads
    return proposed(
        problem,
        start,
        Forms(problem),
        Assignment(forms, np.zeros(len(forms), dtype=np.int64), promised_ms=1.0),
        loads=of_kinds,
        bound=bound_to_convert(problem),
    )


@settings(max_examples=15, deadline=None)
@given(poolings=st.lists(st.sampled_from((0.5, 2.0, 10.0, 40.0)), min_size=2, max_size=3))
def test_the_best_assignment_promises_about_the_least_of_all(poolings: list[float]) -> None:
    """Against exhaustion, with the power that counts in the end; starts and descents see a few of the assignments."""
    asked = problem(*poolings)
    found = assignments_of(asked)
    ways = every_assignment(found)
    ways = ways[(found._family[ways] != COLUMNS).any(axis=1)]
    least_ms = found._values(ways, np.full(len(ways), asked.tuning.powers[-1])).min()

    best = found.promising(FamilyBounds(asked).sets, count=2)[0]

    assert least_ms * (1 - 1e-6) <= best.promised_ms <= least_ms * 1.05


@settings(max_examples=15, deadline=None)
@given(poolings=st.lists(st.sampled_from((0.5, 2.0, 10.0, 40.0)), min_size=2, max_size=4))
def test_what_is_by_columns_and_what_is_not_promise_about_the_least_of_their_own(poolings: list[float]) -> None:
    """Against exhaustion; where all tables must be by columns, nothing else promises anything."""
    asked = problem(*poolings)
    found = assignments_of(asked)
    ways = every_assignment(found)
    values = found._values(ways, np.full(len(ways), asked.tuning.powers[-1]))
    is_by_columns = (found._family[ways] == COLUMNS).all(axis=1)

    least = found.least_ms(FamilyBounds(asked).sets)

    for own, promised_ms in zip((is_by_columns, ~is_by_columns), least, strict=True):
        assert values[own].min() * (1 - 1e-6) <= promised_ms <= values[own].min() * 1.05
    assert found.least_ms([(COLUMNS,)]) == (least[0], float("inf"))


def test_all_tables_in_grids_are_an_assignment() -> None:
    """Wide tables between nodes: columns of one table next to the grids would bring another call and an all-to-all."""
    found = assignments_of(problem(30.0, 20.0, 10.0, 5.0, num_nodes=4)).promising([(NODE_ROWS,)], count=2)

    assert found
    assert all(form is not None and form.family == NODE_ROWS for each in found for form in each.forms)


def test_assignments_differ_in_forms_and_have_neighbors() -> None:
    """Of the best, with one form more or less: what an assignment promises is not what it ends at."""
    asked = problem(0.5, 1.0, 2.0, 5.0, 10.0, 20.0, num_rows=2_000)

    found = assignments_of(asked).promising(EVERY_FAMILY, count=1)

    contents = [each.by_unit for each in found]
    assert all(contents)
    assert len({tuple((unit, form.kinds.tobytes()) for unit, form in each.items()) for each in contents}) == len(found)
    sizes = {len(each) for each in contents}
    assert any(size + 1 in sizes for size in sizes)


def test_cuts_are_options_of_the_units_by_columns() -> None:
    """Where an assignment is dealt out they are one proposal."""
    asked = problem(0.5, 1.0, 40.0, 60.0, num_rows=2_000)
    options = OptionTable(asked)

    found = assignments_of(asked).promising(EVERY_FAMILY, count=2)

    assert any(len(each.by_unit) < 4 for each in found)
    for each in found:
        for unit, cut in enumerate(each.cuts.tolist()):
            assert (cut == -1) == (unit in each.by_unit)
            assert cut == -1 or options.first[unit] <= cut <= options.last[unit]


def test_one_assignment_by_columns_cuts_only_what_is_longer_than_a_device() -> None:
    """No two are equal; others even out columns, too."""
    found = problem(4000.0, 2.0, 2.0, 2.0, num_nodes=1)

    states = assignments_of(found).by_columns()

    options = OptionTable(found)
    counts = [[len(options.shards_of(int(option))) for option in state] for state in states]
    assert [2, 1, 1, 1] in counts
    assert all(counts.count(each) == 1 for each in counts)


def test_only_families_of_some_set_are_used_and_bound_units_are_never_by_columns() -> None:
    """Copies cost no exchange here, and would be taken where they were permitted."""
    asked = problem(1.0, 1.0, 1.0, num_rows=100, own={"t0": ShardingType.ROW_WISE})

    found = assignments_of(asked).promising([(COLUMNS, ROWS)], count=2)

    assert found
    for each in found:
        assert each.forms[0] is not None
        assert {form.family for form in each.forms if form is not None} == {ROWS}


@pytest.mark.parametrize(("memory_gib", "fits"), [(80.0, True), (2.0, False)])
def test_what_fits_no_mean_device_is_followed_nowhere(memory_gib: float, *, fits: bool) -> None:
    """Eight tables of 1.2 GiB on four devices, in any way."""
    found = assignments_of(problem(*[1.0] * 8, num_rows=5_000_000, memory_gib=memory_gib))

    promised = [each.promised_ms for each in found.promising(EVERY_FAMILY, count=2)]

    assert promised
    assert np.isfinite(promised).all() == fits


def test_a_set_of_too_many_units_has_none() -> None:
    """Descents that cannot try every unit once are not begun."""
    asked = problem(1.0, 2.0, 3.0)
    few = problem_of(asked.request, tuning=SearchTuning(most_opened_units=2))

    assert assignments_of(asked).promising(EVERY_FAMILY, count=2)
    assert assignments_of(few).promising(EVERY_FAMILY, count=2) == []


def test_blocks_go_to_the_least_loaded_nodes() -> None:
    """The other tables stay where they are."""
    asked = problem(1.0, 1.0, 1.0, 1.0, 1.0)

    found = put(asked, ShardingType.TABLE_ROW_WISE, loads=[1.0, 9.0, 1.0, 1.0, 1.0])

    assert found is not None
    is_block = asked.kinds.unit[found.kinds] == 0
    assert sorted(found.devices[is_block].tolist()) == [2, 3]
    assert sorted(found.devices[~is_block].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_unit_without_room_for_its_form_stays_by_columns(*, is_bound: bool) -> None:
    """Half of 1.2 GiB does not fit next to a whole table on 1.5 GiB. Where columns are forbidden, none fits."""
    kind = ShardingType.TABLE_ROW_WISE
    asked = problem(1.0, 1.0, 1.0, 1.0, num_rows=5_000_000, memory_gib=1.5, own={"t0": kind} if is_bound else {})

    found = put(asked, kind)

    assert (found is None) == is_bound
    if found is not None:
        assert sorted(found.devices.tolist()) == [0, 1, 2, 3]
        assert (asked.kinds.family[found.kinds] == COLUMNS).all()
