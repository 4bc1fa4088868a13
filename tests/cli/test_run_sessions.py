"""``neuroshard run`` of a job whose samples come in sessions: it counts their repeats before it plans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.exit_codes import ExitCode
from support.cli.local_runs import Runs

TABLES = [
    {"name": "history", "numEmbeddings": 200_000, "embeddingDim": 64, "poolingFactor": 20},
    {"name": "item", "numEmbeddings": 50, "embeddingDim": 16},
]
SESSIONS = {"format": "Parquet", "path": "log.parquet", "sessionColumn": "visit", "timeColumn": "ts"}
NUM_SAMPLES = 1200


def write_log(folder: Path) -> None:
    """Write sessions of 6 samples that take turns, each with one history; items change with each sample."""
    rows = np.arange(NUM_SAMPLES)
    visits = rows % (NUM_SAMPLES // 6)
    columns = {
        "label": rows % 2,
        "visit": visits,
        "ts": rows,
        "history": [[int(visit), int(visit) + 1] for visit in visits],
        "item": rows % 49,
    }
    pq.write_table(pa.table(columns), folder / "log.parquet")


def plan_only(
    runs: Runs, *options: object, data: dict[str, Any], tables: Any = TABLES, run: int = 8, **spec: Any
) -> Any:
    """Plan a job for NeuroShard's own trainer, whose dense part has a given size."""
    experimental = {"planner": {"denseMemoryPerDevice": "1Gi"}, "data": {"sessionRun": run}}
    spec |= {"experimental": experimental, "model": {"embeddingTables": tables}}
    return runs.run(*options, launchPolicy="PlanOnly", trainer={"command": []}, data=data, **spec)


def planned(runs: Runs) -> Plan:
    """Return the plan of the run."""
    return Plan.read(runs.run_dir / "plan.json")


def test_repeats_are_counted_before_the_plan(runs: Runs) -> None:
    """All of the log, shown in one line; a second run finds them in its folder, and plans nothing again."""
    write_log(runs.folder)

    first, second = plan_only(runs, data=SESSIONS), plan_only(runs, data=SESSIONS)

    tables = {table.name: table for table in planned(runs).request.tables.tables}
    found = "samples per distinct list in runs of up to 8: history 6.00; 1 without a group at most 1.00"
    assert first.code == second.code == ExitCode.OK
    assert (tables["history"].duplication_group, tables["history"].duplication_factor) == ("history", 6.0)
    assert (tables["item"].duplication_group, tables["item"].duplication_factor) == (None, 1.0)
    assert planned(runs).request.tables.session_run == 8
    assert not any("duplication factors" in warning for warning in planned(runs).warnings)
    assert f" s: {found}" in first.err
    assert f"measure: reused: {found}" in second.err
    assert "plan: reused" in second.err
    assert json.loads((runs.run_dir / "tables.json").read_text())["session_run"] == 8


@pytest.mark.parametrize(
    ("changed", "factor"),
    [({"run": 2}, 2.0), ({"timeColumn": None}, 6.0)],
    ids=["shorter runs", "stored order"],
)
def test_repeats_are_of_the_order_of_training(runs: Runs, changed: dict[str, Any], factor: float) -> None:
    """Its runs, and the stored order where no column orders the samples of a session."""
    write_log(runs.folder)
    data = {key: value for key, value in (SESSIONS | changed).items() if value}
    plan_only(runs, run=data.pop("run", 8), data=data)

    assert planned(runs).request.tables.tables[0].duplication_factor == factor


def test_a_log_that_was_written_again_is_counted_again(runs: Runs) -> None:
    """Its factors are others."""
    write_log(runs.folder)
    plan_only(runs, data=SESSIONS)
    table = pq.read_table(runs.folder / "log.parquet")
    changed = pa.array([[row] for row in range(NUM_SAMPLES)])
    pq.write_table(table.set_column(3, "history", changed), runs.folder / "log.parquet")
    plan_only(runs, data=SESSIONS)

    assert planned(runs).request.tables.tables[0].duplication_factor == 1.0


@pytest.mark.parametrize("data", [SESSIONS | {"deduplication": "Off"}, {"format": "Parquet", "path": "log.parquet"}])
def test_nothing_is_counted_where_the_plan_does_not_depend_on_it(runs: Runs, data: dict[str, Any]) -> None:
    """Repeats are not left out, or there are no sessions."""
    write_log(runs.folder)
    result = plan_only(runs, data=data)

    assert result.code == ExitCode.OK
    assert "measure" not in result.err
    assert {table.duplication_factor for table in planned(runs).request.tables.tables} == {None}


def test_factors_that_the_user_gave_are_kept(runs: Runs) -> None:
    """Nothing is counted."""
    write_log(runs.folder)
    own = {"embedding_dim": 16, "duplication_group": "own", "duplication_factor": 3.0, "num_embeddings": 200_000}
    tables = {
        "schema_version": "table-set/v1",
        "name": "own",
        "session_run": 8,
        "tables": [{"name": each["name"], **own} for each in TABLES],
    }
    config_map = {"kind": "ConfigMap", "metadata": {"name": "tables"}, "data": {"tables.json": json.dumps(tables)}}
    key = {"configMapKeyRef": {"name": "tables", "key": "tables.json"}}
    job = runs.write(
        launchPolicy="PlanOnly",
        trainer={"command": []},
        data=SESSIONS,
        experimental={"planner": {"denseMemoryPerDevice": "1Gi"}},
        model={"embeddingTablesFrom": key},
    )
    job.write_text(f"{job.read_text(encoding='utf-8')}---\n{yaml.safe_dump(config_map)}", encoding="utf-8")

    result = runs.neuroshard("run", job, "--run-dir", runs.run_dir)

    assert result.code == ExitCode.OK, result.err
    assert "measure" not in result.err
    assert {table.duplication_factor for table in planned(runs).request.tables.tables} == {3.0}


def test_a_log_that_cannot_be_counted_is_planned_with_all_lists(runs: Runs) -> None:
    """With the reason; the plan has the command that measures them."""
    write_log(runs.folder)
    table = pq.read_table(runs.folder / "log.parquet")
    pq.write_table(table.append_column("Item", table["item"]), runs.folder / "log.parquet")

    result = plan_only(runs, data=SESSIONS)

    assert result.code == ExitCode.OK
    assert "measure: failed" in result.err
    assert (
        "occurs twice, upper case aside; hint: rename one; the plan is for batches with all repeated lists"
        in result.err
    )
    assert any("neuroshard stats" in warning for warning in planned(runs).warnings)
