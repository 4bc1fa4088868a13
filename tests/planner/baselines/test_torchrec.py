"""TorchRec's own planner on our requests, and the message where it cannot serve them."""

import importlib.util
import sys
from typing import Any

import pytest
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.process.generations import kernels_hint
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.baselines.torchrec import torchrec_placement
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.problem import Problem
from neuroshard_report.explain.comparison import compare
from support import builders
from support.planner.exact_costs import ExactCosts

needs_torchrec = [
    pytest.mark.torchrec,
    pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="torchrec is not installed"),
]


def with_torchrec(test: object) -> object:
    """Mark a test that runs TorchRec."""
    for mark in needs_torchrec:
        test = mark(test)
    return test


def request_of(**fields: Any) -> PlanRequest:
    """Return eight tables of two widths and rising pooling factors on four devices."""
    members = [
        builders.table(f"t{index}", embedding_dim=128 if index % 2 else 32, pooling_factor=1.0 + 4 * index)
        for index in range(8)
    ]
    return builders.request(*members, **fields)


def problem_of(request: PlanRequest) -> Problem:
    """Return the request under a cost model without error."""
    return Problem(request, ExactCosts(request.topology.device))


@with_torchrec
@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(),
        Constraints(max_shards_per_table=2, min_shard_width=16),
        Constraints(max_shards_per_table=1),
        Constraints(excluded_sharding_types=(ShardingType.DATA_PARALLEL, ShardingType.COLUMN_WISE)),
    ],
    ids=["free", "two shards", "whole tables", "excluded types"],
)
def test_its_plans_keep_to_the_request(constraints: Constraints) -> None:
    """A plan by TorchRec is a plan like any other: same checks, same ledger, same constraints."""
    request = request_of(algorithm=Algorithm.TORCHREC, constraints=constraints)

    plan = search(request, bundle=ExactCosts(request.topology.device))

    assert plan.algorithm is Algorithm.TORCHREC
    assert plan_problems(plan) == []
    excluded = constraints.excluded_sharding_types or ()
    assert not any(table.sharding_type in excluded for table in plan.tables)


@with_torchrec
def test_it_places_by_rows_and_copies_where_that_is_cheaper() -> None:
    """Between nodes its full planner finds plans that none of its own by columns comes near, and they are sound."""
    members = [
        builders.table(f"t{index}", embedding_dim=128, num_embeddings=rows, pooling_factor=pooling)
        for index, (rows, pooling) in enumerate(((64, 1.0), (200, 1.0), (2_000_000, 60.0), (5_000_000, 1.0)))
    ]
    free = builders.request(*members, topology=builders.topology(8, num_nodes=4), algorithm=Algorithm.TORCHREC)
    free = free.model_copy(update={"optimizer": Optimizer.ROWWISE_ADAGRAD})
    by_columns = Constraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE))
    bundle = ExactCosts(free.topology.device)

    found = search(free, bundle=bundle)
    held = search(free.model_copy(update={"constraints": by_columns}), bundle=bundle)

    assert plan_problems(found) == []
    assert any(not table.sharding_type.is_by_columns for table in found.tables)
    assert all(table.sharding_type.is_by_columns for table in held.tables)
    assert found.predicted.total_ms < held.predicted.total_ms


@with_torchrec
def test_it_splits_what_no_device_can_hold() -> None:
    """It may cut columns as the search may: a table larger than a device finds room, by our ledger."""
    request = builders.request(builders.table("large", num_embeddings=400_000_000), algorithm=Algorithm.TORCHREC)

    plan = search(request, bundle=ExactCosts(request.topology.device))

    assert len(plan.tables[0].shards) > 1
    assert plan_problems(plan) == []


@with_torchrec
def test_memory_means_the_same_for_both() -> None:
    """What does not fit by our ledger does not fit for TorchRec's planner either."""
    request = builders.request(
        builders.table("large", num_embeddings=400_000_000),
        constraints=Constraints(sharding_types=(ShardingType.TABLE_WISE,)),
    )

    with pytest.raises(InfeasibleError, match="TorchRec's planner found no plan"):
        torchrec_placement(problem_of(request))


@with_torchrec
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"constraints": Constraints(colocate=(("t0", "t1"),))}, "cannot co-locate tables, as 't0' asks for"),
        ({"constraints": Constraints(forbidden_devices=(3,))}, "cannot pin tables or leave out devices"),
        ({"constraints": Constraints(tables={"t0": TableConstraints(devices=(0,))})}, "cannot pin tables"),
    ],
    ids=["group", "forbidden device", "pin"],
)
def test_what_it_has_no_words_for_is_said(fields: dict[str, object], expected: str) -> None:
    """A constraint is never dropped in silence."""
    request = request_of().model_copy(update=fields)

    with pytest.raises(InfeasibleError, match=expected):
        torchrec_placement(problem_of(request))


@with_torchrec
def test_tables_by_rows_of_a_node_and_grids_are_not_mixed() -> None:
    """TorchRec makes one lookup of both, and a table that may not be grid_shard would be written as it."""
    members = (
        builders.table("small"),
        builders.table("large", num_embeddings=10**9),  # in no way but blocks of columns on both nodes
    )
    own = {
        "small": TableConstraints(sharding_types=(ShardingType.TABLE_ROW_WISE,)),
        "large": TableConstraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.GRID)),
    }
    request = builders.request(
        *members, topology=builders.topology(4, num_nodes=2), constraints=Constraints(tables=own)
    )

    with pytest.raises(InfeasibleError, match="TorchRec's planner found no plan"):
        torchrec_placement(problem_of(request))


@with_torchrec
def test_it_joins_the_comparison() -> None:
    """Its line has the same numbers as every other."""
    request = request_of()

    (line,) = compare(request, bundle=ExactCosts(request.topology.device), algorithms=(Algorithm.TORCHREC,))

    assert line.outcome is not None
    assert line.outcome.predicted.total_ms == pytest.approx(line.outcome.simulated.total_ms, rel=2e-3)


def test_without_torchrec_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is a line of the comparison, and an error where it was asked for by name."""
    monkeypatch.setitem(sys.modules, "torchrec", None)
    request = request_of(algorithm=Algorithm.TORCHREC)
    bundle = ExactCosts(request.topology.device)

    (line,) = compare(request, bundle=bundle, algorithms=(Algorithm.TORCHREC,))

    assert line.problem is not None
    assert kernels_hint() in line.problem
    with pytest.raises(MissingPackageError, match="needs TorchRec"):
        search(request, bundle=bundle)
