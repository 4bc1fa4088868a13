"""The outer search over splits."""

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.proposers import SplitSearch
from support.builders import GIB, request, table, tables, topology
from support.planner.searches import problem_of

UNLIMITED = 10**9


def search_of(
    asked: PlanRequest, *, work_budget: int = UNLIMITED, tuning: SearchTuning | None = None
) -> tuple[Problem, OptionTable, SplitSearch]:
    """Return the search with loads that follow columns times pooling."""
    problem = problem_of(asked, tuning=tuning)
    options = OptionTable(problem)
    loads = problem.kinds.representation.sum(axis=1).astype(np.float64)
    return problem, options, SplitSearch(problem, options, loads=loads, work_budget=work_budget)


def test_a_dominant_table_is_split() -> None:
    """One hot wide table on four devices bounds every placement of whole tables."""
    asked = request(table("hot", embedding_dim=256, pooling_factor=80.0), *tables(3))
    _, options, search = search_of(asked)

    best = search.run()[0]

    assert options.count[best.lane.state[0]] > 1


def test_candidates_come_cheapest_first_and_are_distinct() -> None:
    """At most twice as many as the beam is wide, each with the cost of its placement."""
    problem, _, search = search_of(request(*tables(6, pooling_factor=20.0)), tuning=SearchTuning(num_best=4))

    found = search.run()

    totals = [candidate.total_ms for candidate in found]
    assert 1 <= len(found) <= 8
    assert totals == sorted(totals)
    assert len({candidate.lane.state.tobytes() for candidate in found}) == len(found)
    assert problem.total_ms([candidate.placement for candidate in found]).tolist() == totals


def test_proposals_of_several_widths_come_first() -> None:
    """The widest shard of a device gives all others its lanes, which no cut of a single table changes."""
    problem, _, search = search_of(request(*tables(12, embedding_dim=128, pooling_factor=20.0)))

    found = search.proposed(problem.tuning.opening_grid, 3)

    assert len({int(problem.kinds.num_columns[candidate.placement.kinds].max()) for candidate in found}) == 3


def test_without_patience_no_level_follows_the_proposals() -> None:
    """What is left are the proposals."""
    _, _, search = search_of(request(*tables(6, pooling_factor=20.0)), tuning=SearchTuning(patience=0))

    search.run()

    assert search.levels == 0


def test_levels_without_a_better_plan_end_the_search() -> None:
    """Equal whole tables, one per device, leave nothing to split."""
    problem, options, search = search_of(request(*tables(4)))

    best = search.run()[0]

    assert search.levels <= problem.tuning.patience
    assert options.count[best.lane.state].tolist() == [1] * 4


def test_a_table_beyond_a_device_is_proposed_in_parts() -> None:
    """The proposals include the fewest shards that fit the memory."""
    asked = request(
        table("big", num_embeddings=100_000_000, embedding_dim=128), topology=topology(4, memory_bytes=24 * GIB)
    )
    _, options, search = search_of(asked)

    best = search.run()[0]

    assert options.count[best.lane.state[0]] >= 3


def test_nothing_is_found_where_nothing_fits() -> None:
    """The caller packs by memory, or says why nothing fits."""
    _, _, search = search_of(request(table(num_embeddings=10**12)))

    assert search.run() == []


def test_an_exhausted_budget_still_tries_one_placement() -> None:
    """There is a candidate, and no second lane is paid for."""
    _, _, search = search_of(request(*tables(6)), work_budget=0)

    found = search.run()

    assert len(found) == 1
    assert search.placements == 1


def test_several_bounding_devices_are_relieved_split_by_split() -> None:
    """Two hot tables bound two devices: splitting one alone lowers no maximum, splitting both does."""
    hot = [table(name, embedding_dim=128, pooling_factor=60.0) for name in ("a", "b")]
    _, options, search = search_of(request(*hot, *tables(6), num_devices=8))

    best = search.run()[0]

    assert all(options.count[best.lane.state[:2]] > 1)
