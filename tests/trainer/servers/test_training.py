"""Trainings with embedding servers: the numbers of trainings without, and checkpoints that move between both."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run as neuroshard
from neuroshard_trainer.drift.placement import FeaturePlacement
from neuroshard_trainer.sharding.live_sharding import LiveSharding
from support import builders
from support.trainer.rank_server import RankServer, output
from support.trainer.served_plans import FAR, MODEL, OPTIMIZERS, SPEC, planned, planned_by_node, tensors
from support.trainer.trainer_builders import TABLES, job_data, write_job, write_plan

pytestmark = [pytest.mark.processes]

TRAINER = "neuroshard_trainer.__main__:main"
FAILURES = f"{Path(__file__).parents[1] / 'ranks' / 'failure_worker.py'}:main"
LOADER = f"{Path(__file__).with_name('loading_worker.py')}:main"
STEPS = 12
LAST = f"checkpoints/step-{STEPS:08d}"


def trained(
    folder: Path, ranks: RankServer, *, num_servers: int, optimizer: str, run_dir: str, **training: Any
) -> Path:
    """Train two ranks and servers, and return the run directory."""
    model, training = {**MODEL, "embeddingOptimizer": optimizer}, {**SPEC["training"], **training}
    job = write_job(folder, job_data(world_size=2, **{**SPEC, "model": model, "training": training}))
    plan = write_plan(folder, planned(num_servers, OPTIMIZERS[optimizer]))
    arguments = [str(job), "--plan", str(plan), "--run-dir", str(folder / run_dir)]
    ranks.succeed(TRAINER, arguments, folder=folder, count=2 + num_servers)
    return folder / run_dir


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_with_servers_is_that_without(tmp_path: Path, ranks: RankServer, optimizer: str) -> None:
    """Tables, dense part, and both optimizers after 12 steps, with tables cut by columns near and far."""
    runs = {
        count: trained(tmp_path, ranks, num_servers=count, optimizer=optimizer, run_dir=f"run-{count}", maxSteps=STEPS)
        for count in FAR
    }
    wanted = tensors(runs[0] / LAST)
    for count in (1, 2):
        found = tensors(runs[count] / LAST)
        assert found.keys() == wanted.keys()
        differences = {name: float((found[name] - wanted[name]).abs().max()) for name in wanted}
        assert max(differences.values()) < 1e-6, differences
        placement_of_inputs = FeaturePlacement.of(GivenPlan.read(tmp_path / "plan.json"))
        assert placement_of_inputs.columns["user"] == {}
        report = StepReport.read(runs[count] / "step-report.json")
        assert [times.rank for times in report.ranks if times.server_ms] == [0, 1]
        progress = TrainingProgress.read(runs[count] / "progress.json")
        assert progress.metrics == pytest.approx(TrainingProgress.read(runs[0] / "progress.json").metrics, abs=1e-5)


def test_a_step_of_several_nodes_with_servers_is_that_without(tmp_path: Path, ranks: RankServer) -> None:
    """Tables that are cut by node are exchanged among the trainers alone, of which each node has equally many."""
    optimizer, found = "RowWiseAdagrad", {}
    model, training = {**MODEL, "embeddingOptimizer": optimizer}, {**SPEC["training"], "maxSteps": STEPS}
    trainer = {"numNodes": 2, "numProcPerNode": 2}
    job = write_job(tmp_path, job_data(**{**SPEC, "model": model, "training": training, "trainer": trainer}))
    for count in FAR:
        plan, run_dir = write_plan(tmp_path, planned_by_node(count, OPTIMIZERS[optimizer])), tmp_path / f"run-{count}"
        arguments = [str(job), "--plan", str(plan), "--run-dir", str(run_dir)]
        ranks.succeed(TRAINER, arguments, folder=tmp_path, count=4 + count, per_node=2)
        found[count] = tensors(run_dir / LAST)
    for count in (1, 2):
        assert found[count].keys() == found[0].keys()
        differences = {name: float((found[count][name] - wanted).abs().max()) for name, wanted in found[0].items()}
        assert max(differences.values()) < 1e-6, differences


@pytest.mark.parametrize("saved_by", [0, 2])
def test_a_checkpoint_moves_between_numbers_of_servers(tmp_path: Path, ranks: RankServer, saved_by: int) -> None:
    """What two servers or none saved is loaded by another number of them bit by bit, all state included."""
    run_dir = trained(tmp_path, ranks, num_servers=saved_by, optimizer="RowWiseAdagrad", run_dir="run", maxSteps=STEPS)
    saved = tensors(run_dir / LAST)
    assert any(name.endswith("user.momentum1") for name in saved)
    for count in FAR.keys() - {saved_by}:
        plan = write_plan(tmp_path, planned(count, Optimizer.ROWWISE_ADAGRAD))
        out = tmp_path / f"loaded-{count}"
        ranks.succeed(LOADER, tmp_path / "job.yaml", plan, run_dir, out, folder=tmp_path, count=2 + count)
        loaded = tensors(out)
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], value) for name, value in saved.items())


def test_a_server_whose_memory_is_used_up_ends_all_with_a_sentence(tmp_path: Path, ranks: RankServer) -> None:
    """The system refuses what is beyond the limit of the server's process, and no rank waits for it."""
    tables = (builders.table("user", num_embeddings=4_000_000, embedding_dim=32), *TABLES[1:])
    pool = ServerPool(count=1, memory_bytes=builders.GIB, tables=("user",))
    small = planned(1, Optimizer.SGD, tables=tables, pool=pool)
    job = write_job(tmp_path, job_data(tables=tables, world_size=2, **{**SPEC, "model": MODEL}))
    arguments = [str(job), "--plan", str(write_plan(tmp_path, small)), "--run-dir", str(tmp_path / "run")]

    ended = ranks.run(TRAINER, arguments, folder=tmp_path, count=3)

    assert set(ended.codes) == {ExitCode.INVALID_INPUT}
    assert "error: rank 0: rank 2: embedding server 0 has used up its 1 GiB of memory" in output(tmp_path, 0)


def test_a_server_that_is_stopped_is_named(tmp_path: Path, ranks: RankServer) -> None:
    """It closes no connection, and answers nobody; the trainers do not wait for the timeout of collectives."""
    job = write_job(tmp_path, job_data(world_size=2, **{**SPEC, "model": MODEL}))
    plan = write_plan(tmp_path, planned(1, Optimizer.SGD))
    arguments = [str(job), "--plan", str(plan), "--run-dir", str(tmp_path / "run")]
    moment, failure = "neuroshard_trainer.training:TrainingLoop._loss", {"signal": signal.SIGSTOP}

    ended = ranks.run(
        FAILURES, arguments, 2, moment, 5, {**failure, "file": tmp_path / "lost"}, folder=tmp_path, count=3
    )

    said = output(tmp_path, 0) + output(tmp_path, 1)
    assert ExitCode.PEER_LOST in ended.codes[:2], said
    assert "rank 2, embedding server 0 on" in said


def test_neuroshard_run_starts_servers_after_the_trainers(tmp_path: Path) -> None:
    """One command trains a job with servers under a plan that has them."""
    servers = {"resources": {"limits": {"memory": "4Gi"}}, "tables": ["user"]}
    experimental = {**SPEC["experimental"], "embeddingServers": servers}
    spec = {**SPEC, "model": MODEL, "training": {"maxSteps": 4}, "experimental": experimental}
    job = job_data(world_size=2, **spec, trainer={"numProcPerNode": 2})
    made = planned(1, Optimizer.SGD)
    bare = GivenPlan(algorithm=made.algorithm, tables=made.tables, servers=made.servers, request=made.request)
    plan, run_dir = write_plan(tmp_path, bare), tmp_path / "run"
    arguments = ["run", write_job(tmp_path, job), "--plan", plan, "--run-dir", run_dir]

    assert neuroshard([str(each) for each in arguments]) == ExitCode.OK
    live = LiveSharding.read(run_dir / "train" / "live-sharding.json")
    assert {shard.device for shard in live.tables["user"]} == {2}
