"""The published search under this planner's cost models."""

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.tables import TableSet
from neuroshard_planner.problem.problem import Problem
from support.builders import request, tables
from support.planner.exact_costs import ExactCosts

from benchmarks.reference_search import place_greedily, reference_search
from benchmarks.tasks import DEVICE_TYPE, task_tables, weights_only_request


def test_its_plans_cover_every_table_within_memory() -> None:
    """The columns of all shards of a table add up to its dimension; no device is overfull."""
    members = task_tables()[6].tables[:8]
    asked = weights_only_request(TableSet(tables=members), 4)
    problem = Problem(asked, ExactCosts(preset(DEVICE_TYPE).device))

    placement = reference_search(problem)

    assert placement is not None
    columns = np.bincount(problem.kinds.unit[placement.kinds], weights=problem.kinds.num_columns[placement.kinds])
    memory = np.bincount(placement.devices, weights=problem.kinds.memory_bytes[placement.kinds])
    assert columns.tolist() == [table.embedding_dim for table in asked.tables.tables]
    assert memory.max() <= problem.memory.shard_capacity_bytes


def test_splitting_never_costs_more_than_not_splitting() -> None:
    """The cheapest list of all levels counts, the undivided one included."""
    asked = request(*tables(3), num_devices=2)
    problem = Problem(asked, ExactCosts(asked.topology.device))
    undivided = place_greedily(problem, problem.whole)

    found = reference_search(problem)

    assert found is not None
    assert problem.total_ms([found])[0] <= undivided.total_ms
    assert len(found.kinds) > len(problem.whole), "three equal tables on two devices ask for a split"


def test_there_is_no_plan_where_memory_ends_first() -> None:
    """A table that does not fit the devices even in parts has no placement."""
    asked = request(*tables(1, num_embeddings=2 * 10**9), num_devices=2)
    problem = Problem(asked, ExactCosts(asked.topology.device))

    assert reference_search(problem) is None
