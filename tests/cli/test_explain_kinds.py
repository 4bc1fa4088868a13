"""``neuroshard explain`` of every kind of plan that the product writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.tables import Pooling, Table
from support.builders import table, table_set
from support.cli.searches import QUICK_WORK, quick

EXAMPLES = Path(__file__).parents[2] / "examples"
POOLED = tuple(table(f"t{number}", num_embeddings=10_000_000, embedding_dim=32) for number in range(5))
SEQUENCE = table("history", num_embeddings=100_000, pooling=Pooling.NONE)
KINDS: dict[str, tuple[str, ...]] = {
    "as the tables are": (),
    "stored types": ("spec.planner.dataTypes=[FP32,FP16]",),
    "host memory": ("spec.planner.hostMemoryPerNode=1Ti", "spec.planner.maxMemoryPerDevice=5Gi"),
    "groups": ("spec.planner.shardingGroups={}", "spec.model.embeddingOptimizer=SGD"),
    "groups that average now and then": (
        "spec.planner.shardingGroups={sizes: [4]}",
        "spec.experimental.planner.syncEverySteps=10",
        "spec.model.embeddingOptimizer=SGD",
    ),
    "narrow types": ("spec.training.communication.policy=Auto",),
}
JOBS = [path for path in sorted(EXAMPLES.glob("0*.yaml")) if "TablesFrom" not in path.read_text()]
"""Jobs with their tables in the file."""


def explained(neuroshard: Any, plan: Path) -> None:
    """Require that the plan, and its first and last table, are explained in words and as JSON."""
    document = json.loads(plan.read_text())
    whole = neuroshard("explain", plan, "--json")
    assert (whole.code, whole.err) == (0, "")
    assert json.loads(whole.out)["total_ms"] == document["predicted"]["total_ms"]
    text = neuroshard("explain", plan)
    assert "the step's parts" in text.out
    for name in dict.fromkeys(document["tables"][index]["name"] for index in (0, -1)):
        of_table = neuroshard("explain", plan, name)
        assert (of_table.code, of_table.err) == (0, "")
        assert name in of_table.out


def options(settings: tuple[str, ...]) -> list[str]:
    """Return the options that set fields of a job."""
    return [part for each in settings for part in ("--set", each)]


def planned(neuroshard: Any, folder: Path, *options: object, tables: tuple[Table, ...] = POOLED) -> Path:
    """Return the file of a plan of these tables."""
    given, plan = folder / "tables.json", folder / "plan.json"
    given.write_text(table_set(*tables).to_json())
    result = neuroshard("plan", given, *options, "--out", plan)
    assert result.code == 0, result.err
    return plan


@pytest.mark.parametrize("settings", list(KINDS.values()), ids=list(KINDS))
def test_a_plan_of_each_kind_is_explained(neuroshard: Any, tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Of two nodes, as the options of a job ask for it."""
    options = [part for each in settings for part in ("--set", each)]
    plan = planned(neuroshard, tmp_path, *quick("2x4"), *options)

    explained(neuroshard, plan)


def test_a_plan_of_a_simple_rule_is_explained(neuroshard: Any, tmp_path: Path) -> None:
    """A plan of no search has reasons by the same models."""
    explained(neuroshard, planned(neuroshard, tmp_path, *quick(4), "--set", "spec.planner.algorithm=SizeLookupGreedy"))


def test_a_plan_of_tables_without_pooling_is_explained(neuroshard: Any, tmp_path: Path) -> None:
    """Sequences next to pooled tables."""
    explained(neuroshard, planned(neuroshard, tmp_path, *quick(4), tables=(*POOLED, SEQUENCE)))


@pytest.mark.parametrize("job", JOBS, ids=[path.name for path in JOBS])
def test_the_plan_of_each_example_is_explained(neuroshard: Any, tmp_path: Path, job: Path) -> None:
    """As the operator would make it, with its dense part, sessions, and limits."""
    plan = tmp_path / "plan.json"
    work = f"spec.experimental.planner.workBudget={QUICK_WORK}"
    result = neuroshard("plan", job, "--device-type", "h100-80gb", "--set", work, "--out", plan)

    assert result.code == 0, result.err
    explained(neuroshard, plan)
