"""Steps that shard one table another way."""

import numpy as np
from neuroshard_api.documents.request import Constraints
from neuroshard_api.sharding.kinds import Family, ShardingType
from neuroshard_costs.shards import COLUMNS, FAMILIES
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.conversions import Conversions
from neuroshard_planner.search.estimator import Traits, tangent
from neuroshard_planner.search.options import Forms
from support.builders import request, table, topology
from support.planner.searches import problem_of

ALL = Constraints(sharding_types=tuple(ShardingType))


def conversions(problem: Problem, *, work_budget: int = 10**9) -> Conversions:
    """Return conversions with the forms and slopes that the search of all types would use."""
    forms = Forms(problem)
    traits = Traits(problem, tangent(problem, forms.mean_sums()))
    return Conversions(problem, forms, traits=traits, work_budget=work_budget)


def hot_and_cold() -> Problem:
    """Return a table with nearly all lookups next to small ones, on two nodes of two devices."""
    hot = table("hot", num_embeddings=5_000_000, embedding_dim=64, pooling_factor=200.0)
    cold = [table(f"cold{n}", num_embeddings=1_000, embedding_dim=16) for n in range(3)]
    return problem_of(request(hot, *cold, topology=topology(4, num_nodes=2), constraints=ALL))


def cells_of(problem: Problem, placement: Placement) -> dict[int, int]:
    """Return the rows times columns of each unit that a placement has somewhere; replicas count once."""
    kinds = problem.kinds
    cells: dict[int, int] = {}
    for kind in placement.kinds.tolist():
        unit, size = int(kinds.unit[kind]), int(kinds.num_rows[kind] * kinds.num_columns[kind])
        is_copy = FAMILIES[kinds.family[kind]] is Family.REPLICATED
        cells[unit] = size if is_copy else cells.get(unit, 0) + size
    return cells


def test_a_table_that_one_device_waits_for_is_spread() -> None:
    """The steps lower the cost, and every column of every table stays somewhere."""
    problem = hot_and_cold()
    whole = Placement(kinds=problem.whole, devices=np.zeros(len(problem.whole), dtype=np.int64))
    steps = conversions(problem)

    found = steps.improve(whole)

    (before_ms, after_ms) = problem.total_ms([whole, found])
    assert steps.improvements > 0
    assert after_ms < before_ms
    assert problem.fits(found)
    own = problem.kinds.unit[found.kinds] == 0
    assert len(set(found.devices[own].tolist())) > 1
    assert cells_of(problem, found) == cells_of(problem, whole)


def test_without_work_left_nothing_is_converted() -> None:
    """A descent ends at its budget."""
    problem = hot_and_cold()
    whole = Placement(kinds=problem.whole, devices=np.zeros(len(problem.whole), dtype=np.int64))

    assert conversions(problem, work_budget=0).improve(whole) is whole


def test_a_random_conversion_changes_the_family_of_one_table() -> None:
    """Equal generators convert the same table in the same way."""
    problem = hot_and_cold()
    whole = Placement(kinds=problem.whole, devices=np.arange(len(problem.whole)))

    first, second = (conversions(problem).converted(whole, np.random.default_rng(5)) for _ in range(2))

    changed = {int(unit) for unit in problem.kinds.unit[first.kinds[problem.kinds.family[first.kinds] != COLUMNS]]}
    assert len(changed) == 1
    assert np.array_equal(first.kinds, second.kinds)
    assert np.array_equal(first.devices, second.devices)
