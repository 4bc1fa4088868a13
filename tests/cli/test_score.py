"""Specification of ``neuroshard score`` for plan files; tests of the drop-in score TorchRec's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.plans.imported_plan import imported_plan
from support.builders import table, table_set, topology
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, on_node

DEVICES = ("--devices", "4", "--device-type", "h100-80gb", "--batch-size", "8192")


@pytest.fixture
def greedy(neuroshard: Any, tmp_path: Path) -> Path:
    """Write a plan that evens out rows and columns alone: one device has nearly all lookups."""
    members = [
        table(f"t{at}", num_embeddings=10**6 // (1 + at), embedding_dim=64, pooling_factor=1.0 + 100 * (at % 3 == 0))
        for at in range(16)
    ]
    tables, plan = tmp_path / "tables.json", tmp_path / "greedy.json"
    tables.write_text(table_set(*members).to_json())
    assert neuroshard("plan", tables, *DEVICES, "--set", "spec.planner.algorithm=SizeGreedy", "--out", plan).code == 0
    return plan


def test_a_plan_is_explained_with_the_three_moves_that_help_most(neuroshard: Any, greedy: Path) -> None:
    """Each move lowers the step; together they cost what the moved plan costs."""
    result = neuroshard("score", greedy, "--json")
    found = json.loads(result.out)
    costs = [found["explanation"]["total_ms"], *(move["total_ms"] for move in found["moves"])]

    assert result.code == 0
    assert len(found["moves"]) == 3
    assert costs == sorted(costs, reverse=True)
    assert costs[3] < 0.95 * costs[0]
    plan = Plan.read(greedy)
    definitions = {each.name: each for each in plan.request.tables.tables}
    placed = {each.name: each for each in plan.tables}
    for move in found["moves"]:
        width = 64 // len(move["devices"])
        placed[move["table"]] = by_columns(definitions[move["table"]], *((at, width) for at in move["devices"]))
    moved = imported_plan(tuple(placed.values()), plan.request, bundle=bundled_bundle("h100-80gb"))
    assert moved.predicted.total_ms == pytest.approx(costs[3], rel=1e-9)


def test_the_moves_are_printed_below_the_explanation(neuroshard: Any, greedy: Path) -> None:
    """With where each table is and would be."""
    result = neuroshard("score", greedy)

    assert (result.code, result.err) == (0, "")
    assert "the step's parts" in result.out
    lines = result.out.splitlines()
    moves = lines[next(at for at, line in enumerate(lines) if line.startswith("moving, one after the other")) + 1 :]
    assert len(moves) == 3
    assert all("table_wise on " in line and "%" in line for line in moves)


def test_a_plan_without_a_price_gets_one(neuroshard: Any, greedy: Path) -> None:
    """The same as the plan that was searched for with these shards."""
    priced = Plan.read(greedy)
    bare, out = greedy.with_name("bare.json"), greedy.with_name("priced.json")
    bare.write_text(given_plan(priced.request, *priced.tables).to_json())
    result = neuroshard("score", bare, "--out", out)

    assert result.code == 0
    assert Plan.read(out).predicted == priced.predicted
    assert neuroshard("explain", out).code == 0


def test_a_plan_that_does_not_fit_is_scored_with_what_is_missing_and_where(neuroshard: Any, tmp_path: Path) -> None:
    """Its devices, bytes, purposes, and largest tables; plans that fit say nothing of it, and validate refuses it."""
    large, small = table("large", num_embeddings=160_000_000, embedding_dim=128), table("small", num_embeddings=10**6)
    nodes = topology(4, device=bundled_bundle("h100-80gb").manifest.device)
    asked = PlanRequest(tables=table_set(large, small), topology=nodes, batch_size_per_device=512)
    path, out = tmp_path / "plan.json", tmp_path / "scored.json"
    path.write_text(given_plan(asked, by_columns(large, (1, 64), (1, 64)), by_columns(small, (1, 64))).to_json())

    result = neuroshard("score", path, "--out", out)
    assert (result.code, result.err.count("error")) == (0, 0)
    assert "does not fit: device 1 lacks " in result.out
    assert "memory of device 1" in result.out
    assert "largest tables there, weights and optimizer state: large (" in result.out
    scored = Plan.read(out)
    device = scored.memory[1]
    assert device.used_bytes > device.capacity_bytes

    (overfull,) = json.loads(neuroshard("score", path, "--json").out)["explanation"]["overfull"]
    assert (overfull["device"], overfull["used_bytes"]) == (1, device.used_bytes)
    assert overfull["capacity_bytes"] == device.capacity_bytes
    assert sum(size for _, size in overfull["purposes"]) == device.used_bytes
    assert overfull["purposes"][0][0] == "weights"
    assert dict(overfull["tables"])["large"] == 160_000_000 * (128 * 4 + 2 * 4)  # row-wise state of both shards
    assert "does not fit" in neuroshard("explain", out).out
    refused = neuroshard("validate", out)
    assert refused.code != 0
    assert "memory[1]: needs" in refused.out + refused.err


def test_a_plan_of_all_placements_is_scored(neuroshard: Any, tmp_path: Path) -> None:
    """Rows, rows of a node, copies, and columns; moves are to columns, whatever the table was."""
    nodes = topology(4, num_nodes=2)
    device = bundled_bundle("h100-80gb").manifest.device
    nodes = nodes.model_copy(update={"device": device})
    rows, node, copied, cut = (table(name, num_embeddings=4000) for name in ("rows", "node", "copied", "cut"))
    request = PlanRequest(tables=table_set(rows, node, copied, cut), topology=nodes, batch_size_per_device=512)
    plan = given_plan(
        request,
        by_rows(rows, nodes),
        on_node(node, 1, nodes),
        everywhere(copied, nodes),
        by_columns(cut, (0, 32), (3, 32)),
    )
    path, out = tmp_path / "all.json", tmp_path / "priced.json"
    path.write_text(plan.to_json())
    result = neuroshard("score", path, "--out", out)

    assert result.code == 0, result.err
    assert {each.sharding_type for each in GivenPlan.read(out).tables} == set(ShardingType) - {
        ShardingType.GRID,
        ShardingType.TABLE_WISE,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "4"), "--devices: {plan} already says what it answers\nhint: leave it out"),
        (("mlperf-dlrm-dcnv2",), "TABLES: {plan} already says what it answers"),
        (("--batch-size", "4"), "--batch-size: {plan} already says"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_does_not_belong_to_a_plan_file_is_named(
    neuroshard: Any, greedy: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Its request is its own."""
    result = neuroshard("score", greedy, *arguments)

    assert (result.code, result.out) == (2, "")
    assert message.format(plan=greedy) in result.err


def test_a_file_that_is_no_plan_is_named(neuroshard: Any, tmp_path: Path) -> None:
    """With its schema."""
    path = tmp_path / "tables.json"
    path.write_text(table_set(table()).to_json())
    result = neuroshard("score", path)

    assert (result.code, result.out) == (2, "")
    assert str(path) in result.err
    assert "plan/v3" in result.err


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [("empty.yaml", "", "found nothing"), ("job.YAML", "kind: DLRMTrainingJob", "is a DLRMTrainingJob")],
)
def test_a_document_is_no_pickle(neuroshard: Any, tmp_path: Path, name: str, text: str, found: str) -> None:
    """By its name, whatever is in it."""
    (tmp_path / name).write_text(text)
    result = neuroshard("score", tmp_path / name)

    assert (result.code, result.out) == (2, "")
    assert found in result.err
