"""Columns end to end over the devices."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.step_cost import Collective
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.partitioner import wrapped
from support.builders import request, table, tables, topology

H100 = bundled_bundle("h100-80gb")
COLUMNS = Constraints(sharding_types=BY_COLUMNS)


def whole_on_first(asked: PlanRequest) -> tuple[Problem, Placement]:
    """Return a problem, and all of its tables whole on one device."""
    problem = Problem(asked, H100)
    return problem, Placement(kinds=problem.whole, devices=np.zeros(len(problem.units), dtype=np.int64))


def test_devices_have_as_many_columns_with_few_cuts() -> None:
    """Five tables of 32 columns are 20 on each of eight devices, in at most one cut for each device but one."""
    problem, start = whole_on_first(request(*tables(5, embedding_dim=32), num_devices=8, constraints=COLUMNS))

    even = wrapped(problem, start)

    assert even is not None
    columns = problem.traffic(even.kinds, even.devices, 8)[:, Collective.POOLED_EMBEDDINGS]
    assert columns.tolist() == [20.0] * 8
    kinds = problem.kinds
    widths = np.bincount(kinds.unit[even.kinds], weights=kinds.num_columns[even.kinds])
    assert widths.tolist() == [32] * 5
    assert len(even.kinds) <= 5 + 7


@pytest.mark.parametrize(
    "constraints",
    [
        COLUMNS.model_copy(update={"max_shards_per_table": 1}),
        COLUMNS.model_copy(update={"min_shard_width": 32}),
        COLUMNS.model_copy(update={"forbidden_devices": (1,)}),
    ],
)
def test_constraints_forbid_cuts_anywhere(constraints: Constraints) -> None:
    """Where a cut would be too many, a shard too narrow, or a device is left out, there is no such placement."""
    members = [table("narrow", embedding_dim=4), *tables(4, embedding_dim=32)]
    problem, start = whole_on_first(request(*members, num_devices=8, constraints=constraints))

    assert wrapped(problem, start) is None


def test_a_plan_of_equal_tables_has_the_least_peak_of_columns() -> None:
    """26 tables of 128 columns on 64 devices: 52 on each, where even cuts of every table give 64 to some."""
    asked = request(
        *tables(26, num_embeddings=100_000, embedding_dim=128, pooling_factor=1.0),
        topology=topology(64, num_nodes=8),
        constraints=COLUMNS,
        batch_size_per_device=8192,
    )
    found = plan(asked, bundle=H100)

    assert max(device.embedding_dim_sum for device in found.predicted.devices) == 52
