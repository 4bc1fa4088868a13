"""``neuroshard run`` with a plan or cost models that its user gives."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Table
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.bundle import bundled_root
from support import builders
from support.cli.local_runs import Runs, made_plan
from support.planner.placements import by_rows, everywhere, given_plan


def runs_tables() -> tuple[Table, ...]:
    """Return the tables of the tests' job."""
    found = builders.job().spec.model.inline_tables("job")
    assert found is not None
    return found.tables


def test_a_plan_may_be_given(runs: Runs) -> None:
    """Then nothing is profiled or planned."""
    plan = made_plan(runs.folder)

    result = runs.run("--plan", plan)

    assert result.code == ExitCode.OK
    assert (runs.run_dir / "plan.json").read_text(encoding="utf-8") == plan.read_text(encoding="utf-8")
    assert not (runs.run_dir / "logs" / "plan.log").exists()


def test_data_that_cannot_be_trained_on_is_refused_before_anything_is_measured(runs: Runs) -> None:
    """A null that the file's own statistics know would else end the training after the profile and the plan."""
    names = [table.name for table in runs_tables()]
    columns = {"label": [0, 1], "dense_0": [0.5, None], **{name: [1, 2] for name in names}}
    pq.write_table(pa.table(columns), runs.folder / "clicks.parquet")
    data = {"format": "Parquet", "path": "clicks.parquet"}

    model = builders.job_data()["spec"]["model"] | {"numDenseFeatures": 1}
    path = runs.write(data=data, model=model, trainer={"command": []})
    result = runs.neuroshard("run", path, "--run-dir", runs.run_dir)

    assert result.code == ExitCode.INVALID_INPUT
    assert f"{runs.folder / 'clicks.parquet'} row 1, column dense_0: is null\nhint: fill it in" in result.err
    assert not runs.run_dir.exists()


def test_a_plan_may_stand_in_the_jobs_file(runs: Runs) -> None:
    """As the ConfigMap that planRef names."""
    plan = made_plan(runs.folder).read_text(encoding="utf-8")
    path = runs.write(planRef={"name": "mine"})
    config_map = {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"plan.json": plan}}
    with path.open("a", encoding="utf-8") as file:
        file.write("---\n" + yaml.safe_dump(config_map))

    result = runs.neuroshard("run", path, "--run-dir", runs.run_dir)

    assert result.code == ExitCode.OK
    assert f"plan: reused: {path}: ConfigMap mine, plan.json" in result.err


def test_a_plan_without_a_price_may_be_given(runs: Runs) -> None:
    """One of rows and copies on two nodes of one device trains; there is no prediction to report."""
    tables = runs_tables()
    request = builders.request(*tables, topology=builders.topology(2, num_nodes=2))
    plan = given_plan(request, by_rows(tables[0], request.topology), everywhere(tables[1], request.topology))
    (runs.folder / "mixed.json").write_text(plan.to_json(), encoding="utf-8")

    result = runs.run("--plan", "mixed.json", "--json")

    assert result.code == ExitCode.OK, result.err
    assert "2 tables on 2 devices by torchrec, without a price" in result.err
    found = json.loads(result.out)
    assert (found["predicted"], found["errorPercent"]) == (None, None)
    assert found["measured"]["totalMicroseconds"] > 0
    assert runs.starts == ["2 "]


@pytest.mark.parametrize(
    ("options", "spec", "problem"),
    [
        (["--plan", "nowhere.json"], {}, "nowhere.json: does not exist"),
        (["--plan", "job.yaml"], {}, "job.yaml: is a DLRMTrainingJob, expected 'plan/v3'"),
        (
            ["--plan", "four.json"],
            {},
            "four.json: is for 4 devices, the job has 2 (spec.trainer)\nhint: make a plan for 2",
        ),
        (
            ["--plan", "mine.json"],
            {"model": {"embeddingTables": [{"name": "user", "numEmbeddings": 10, "embeddingDim": 16}]}},
            "mine.json: is for other tables than the job's: 'item', 'user' differ",
        ),
        ([], {"planRef": {"name": "mine"}}, "spec.planRef: names the ConfigMap 'mine', which is not in this file"),
    ],
    ids=["missing", "no-plan", "other-world-size", "other-model", "no-config-map"],
)
def test_a_plan_that_does_not_fit_is_refused(
    runs: Runs, options: list[str], spec: dict[str, Any], problem: str
) -> None:
    """Before anything is started."""
    made_plan(runs.folder, num_devices=4).rename(runs.folder / "four.json")
    made_plan(runs.folder)

    result = runs.run(*options, **spec)

    assert result.code == ExitCode.INVALID_INPUT
    assert problem in result.err.rpartition("error: ")[2]
    assert not (runs.run_dir / "train").exists()


def test_a_plan_that_was_damaged_is_refused(runs: Runs) -> None:
    """Shards that overlap are found before a rank holds them."""
    data = json.loads(made_plan(runs.folder).read_text(encoding="utf-8"))
    data["tables"][0]["sharding_type"] = "column_wise"
    data["tables"][0]["shards"] = data["tables"][0]["shards"][:1] * 2
    (runs.folder / "mine.json").write_text(json.dumps(data), encoding="utf-8")

    result = runs.run("--plan", "mine.json")

    assert result.code == ExitCode.INVALID_INPUT
    assert "mine.json: tables[0].shards: shards 0 and 1 overlap" in result.err


def test_cost_models_may_be_given(runs: Runs) -> None:
    """Their folder replaces the profiler."""
    result = runs.run("--bundle", bundled_root() / "a100-80gb", profiler={})

    assert result.code == ExitCode.OK
    assert Plan.read(runs.run_dir / "plan.json").bundle.source == "simulated:NVIDIA-A100-SXM4-80GB"


def test_damaged_cost_models_are_refused(runs: Runs) -> None:
    """Exit code 4, as of every command."""
    damaged = runs.folder / "bundle"
    damaged.mkdir()
    for path in (bundled_root() / "h100-80gb").glob("*.*"):
        (damaged / path.name).write_bytes(path.read_bytes()[:-1] + b"x")

    assert runs.run("--bundle", damaged).code == ExitCode.UNUSABLE_BUNDLE
