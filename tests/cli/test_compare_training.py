"""Specification of ``neuroshard compare-training``."""

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support import builders
from support.cli.searches import quick
from support.planner.placements import by_columns, given_plan
from support.trainer.trainer_builders import write_plan

JOB = """
apiVersion: training.neuroshard.dev/v1alpha1
kind: DLRMTrainingJob
metadata: {name: small}
spec:
  model:
    embeddingTables:
      - {name: user, numEmbeddings: 1000, embeddingDim: 16}
      - {name: item, numEmbeddings: 500, embeddingDim: 16, poolingFactor: '3.5'}
      - {name: city, numEmbeddings: 50, embeddingDim: 8}
    batchSizePerDevice: 32
    embeddingOptimizer: SGD
  trainer: {numProcPerNode: 2}
  data: {numSamples: 4096}
"""
DEVICES = (*quick(2), "--batch-size", "32", "--set", "spec.model.embeddingOptimizer=SGD")


TABLES = (
    builders.table("user", num_embeddings=1000, embedding_dim=16),
    builders.table("item", num_embeddings=500, embedding_dim=16, pooling_factor=3.5),
    builders.table("city", num_embeddings=50, embedding_dim=8),
)


def write_whole(folder: Path, name: str, *, num_devices: int = 2, num_nodes: int = 1) -> None:
    """Write a plan of whole tables, which no search made."""
    request = builders.request(*TABLES, topology=builders.topology(num_devices, num_nodes=num_nodes))
    whole = (by_columns(each, (index % num_devices, each.embedding_dim)) for index, each in enumerate(TABLES))
    write_plan(folder, given_plan(request, *whole), f"{name}.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a job and two plans of it."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "tables.csv").write_text(
        "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\nitem,500,16,3.5\ncity,50,8,1\n"
    )
    for name in ("ours", "greedy"):
        write_whole(tmp_path, name)
    return tmp_path


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.torchrec
def test_a_job_trains_under_two_plans_in_turns(neuroshard: Any, folder: Path) -> None:
    """On real processes: one table, one plot, and losses that differ by rounding alone."""
    out, plot = folder / "found.json", folder / "rounds.svg"
    for name, algorithm in (("ours", "NeuroShard"), ("greedy", "Random")):
        options = ("--set", f"spec.planner.algorithm={algorithm}", "--out", folder / f"{name}.json")
        assert neuroshard("plan", folder / "tables.csv", *DEVICES, *options).code == 0
    result = neuroshard(
        *("compare-training", folder / "job.yaml", folder / "ours.json", folder / "greedy.json"),
        *("--rounds", 2, "--steps", 2, "--out", out, "--out", plot),
    )

    assert result.code == 0, result.err
    lines = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert "2 rounds of 2 steps under each plan in turns, on 2 x cpu; intervals of 95 %" in result.out
    assert {"ours", "greedy"} <= set(lines)
    assert lines["memory:"].startswith("memory: predicted ")
    written = json.loads(out.read_text())
    assert written["memory"]["plan_bytes"].keys() == {"ours", "greedy"}
    assert "peak_memory_bytes" not in written  # torch's allocator counts on GPUs alone
    found = written["plans"]
    assert [len(each["step_ms"]) for each in found.values()] == [2, 2]
    assert found["greedy"]["largest_loss_difference"] < 1e-5
    drawn = ET.parse(plot).getroot()  # noqa: S314 - our own file
    lines_drawn = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(each.attrib["points"].split()) for each in lines_drawn] == [2, 2]


SCRIPTS = Path(__file__).parents[2] / "examples" / "torchrec"


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.torchrec
@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, which the command imports
def test_a_script_trains_under_two_plans_in_turns(
    neuroshard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands that the example has in its first lines: on as many processes as the plans have devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)
    script = SCRIPTS / "compare_plans.py"
    commands = script.read_text().replace("\\\n", " ").split('"""')[1].splitlines()
    *plans, compare = [shlex.split(line)[1:] for line in commands if line.startswith("    neuroshard ")]
    assert [command[0] for command in (*plans, compare)] == ["plan", "plan", "compare-training"]
    for command in plans:
        assert neuroshard(*command).code == 0
    result = neuroshard(*compare[:1], script, *compare[2:-3], "2", "--out", "rounds.svg", "--out", "found.json")

    assert result.code == 0, result.err
    written = json.loads((tmp_path / "found.json").read_text())
    assert list(written["plans"]) == ["greedy", "ours"]
    assert (written["world_size"], written["rounds"]) == (2, 2)
    assert written["plans"]["ours"]["largest_loss_difference"] < 1e-5
    assert len(written["plans"]["ours"]["embedding_ms"]) == 2
    assert written["memory"]["plan_bytes"].keys() == {"greedy", "ours"}
    assert "<polyline" in (tmp_path / "rounds.svg").read_text()


REFUSED = (
    (("none.py", "ours.json", "greedy.json"), "none.py: there is no such file\nhint: give a job or a script"),
    (("idle.py", "ours.json", "other.json"), "other.json: is for 4 devices, and ours.json for 2\nhint: give plans"),
    (("idle.py", "nodes.json", "nodes.json"), "nodes.json: is for 4 devices on nodes of 2; this command starts a"),
    (("idle.py", "ours.json", "tables.csv"), "tables.csv"),
    (("idle.py", "ours.json"), "PLAN: found 1\nhint: give two plans or more"),
    (("idle.py 'x", "ours.json", "greedy.json"), "idle.py 'x: No closing quotation\nhint: write a script and its"),
    (("none.py --rate 1", "ours.json", "greedy.json"), "none.py: there is no such file\nhint: give a job or a script"),
    (("job.yaml", "ours.json"), "PLAN: found 1\nhint: give two plans or more"),
    (("job.yaml", "ours.json", "other.json"), "other.json: is for 4 devices, the job has 2"),
    (("job.yaml", "ours.json", "tables.csv"), "tables.csv"),
)
"""Arguments of the command, and words of its error."""


def test_arguments_that_cannot_run_are_named(neuroshard: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names them before it starts anything."""
    monkeypatch.chdir(folder)
    (folder / "idle.py").write_text("")
    write_whole(folder, "other", num_devices=4)
    write_whole(folder, "nodes", num_devices=4, num_nodes=2)
    results = [(words, message, neuroshard("compare-training", *words)) for words, message in REFUSED]

    assert [
        (words, result)
        for words, message, result in results
        if (result.code, result.out) != (2, "") or message not in result.err
    ] == []


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.torchrec
@pytest.mark.parametrize(
    ("script", "code", "message"),
    [("", 2, "idle.py: ended without a comparison"), ("raise SystemExit(4)", 4, "the training ended with 4")],
    ids=["no-call", "failed"],
)
def test_a_script_without_a_result_is_an_error(
    neuroshard: Any, folder: Path, script: str, code: int, message: str
) -> None:
    """One that never asks for the plans, and one that fails: its exit code is the command's."""
    (folder / "idle.py").write_text(script)
    result = neuroshard("compare-training", folder / "idle.py", folder / "ours.json", folder / "greedy.json")

    assert (result.code, result.out) == (code, "")
    assert message in result.err
