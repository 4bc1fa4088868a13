import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.request import Constraints
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run
from neuroshard_costs.bundle import bundled_root
from support.builders import job_data, table_set, topology
from support.cli.searches import QUICK_WORK, quick

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan of a bundled workload, in which the table t20 is split."""
    path = tmp_path_factory.mktemp("planned") / "plan.json"
    assert run(["plan", "mlperf-dlrm-dcnv2", *quick(8), "--out", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def plan(plan_text: str, tmp_path: Path) -> Path:
    """Write the plan."""
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    return path


def test_a_plan_is_explained(neuroshard: Any, plan: Path) -> None:
    """What decides the step, what keeps it above the bound, and what could help."""
    result = neuroshard("explain", plan)

    assert (result.code, result.err) == (0, "")
    for words in ("the step's parts", "why it is above the lower bound", "What could help:", "simulated:"):
        assert words in result.out


def test_a_table_is_explained(neuroshard: Any, plan: Path) -> None:
    """Its shards, and what every other place would cost."""
    result = neuroshard("explain", plan, "t20")

    assert (result.code, result.err) == (0, "")
    assert "verdict" in result.out
    assert sum(line.startswith("whole on ") for line in result.out.splitlines()) == 8


def test_another_way_is_listed_once(neuroshard: Any, plan: Path) -> None:
    """A table in two shards that has one shard fewer is whole."""
    lines = neuroshard("explain", plan, "t0").out.splitlines()
    ways = [line for line in lines if line.startswith(("whole on ", "in "))]

    assert sum(line.startswith("in ") for line in ways) == 1
    assert len(ways) == len(set(ways))


def test_explanations_are_json_for_machines(neuroshard: Any, plan: Path) -> None:
    """The same numbers, unrounded."""
    of_plan, of_table = neuroshard("explain", plan, "--json"), neuroshard("explain", plan, "t20", "--json")

    total_ms = json.loads(plan.read_text())["predicted"]["total_ms"]
    assert json.loads(of_plan.out)["total_ms"] == json.loads(of_table.out)["plan_total_ms"] == total_ms
    assert json.loads(of_table.out)["name"] == "t20"


def test_an_unknown_table_is_a_sentence(neuroshard: Any, plan: Path) -> None:
    """With the names that come close."""
    result = neuroshard("explain", plan, "t200")

    assert (result.code, result.out) == (2, "")
    assert "did you mean" in result.err


def test_a_plan_is_explained_by_the_models_that_made_it(neuroshard: Any, plan: Path) -> None:
    """Other cost models would give other reasons."""
    raw = json.loads(plan.read_text())
    raw["bundle"]["weights_sha256"] = "0" * 64
    plan.write_text(json.dumps(raw))
    result = neuroshard("explain", plan)

    assert (result.code, result.out) == (2, "")
    assert "give the bundle of the plan" in result.err


@pytest.mark.parametrize(
    ("command", "file", "words"),
    [
        (
            ("explain",),
            "job.yaml",
            "is a DLRMTrainingJob, expected 'plan/v3'\nhint: use `neuroshard plan` or `neuroshard run`",
        ),
        (("report", "--out", "report.html"), "job.yaml", "hint: use `neuroshard plan` or `neuroshard run`"),
        (
            ("run",),
            "tables.json",
            "is a document 'table-set/v1', expected a DLRMTrainingJob\nhint: use `neuroshard plan`",
        ),
        (("plan", "--devices", 2, "--device-type", "h100-80gb"), "topology.json", "hint: give it by --devices"),
        (("explain",), "constraints.json", "expected 'plan/v3'\nhint: give it by --constraints"),
    ],
    ids=["explained job", "reported job", "run tables", "planned topology", "explained constraints"],
)
def test_a_file_of_another_kind_is_named_with_what_takes_it(
    neuroshard: Any, tmp_path: Path, command: tuple[str, ...], file: str, words: str
) -> None:
    """A person who gave the right file to the wrong command needs the command."""
    documents = {
        "job.yaml": json.dumps(job_data()),
        "tables.json": table_set().to_json(),
        "topology.json": topology().to_json(),
        "constraints.json": Constraints().to_json(),
    }
    (tmp_path / file).write_text(documents[file])
    result = neuroshard(command[0], tmp_path / file, *command[1:])

    assert result.code == ExitCode.INVALID_INPUT
    assert words in result.err


def test_cost_models_of_a_run_are_found_in_its_folder(neuroshard: Any, tmp_path: Path) -> None:
    """Next to its plan and to those that it keeps; elsewhere the hint names the option, which takes the profile."""
    folder = tmp_path / "run"
    shutil.copytree(bundled_root() / "h100-80gb", folder / "profile" / "bundle")
    own = ["--devices", ROOT / "examples/topologies/generic-8x24gb.yaml"]
    own += ["--set", f"spec.experimental.planner.workBudget={QUICK_WORK}"]
    plan = folder / "plan.json"
    planned = neuroshard("plan", "criteo-kaggle", *own, "--bundle", folder / "profile" / "bundle", "--out", plan)
    elsewhere = shutil.copy(plan, tmp_path / "elsewhere.json")
    kept = folder / "kept" / "plan" / "plan.json"
    kept.parent.mkdir(parents=True)
    shutil.copy(plan, kept)
    shutil.copytree(folder / "profile", folder / "kept" / "profile")

    found, missing = neuroshard("explain", plan), neuroshard("explain", elsewhere)

    assert (planned.code, found.code, found.err) == (0, 0, "")
    assert missing.code == ExitCode.UNUSABLE_BUNDLE
    assert "hint: give their folder with --bundle" in missing.err
    assert neuroshard("explain", kept).out == found.out
    assert neuroshard("explain", elsewhere, "--bundle", folder / "profile").out == found.out
