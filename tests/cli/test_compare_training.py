"""Specification of ``neuroshard compare-training``."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

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
DEVICES = ("--devices", "2", "--device-type", "h100-80gb", "--batch-size", "32", "--optimizer", "sgd")


@pytest.fixture
def folder(tmp_path: Path, neuroshard: Any) -> Path:
    """Write a job and two plans of it: the search's, and a baseline's."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "tables.csv").write_text(
        "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\nitem,500,16,3.5\ncity,50,8,1\n"
    )
    for name, algorithm in (("ours", "neuroshard"), ("greedy", "random")):
        plan = tmp_path / f"{name}.json"
        options = ("--algorithm", algorithm, "--out", plan)
        assert neuroshard("plan", tmp_path / "tables.csv", *DEVICES, *options).code == 0
    return tmp_path


@pytest.mark.slow
@pytest.mark.torchrec
@pytest.mark.timeout(600)
def test_a_job_trains_under_two_plans_in_turns(neuroshard: Any, folder: Path) -> None:
    """On real processes: one table, one plot, and losses that differ by rounding alone."""
    out, plot = folder / "found.json", folder / "rounds.svg"
    result = neuroshard(
        *("compare-training", folder / "job.yaml", folder / "ours.json", folder / "greedy.json"),
        *("--rounds", 2, "--steps", 2, "--out", out, "--plot", plot),
    )

    assert result.code == 0, result.err
    lines = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert "2 rounds of 2 steps under each plan in turns, on 2 x cpu; intervals of 95%" in result.out
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ours.json",), "PLAN: found 1; give two plans or more"),
        (("ours.json", "other.json"), "other.json: is for 4 devices, the job has 2"),
        (("ours.json", "tables.csv"), "tables.csv"),
    ],
    ids=["one", "devices", "no-plan"],
)
def test_plans_that_are_not_for_the_job_are_named(
    neuroshard: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    """Before anything is started."""
    monkeypatch.chdir(folder)
    wider = ("--devices", "4", "--device-type", "h100-80gb", "--out", "other.json")
    assert neuroshard("plan", "tables.csv", *wider).code == 0
    result = neuroshard("compare-training", "job.yaml", *arguments)

    assert (result.code, result.out) == (2, "")
    assert message in result.err
