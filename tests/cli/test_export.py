import hashlib
import json
from pathlib import Path
from typing import Any

from support.builders import step_report
from support.cli.searches import quick


def test_a_plan_becomes_a_sharding_plan(neuroshard: Any, tmp_path: Path) -> None:
    """Every table stands in it, with a rank for each of its shards."""
    plan, exported = tmp_path / "plan.json", tmp_path / "sharding_plan.json"
    neuroshard("plan", "criteo-kaggle", *quick(4), "--out", plan)
    to_stdout = neuroshard("export", plan, "--format", "torchrec")
    to_file = neuroshard("export", plan, "--module-path", "model.ebc", "-o", exported)

    assert to_stdout.code == to_file.code == 0
    (tables,) = json.loads(to_stdout.out)["modules"].values()
    assert list(json.loads(exported.read_text())["modules"]) == ["model.ebc"]
    assert list(tables) == [placed["name"] for placed in json.loads(plan.read_text())["tables"]]
    assert to_file.err == f"sharding plan written to {exported}\n"


def test_a_plan_in_types_that_torchrec_lacks_is_refused(neuroshard: Any, tmp_path: Path) -> None:
    """A registry of TorchRec's codecs cannot be made of it."""
    plan, given = tmp_path / "plan.json", ("--set", "spec.training.communication.policy=Fixed")
    types = "spec.experimental.communication.embeddings={forward: [FP16], backward: [TOP16]}"
    assert neuroshard("plan", "criteo-kaggle", *quick(4), *given, "--set", types, "--out", plan).code == 0

    refused = neuroshard("export", plan)

    assert refused.code == 2
    assert "in TOP16, for which TorchRec has no codec" in refused.err


def test_only_known_formats_are_written(neuroshard: Any, tmp_path: Path) -> None:
    """The choices are in the sentence."""
    result = neuroshard("export", tmp_path / "plan.json", "--format", "onnx")

    assert result.code == 2
    assert "torchrec" in result.err


def test_tables_of_several_modules_are_exported_by_module(neuroshard: Any, tmp_path: Path) -> None:
    """Where the tables name them; one path for all of them is refused."""
    tables, plan = tmp_path / "tables.json", tmp_path / "plan.json"
    members = [
        {"name": f"{path}/id", "num_embeddings": 1000, "embedding_dim": 16, "collection": path}
        for path in ("users", "items")
    ]
    tables.write_text(json.dumps({"schema_version": "table-set/v1", "tables": members}))
    neuroshard("plan", tables, *quick(4), "--out", plan)
    exported, refused = neuroshard("export", plan), neuroshard("export", plan, "--module-path", "model.ebc")

    assert {path: list(each) for path, each in json.loads(exported.out)["modules"].items()} == {
        "users": ["id"],
        "items": ["id"],
    }
    assert refused.code == 2
    assert "--module-path: the tables of" in refused.err
    assert "'users/id' names 'users'\nhint: leave it out" in refused.err


def test_the_step_of_a_plan_or_a_run_becomes_a_trace(neuroshard: Any, tmp_path: Path) -> None:
    """Of a run's folder, with what was measured under its plan."""
    plan, train, file = tmp_path / "plan.json", tmp_path / "train", tmp_path / "trace.json"
    neuroshard("plan", "criteo-kaggle", *quick(2), "--out", plan)
    train.mkdir()
    own = step_report(plan_sha256=hashlib.sha256(plan.read_bytes()).hexdigest())
    (train / "step-report.json").write_text(own.to_json())

    of_plan = neuroshard("export", plan, "--format", "perfetto")
    of_run = neuroshard("export", tmp_path, "--format", "perfetto", "--out", file)
    refused = neuroshard("export", plan, "--format", "perfetto", "--module-path", "tables")

    def processes(text: str) -> list[str]:
        events = json.loads(text)["traceEvents"]
        return [event["args"]["name"].partition(":")[0] for event in events if event["name"] == "process_name"]

    assert processes(of_plan.out) == ["predicted"]
    assert processes(file.read_text()) == ["predicted", "measured"]
    assert of_run.err == f"trace written to {file}\n"
    assert (refused.code, refused.out) == (2, "")
