"""Rows on servers that are looked up a step early: each is one step old, next to a reference that counts updates."""

import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training import LearningRateSchedule
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.sharding.learning_rate import learning_rate_factor
from support import builders
from support.trainer.rank_server import RankServer, output
from support.trainer.served_plans import MODEL, OPTIMIZERS, SPEC, planned, tensors
from support.trainer.trainer_builders import job_data, write_job, write_plan
from torch.nn.functional import embedding_bag

pytestmark = [pytest.mark.processes]

TRAINER = "neuroshard_trainer.__main__:main"
WORKER = f"{Path(__file__).with_name('lookahead_worker.py')}:main"
FAILURES = f"{Path(__file__).parents[1] / 'ranks' / 'failure_worker.py'}:main"
STEPS = 12
RATE, WARM_UP = 0.5, 8
TRAINING: Mapping[str, Any] = {
    "maxSteps": STEPS,
    "embeddingLearningRate": str(RATE),
    "learningRateSchedule": {"warmupSteps": WARM_UP},
}
Steps = Sequence[Mapping[Any, torch.Tensor]]


def plan_ahead(num_servers: int, optimizer: Optimizer = Optimizer.SGD) -> Plan:
    """Return a plan for two trainers and servers, whose rows are looked up a step early."""
    pool = ServerPool(count=num_servers, memory_bytes=4 * builders.GIB, tables=("user",), lookahead=1)
    return planned(num_servers, optimizer, pool=pool)


def start(folder: Path, ranks: RankServer, target: str, plan: Plan, *, run_dir: str, **spec: Any) -> Path:
    """Train under a plan by some worker, and return the run directory."""
    spec = {**SPEC, "model": MODEL, **spec, "training": {**SPEC["training"], **TRAINING, **spec.get("training", {})}}
    job = write_job(folder, job_data(world_size=2, **spec))
    files = [str(each) for each in (job, write_plan(folder, plan), folder / run_dir)]
    arguments = [[files[0], "--plan", files[1], "--run-dir", files[2]]] if target == TRAINER else files
    ranks.succeed(target, *arguments, folder=folder, count=2 + plan.num_server_processes)
    return folder / run_dir


CASES: Mapping[str, tuple[int, str, Mapping[str, Any], Collection[int]]] = {
    "one server, checkpoints": (1, "SGD", {"checkpoint": {"everySteps": 5}}, {0, 5, 10}),
    "two servers": (2, "SGD", {}, {0}),
    "two servers, epochs": (
        2,
        "RowWiseAdagrad",
        {"data": {"numSamples": 100, "validationPercent": 5}, "training": {"epochs": 3}},
        {0, 5, 11},
    ),
}
"""Servers, optimizer, settings, and the steps, from 0, whose rows lack no update."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_row_lacks_the_update_of_the_step_before(
    tmp_path: Path, ranks: RankServer, case: tuple[int, str, Mapping[str, Any], Collection[int]]
) -> None:
    """And no other; with SGD the gradients of a step are those of its samples, at its rate, on the newest rows."""
    num_servers, optimizer, spec, exact = case
    (tmp_path / "run").mkdir()
    own = {**spec, "model": {**MODEL, "embeddingOptimizer": optimizer}}
    start(tmp_path, ranks, WORKER, plan_ahead(num_servers, OPTIMIZERS[optimizer]), run_dir="run", **own)
    of_trainers, of_servers = (
        [torch.load(tmp_path / "run" / f"rows-{rank}.pt") for rank in numbers]
        for numbers in (range(2), range(2, 2 + num_servers))
    )
    states = _whole(of_servers)
    assert len(states) == STEPS + 1

    for step in range(STEPS):
        rows = states[step] if step in exact else states[step - 1]
        for trainer in of_trainers:
            torch.testing.assert_close(trainer[step]["pooled"], _pooled(trainer[step], rows), rtol=0, atol=1e-6)
        if step not in exact:
            newest = [_pooled(trainer[step], states[step]) for trainer in of_trainers]
            differences = [
                float((trainer[step]["pooled"] - each).abs().max())
                for trainer, each in zip(of_trainers, newest, strict=True)
            ]
            assert min(differences) > 1e-5, "the update that is lacking can be seen"
        if optimizer == "SGD":
            wanted = _updated(states[step], [trainer[step] for trainer in of_trainers], step, 2 + num_servers)
            torch.testing.assert_close(states[step + 1], wanted, rtol=0, atol=1e-6)


def _whole(of_servers: Sequence[Steps]) -> Sequence[torch.Tensor]:
    """Return the table by the number of updates, from the columns of each server."""
    found = []
    for shards in zip(*of_servers, strict=True):
        columns = {first: part for own in shards for first, part in own.items()}
        found.append(torch.cat([columns[first] for first in sorted(columns)], dim=1))
    return found


def _offsets(step: Mapping[Any, torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), step["lengths"].long().cumsum(0)])


def _pooled(step: Mapping[Any, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Return the pooled embeddings of a trainer's step by some rows."""
    return embedding_bag(step["ids"], rows, _offsets(step), mode="sum", include_last_offset=True)


def _updated(rows: torch.Tensor, trainers: Steps, step: int, num_ranks: int) -> torch.Tensor:
    """Return rows after a step of SGD with the gradients of each trainer; TorchRec's are means over all ranks."""
    rate = RATE * learning_rate_factor(LearningRateSchedule(warmup_steps=WARM_UP), step + 1)
    found = rows.clone()
    for each in trainers:
        of_ids = torch.repeat_interleave(each["gradient"], each["lengths"].long(), dim=0)
        found.index_add_(0, each["ids"], of_ids, alpha=-rate / num_ranks)
    return found


def test_a_resumed_training_is_one_that_never_ended(tmp_path: Path, ranks: RankServer) -> None:
    """To the bit: nothing that is looked up ahead is in a checkpoint, nor used after it."""
    often = {"checkpoint": {"everySteps": 5}}
    whole = start(tmp_path, ranks, TRAINER, plan_ahead(1), run_dir="whole", **often)
    parts = ({"training": {"maxSteps": 5}}, often)
    (resumed, _) = [start(tmp_path, ranks, TRAINER, plan_ahead(1), run_dir="parts", **spec) for spec in parts]

    wanted, found = (tensors(run_dir / f"checkpoints/step-{STEPS:08d}") for run_dir in (whole, resumed))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert "going on from step 5" in output(tmp_path, 0)
    report = StepReport.read(whole / "step-report.json")
    assert [times.rank for times in report.ranks if times.server_hidden_ms is not None] == [0, 1]


def test_an_evaluation_lacks_no_update(tmp_path: Path, ranks: RankServer) -> None:
    """In mid-training it has the metrics of a training that ends there."""
    longer, ended = (
        TrainingProgress.read(
            start(tmp_path, ranks, TRAINER, plan_ahead(1), run_dir=name, training=training) / "progress.json"
        )
        for name, training in (("longer", {"evalEverySteps": 4}), ("ended", {"maxSteps": 4}))
    )

    assert longer.evaluations[0].step == ended.evaluations[0].step == 4
    assert longer.evaluations[0].metrics == ended.evaluations[0].metrics


def test_a_server_that_is_lost_while_it_looks_up_ahead_is_named(tmp_path: Path, ranks: RankServer) -> None:
    """Trainers end with 7, whose threads wait for it; one of them may lose the other first."""
    spec = {**SPEC, "model": MODEL, "training": {**SPEC["training"], **TRAINING}}
    job = write_job(tmp_path, job_data(world_size=2, **spec))
    arguments = [str(job), "--plan", str(write_plan(tmp_path, plan_ahead(1))), "--run-dir", str(tmp_path / "run")]
    moment = "neuroshard_trainer.servers.lookahead:Lookahead._look_up"
    failure = {"signal": signal.SIGKILL, "file": tmp_path / "lost"}

    ended = ranks.run(FAILURES, arguments, 2, moment, 5, failure, folder=tmp_path, count=3, after_failure_s=60.0)

    assert ended.codes == [ExitCode.PEER_LOST, ExitCode.PEER_LOST, -signal.SIGKILL]
    assert "rank 2, embedding server 0 on" in output(tmp_path, 0) + output(tmp_path, 1)
