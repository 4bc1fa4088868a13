"""``neuroshard run`` or one of its ranks killed in training, and the training that resumes."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.sharding.kinds import Family
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan
from support.trainer.rank_server import output

pytestmark = pytest.mark.processes

TESTS = Path(__file__).parents[1]
NEUROSHARD = (sys.executable, "-c", "from neuroshard_cli.main import main; main()")
KILLED_AT_STEP, EVERY_STEPS, NUM_STEPS = 27, 10, 40


def mixed_plans() -> tuple[GivenPlan, GivenPlan]:
    """Return two plans of rows, columns, and copies, in which every table has another placement."""
    topology = builders.topology(4)
    user = builders.table("user", num_embeddings=60, embedding_dim=32)
    item = builders.table("item", num_embeddings=50, embedding_dim=32)
    country = builders.table("country", num_embeddings=7, embedding_dim=16)
    request = PlanRequest(tables=builders.table_set(user, item, country), topology=topology, optimizer=Optimizer.SGD)
    first = by_columns(user, (3, 12), (0, 20)), by_rows(item, topology), everywhere(country, topology)
    second = by_rows(user, topology), everywhere(item, topology), by_columns(country, (2, 4), (1, 12))
    return given_plan(request, *first), given_plan(request, *second)


def job_file(folder: Path, *options: object) -> Path:
    """Write the job of the plans' tables, and return its file; ``options`` are for the forked trainer."""
    tables = [
        {"name": each.name, "numEmbeddings": each.num_embeddings, "embeddingDim": each.embedding_dim}
        for each in mixed_plans()[0].request.tables.tables
    ]
    layers = {"numDenseFeatures": 3, "denseArchLayerSizes": [8], "overArchLayerSizes": [8]}
    path = folder / "job.yaml"
    data = builders.job_data(
        model={"embeddingTables": tables, "batchSizePerDevice": 4, "embeddingOptimizer": "SGD", **layers},
        trainer={
            "command": [sys.executable, str(TESTS / "support" / "trainer" / "forked_trainer.py")],
            "args": [str(path), str(folder), *map(str, options)],
            "numProcPerNode": 4,
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
        data={"format": "Synthetic", "numSamples": 100_000, "validationPercent": 1},
        experimental={"data": {"readerProcesses": 0}},
        training={"logEverySteps": 10, "evalEverySteps": 100_000, "maxSteps": NUM_STEPS},
        checkpoint={"everySteps": EVERY_STEPS},
    )
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.torchrec
@pytest.mark.slow
def test_a_run_that_is_killed_resumes_under_another_mixed_plan(
    tmp_path: Path, neuroshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL leaves four ranks that wait for each other; the next run ends them and trains on from the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    files = [tmp_path / f"plan-{index}.json" for index in range(2)]
    for file, plan in zip(files, mixed_plans(), strict=True):
        file.write_text(plan.to_json(), encoding="utf-8")
    run_dir = tmp_path / "run"
    path = job_file(tmp_path, KILLED_AT_STEP)

    killed = subprocess.run(
        [*NEUROSHARD, "run", str(path), "--run-dir", str(run_dir), "--plan", str(files[0])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = neuroshard("run", job_file(tmp_path), "--run-dir", run_dir, "--plan", files[1], "--json")

    assert resumed.code == ExitCode.OK, resumed.err
    assert f"processes that an earlier run had left in {run_dir}" in resumed.err
    last = KILLED_AT_STEP // EVERY_STEPS * EVERY_STEPS
    assert f"going on from step {last} of" in output(tmp_path, 0)
    assert TrainingProgress.read(run_dir / "train" / "progress.json").step == NUM_STEPS
    report = StepReport.read(run_dir / "train" / "step-report.json")
    assert {each.family for times in report.ranks for each in times.collectives} == {
        None, Family.COLUMNS, Family.ROWS, Family.REPLICATED,
    }  # fmt: skip


@pytest.mark.torchrec
@pytest.mark.slow
def test_a_rank_that_is_killed_is_restarted_with_its_peers_and_resumes(
    tmp_path: Path, neuroshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command trains to the end: the failure policy restarts all ranks, which go on from the checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    plan, run_dir = tmp_path / "plan.json", tmp_path / "run"
    plan.write_text(mixed_plans()[0].to_json(), encoding="utf-8")

    result = neuroshard(
        "run", job_file(tmp_path, KILLED_AT_STEP, tmp_path / "killed"), "--run-dir", run_dir, "--plan", plan, "--json"
    )

    assert result.code == ExitCode.OK, result.err
    assert "restarting all workers (restart 1 of 3, failure rule: default)" in result.err
    assert f"going on from step {KILLED_AT_STEP // EVERY_STEPS * EVERY_STEPS} of" in output(tmp_path, 0)
    assert TrainingProgress.read(run_dir / "train" / "progress.json").step == NUM_STEPS
