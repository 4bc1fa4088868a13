"""Several processes under torchrun: the same numbers as one, orderly stops, and lost processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import IdRule, Optimizer
from neuroshard_api.documents.topology import Rack
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.job.sizes import sized
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.__main__ import main
from neuroshard_trainer.export import export
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.predict import Predictor
from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointManifest
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, grid, on_node
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import ALONE, TABLES, Cuts, job_data, plan_of, write_job, write_plan

from benchmarks.process_family import kill_family

pytestmark = [pytest.mark.processes]

ROOT = Path(__file__).parents[2]
FAILURE_WORKER = Path(__file__).parent / "ranks" / "failure_worker.py"
TRAINER = "neuroshard_trainer.__main__:main"
EXAMPLE = ROOT / "examples" / "torchrec"
TWO_PROCESSES: Mapping[str, Cuts] = {
    "table-wise": {},
    "column-wise": {"user": ((0, 16), (1, 16)), "item": ((1, 16), (0, 16))},
    "uneven": {"user": ((1, 28), (0, 4)), "country": ((0, 12), (1, 4))},
    "repeated-rank": {"user": ((1, 12), (0, 8), (1, 12)), "item": ((0, 12), (0, 20))},
}
NUM_SAMPLES = 240
RECORDED_WORKER = f"{Path(__file__).with_name('recorded_worker.py')}:main"
RECORDED = (builders.table("user", num_embeddings=NUM_SAMPLES, embedding_dim=16, pooling_factor=1.0), *TABLES[1:])
"""Of which the first has a row for each sample."""
FOUR_PROCESSES: Mapping[str, Cuts] = {
    "table-wise": {},
    "column-wise": {"user": ((0, 8), (1, 8), (2, 8), (3, 8)), "item": ((3, 16), (2, 16))},
    "uneven and idle": {"user": ((3, 20), (1, 12)), "item": ((1, 32),), "country": ((1, 16),)},
    "repeated-rank": {"user": ((2, 4), (0, 8), (2, 20)), "country": ((3, 4), (3, 12))},
}

LAUNCH = """
import sys
from neuroshard_trainer.launch import main
from torch.distributed.elastic.multiprocessing.api import PContext

PContext.close.__defaults__ = (None, 2)
sys.exit(main(sys.argv[1:]))
"""
"""The launcher, which gives processes 2 s to end behind the first failure; torchrun gives them 30 s."""


@contextmanager
def processes(count: int, *arguments: str | Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Start processes that write to one pipe; none of them outlives the block."""
    command = [sys.executable, "-c", LAUNCH, "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", **variables}
    started = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        yield started
    finally:
        kill_family(started)
        assert started.stdout is not None
        started.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "cuts"), [(2, TWO_PROCESSES), (4, FOUR_PROCESSES)], ids=["2", "4"])
def test_every_plan_computes_what_the_unsharded_model_does(
    tmp_path: Path, ranks: RankServer, count: int, cuts: Mapping[str, Cuts]
) -> None:
    """Logits before and after one update of all weights, with both architectures."""
    files = [write_plan(tmp_path, plan_of(cut, world_size=count), f"{name}.json") for name, cut in cuts.items()]
    worker = Path(__file__).with_name("parity_worker.py")

    ranks.succeed(f"{worker}:main", *files, folder=tmp_path, count=count)


@pytest.mark.slow
def test_the_guides_script_trains_under_a_plan(tmp_path: Path, ranks: RankServer) -> None:
    """The example in docs/guides/bring-your-own-trainer.md runs as it is there, and reports its steps."""
    request = builders.request(num_devices=2).model_copy(update={"tables": read_table_set(EXAMPLE / "tables.csv")})
    plan = search(request, bundle=ExactCosts(request.topology.device))
    file = write_plan(tmp_path, plan)

    target, script = "support.trainer.rank_server:run_script", EXAMPLE / "train_under_plan.py"
    printed = ranks.succeed(target, script, file, folder=tmp_path, count=2)

    losses = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("step ")]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert StepReport.read(tmp_path / "step-report.json").num_steps == 3


def test_the_guides_loader_without_neuroshard_gives_the_same_plan(tmp_path: Path) -> None:
    """The few lines of docs/reference/torchrec-export.md read what this package writes."""
    exported = TorchRecPlan.of(plan_of(TWO_PROCESSES["repeated-rank"], world_size=2))
    file = tmp_path / "sharding.json"
    file.write_text(exported.to_json())
    page = (ROOT / "docs" / "reference" / "torchrec-export.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page's own lines

    assert names["read_sharding_plan"](file) == load_sharding_plan(TorchRecPlan.read(file))


SPEC: Mapping[str, Any] = {
    "data": {"numSamples": 100_000, "validationPercent": 1},
    "model": {"embeddingOptimizer": "SGD"},
    "training": {"logEverySteps": 10, "evalEverySteps": 100_000, "denseOptimizer": "Adam"},
}


def options(
    folder: Path,
    *,
    cuts: Cuts,
    world_size: int,
    run_dir: str,
    pipeline: str = "SparseDist",
    **training: Any,
) -> list[str]:
    """Write job and plan, and return the trainer's arguments; a step is 16 samples of all ranks together."""
    model = {**SPEC["model"], "batchSizePerDevice": 16 // world_size}
    spec = {**SPEC, "model": model, "training": {**SPEC["training"], **training}}
    spec["experimental"] = {"pipeline": pipeline}
    job = write_job(folder, job_data(world_size=world_size, **spec))
    plan = write_plan(folder, plan_of(cuts, world_size=world_size))
    return [str(job), "--plan", str(plan), "--run-dir", str(folder / run_dir)]


def lines_until(started: "subprocess.Popen[str]", pattern: str) -> Sequence[str]:
    """Read lines up to one that matches."""
    assert started.stdout is not None
    seen = []
    for line in started.stdout:
        seen.append(line)
        if re.search(pattern, line):
            return seen
    raise AssertionError("the processes ended before:\n" + "".join(seen))


def run_alone(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> None:
    """Train in this process, as the only rank."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    try:
        assert main(arguments) == ExitCode.OK
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_pipelined_run_of_two_ranks_ends_as_a_plain_one(tmp_path: Path, ranks: RankServer) -> None:
    """All weights and both optimizers to the last bit, with a cut table and evaluations in between."""
    saved = {}
    for pipeline in ("None", "SparseDist"):
        cuts = TWO_PROCESSES["uneven"]
        training: dict[str, Any] = {"maxSteps": 25, "evalEverySteps": 10}
        arguments = options(tmp_path, cuts=cuts, world_size=2, run_dir=pipeline, pipeline=pipeline, **training)
        ranks.succeed(TRAINER, arguments, folder=tmp_path, count=2)
        manifest = CheckpointManifest.read(tmp_path / pipeline / "checkpoints" / "step-00000025" / "checkpoint.json")
        saved[pipeline] = {name: digest for name, digest in manifest.files.items() if name != ".metadata"}
        report = StepReport.read(tmp_path / pipeline / "step-report.json")
        assert all(times.forward_communication_ms > 0 < times.backward_compute_ms for times in report.ranks)

    assert saved["SparseDist"] == saved["None"]


@pytest.mark.slow
def test_a_run_survives_sigterm_and_changes_of_plan_and_world_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one rank to two under a cut plan, stopped, and back to one: the numbers of a run that was never stopped."""
    long: dict[str, Any] = {"epochs": 100}  # ranks train when they are stopped, however late that is
    run_alone(monkeypatch, options(tmp_path, cuts={}, world_size=1, run_dir="run", maxSteps=7, **long))
    with monkeypatch.context() as clean:
        for name in ALONE:
            clean.delenv(name)
        arguments = options(tmp_path, cuts=TWO_PROCESSES["repeated-rank"], world_size=2, run_dir="run", **long)
        ready = tmp_path / "ready"
        with processes(2, "-m", "neuroshard_trainer", *arguments, NEUROSHARD_READY_FILE=str(ready)) as started:
            began = lines_until(started, "step 20 of")
            assert ready.exists()
            started.send_signal(signal.SIGTERM)
            printed, _ = started.communicate()

    assert started.returncode == ExitCode.STOPPED, printed
    assert any("going on from step 7" in line for line in began)
    stopped = max(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert f"step {stopped} is saved" in printed
    report = StepReport.read(tmp_path / "run" / "step-report.json")
    assert [times.rank for times in report.ranks] == [0, 1]
    assert all(times.forward_communication_ms > 0 < times.backward_communication_ms for times in report.ranks)
    for run_dir in ("run", "whole"):
        run_alone(monkeypatch, options(tmp_path, cuts={}, world_size=1, run_dir=run_dir, maxSteps=stopped + 10, **long))
    ended, whole = (TrainingProgress.read(tmp_path / name / "progress.json") for name in ("run", "whole"))
    assert ended.step == whole.step == stopped + 10
    assert ended.metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=2e-3)
    assert ended.metrics["normalized_entropy"] == pytest.approx(whole.metrics["normalized_entropy"], abs=1e-3)


@pytest.mark.slow
def test_a_training_continues_on_other_numbers_of_ranks(tmp_path: Path, ranks: RankServer) -> None:
    """On 4, 2, and 4 ranks with one global batch: the losses of a run on one, and each sample of the epoch once."""
    data, recorded = recorded_samples(tmp_path)

    def losses(run_dir: str, world_size: int, steps: int) -> list[str]:
        training = {**SPEC["training"], "maxSteps": steps, "logEverySteps": 1}
        sizes = {**SPEC["model"], "batchSizePerDevice": 16 // world_size, "numDenseFeatures": 0}
        job = job_data(tables=RECORDED, world_size=world_size, model=sizes, data=data, training=training)
        plan = write_plan(
            tmp_path, plan_of({"item": ((0, 16), (world_size - 1, 16))}, tables=RECORDED, world_size=world_size)
        )
        arguments = [str(write_job(tmp_path, job)), "--plan", str(plan), "--run-dir", str(tmp_path / run_dir)]
        folder = recorded if run_dir == "run" else tmp_path
        printed = ranks.succeed(RECORDED_WORKER, folder, arguments, folder=tmp_path, count=world_size)
        return re.findall(r"of \d+: loss ([0-9.]+)", printed)

    sizes = ((4, 6), (2, 11), (4, 15))
    continued = [loss for world_size, steps in sizes for loss in losses("run", world_size, steps)]

    assert continued == losses("whole", 1, 15)
    assert len(continued) == 15
    assert ids_in(recorded) == list(range(NUM_SAMPLES))


@pytest.mark.slow
def test_an_elastic_job_trains_each_sample_once_over_two_nodes_one_and_two(tmp_path: Path, ranks: RankServer) -> None:
    """The jobs that the operator hands to the workers of each size: steps go on, and so does the order of samples."""
    data, recorded = recorded_samples(tmp_path)
    whole = job_data(
        tables=RECORDED,
        model={"batchSizePerDevice": 8, "numDenseFeatures": 0},
        trainer={"numNodes": 2, "numProcPerNode": 1},
        data=data,
        training={**SPEC["training"], "logEverySteps": 1},
        experimental={"elastic": {"minNodes": 1}},
    )
    printed = []
    for nodes, steps in ((2, 6), (1, 11), (2, 15)):
        job = sized(DLRMTrainingJob.from_data(whole), nodes).model_dump(mode="json", by_alias=True, exclude_none=True)
        job["spec"]["training"]["maxSteps"] = steps
        cuts: Cuts = {"item": ((0, 16), (nodes - 1, 16))}
        plan = write_plan(
            tmp_path,
            plan_of(cuts, tables=RECORDED, world_size=nodes, topology=builders.topology(nodes, num_nodes=nodes)),
        )
        arguments = [str(write_job(tmp_path, job)), "--plan", str(plan), "--run-dir", str(tmp_path / "run")]
        printed += ranks.succeed(
            RECORDED_WORKER, recorded, arguments, folder=tmp_path, count=nodes, per_node=1
        ).splitlines()

    assert [step for line in printed for step in re.findall(r"step (\d+) of \d+: loss", line)] == [
        str(step) for step in range(1, 16)
    ]
    assert ids_in(recorded) == list(range(NUM_SAMPLES))


def recorded_samples(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the data of a job whose samples are known by their ids, and a folder for those that a run records."""
    arrays: dict[str, Any] = {"label": np.random.default_rng(0).integers(0, 2, NUM_SAMPLES)}
    for table in RECORDED:
        arrays[f"{table.name}.lengths"] = np.ones(NUM_SAMPLES, dtype=np.int32)
        arrays[f"{table.name}.values"] = np.arange(NUM_SAMPLES) % table.num_embeddings
    np.savez(folder / "samples.npz", **arrays)
    recorded = folder / "recorded"
    recorded.mkdir()
    return {
        "format": "NPZ",
        "path": str(folder / "samples.npz"),
        "numSamples": None,
        "validationPercent": 0,
    }, recorded


def ids_in(folder: Path) -> list[int]:
    """Return the ids of all samples that ranks recorded, in ascending order."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted(int(each) for _, *own in lines for each in own)


@pytest.mark.slow
def test_equal_jobs_with_equal_seeds_have_equal_losses(tmp_path: Path, ranks: RankServer) -> None:
    """The first ten losses agree to four digits on 1, 2, and 4 processes, by columns, rows, copies, and domains."""

    def losses(plan: GivenPlan, count: int, *, per_node: int | None = None, **training: Any) -> list[str]:
        sizes = {"embeddingOptimizer": "SGD", "batchSizePerDevice": 16 // count}
        steps = {"maxSteps": 10, "logEverySteps": 1, "seed": 5, "denseOptimizer": "SGD", **training}
        nodes = {"numNodes": count // (per_node or count), "numProcPerNode": per_node or count}
        job = write_job(tmp_path, job_data(model=sizes, training=steps, trainer=nodes))
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        arguments = [str(job), "--plan", str(write_plan(tmp_path, plan)), "--run-dir", str(folder)]
        printed = ranks.succeed(TRAINER, arguments, folder=tmp_path, count=count, per_node=per_node)
        return re.findall(r"of 10: loss ([0-9.]+)", printed)

    request = PlanRequest(tables=builders.table_set(*TABLES), topology=builders.topology(4), optimizer=Optimizer.SGD)
    user, item, country = TABLES
    mixed = given_plan(
        request,
        by_columns(user, (2, 12), (0, 20)),
        by_rows(item, request.topology),
        everywhere(country, request.topology),
    )
    domains = builders.topology(4, num_nodes=4, rack=Rack(num_nodes=2, link=request.topology.intra_node))
    on_domains = given_plan(
        request.model_copy(update={"topology": domains}),
        grid(user, domains, (1, 12), (0, 20)),
        on_node(item, 1, domains),
        by_columns(country, (3, 16)),
    )
    alone = losses(plan_of(), 1)

    assert len(alone) == 10
    assert losses(plan_of(world_size=2), 2) == alone
    assert losses(plan_of(TWO_PROCESSES["column-wise"], world_size=2), 2) == alone
    assert losses(mixed, 4) == alone
    assert losses(on_domains, 4, per_node=1) == alone
    assert losses(plan_of(), 1, seed=6) != alone


@pytest.mark.slow
def test_hashed_ids_keep_their_rows_under_another_plan_and_world_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: RankServer
) -> None:
    """Raw rows have the logits of a run that was not stopped: texts, hashed integers, and integers taken modulo."""
    rng = np.random.default_rng(0)
    rules = (IdRule.HASH, IdRule.MODULO, IdRule.HASH)
    tables = tuple(table.model_copy(update={"id_rule": rule}) for table, rule in zip(TABLES, rules, strict=True))
    rows: dict[str, Any] = {
        "user": [f"user-{number}" for number in rng.integers(500, size=400)],
        "item": rng.integers(-(2**62), 2**62, size=400).tolist(),
        "country": [rng.integers(2**40, size=number).tolist() for number in rng.integers(3, size=400)],
        **{f"dense_{number}": rng.random(400).tolist() for number in range(3)},
    }
    pq.write_table(pa.table({"label": rng.integers(2, size=400), **rows}), tmp_path / "log.parquet", row_group_size=64)

    def arguments(run_dir: str, cuts: Cuts, world_size: int, steps: int) -> list[str]:
        spec: dict[str, Any] = {
            "data": {"format": "Parquet", "path": "log.parquet", "numSamples": None},
            "model": {"embeddingOptimizer": "SGD", "batchSizePerDevice": 16 // world_size},
            "training": {"maxSteps": steps, "denseOptimizer": "Adam", "embeddingLearningRate": "0.5"},
        }
        job = write_job(tmp_path, job_data(tables=tables, world_size=world_size, **spec))
        plan = write_plan(tmp_path, plan_of(cuts, tables=tables, world_size=world_size))
        return [str(job), "--plan", str(plan), "--run-dir", str(tmp_path / run_dir)]

    def logits(run_dir: str) -> np.ndarray:
        plan = Plan.read(tmp_path / "plan.json")
        export(read_job(tmp_path / "job.yaml"), plan, tmp_path / run_dir, tmp_path / f"{run_dir}-export")
        return Predictor(tmp_path / f"{run_dir}-export").logits(rows)

    run_alone(monkeypatch, arguments("whole", {}, 1, 20))
    expected = logits("whole")
    run_alone(monkeypatch, arguments("resumed", {}, 1, 10))
    before = logits("resumed")
    cuts = TWO_PROCESSES["repeated-rank"]
    ranks.succeed(TRAINER, arguments("resumed", cuts, 2, 20), folder=tmp_path, count=2)

    assert abs(before - expected).max() > 1e-3  # rows that are mapped otherwise would show
    np.testing.assert_allclose(logits("resumed"), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_killed_run_in_groups_of_ranks_resumes_under_a_mixed_plan_without_groups(
    tmp_path: Path, ranks: RankServer
) -> None:
    """Rows, copies, and columns on two nodes: step and loss are those of a run in groups that was never killed."""
    group, topology = builders.topology(2), builders.topology(4, num_nodes=2)
    user, item, country = TABLES
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=topology, optimizer=Optimizer.SGD)
    first = given_plan(
        request, by_columns(user, (1, 12), (0, 20)), by_rows(item, group), everywhere(country, group)
    ).model_copy(update={"replication": Replication(num_groups=2, layout=GroupLayout.CONTIGUOUS)})
    second = given_plan(
        request, on_node(user, 1, topology), everywhere(item, topology), by_columns(country, (2, 4), (1, 12))
    )
    spec = {**SPEC, "training": {**SPEC["training"], "maxSteps": 40}, "checkpoint": {"everySteps": 10}}
    job = write_job(tmp_path, job_data(world_size=4, **spec))
    plans = [write_plan(tmp_path, plan, f"plan-{index}.json") for index, plan in enumerate((first, second))]

    def arguments(plan: Path, run_dir: str) -> list[str]:
        return [str(job), "--plan", str(plan), "--run-dir", str(tmp_path / run_dir)]

    nodes: dict[str, Any] = {"folder": tmp_path, "count": 4, "per_node": 2}
    failure = {"signal": signal.SIGKILL, "file": tmp_path / "lost"}
    moment = ("neuroshard_trainer.training:TrainingLoop._loss", 27)

    killed = ranks.run(
        f"{FAILURE_WORKER}:main", arguments(plans[0], "run"), 1, *moment, failure, after_failure_s=60, **nodes
    )
    assert list(killed.codes) == [ExitCode.PEER_LOST, -signal.SIGKILL, ExitCode.PEER_LOST, ExitCode.PEER_LOST]
    resumed = ranks.succeed(TRAINER, arguments(plans[1], "run"), **nodes)
    assert "going on from step 20" in resumed
    ranks.succeed(TRAINER, arguments(plans[0], "whole"), **nodes)

    ended, whole = (TrainingProgress.read(tmp_path / name / "progress.json") for name in ("run", "whole"))
    assert ended.step == whole.step == 40
    assert ended.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-5)
    assert ended.metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=2e-3)
    for times in StepReport.read(tmp_path / "whole" / "step-report.json").ranks:
        [average] = [each for each in times.collectives if each.kind is CollectiveKind.SYNC]
        assert 0 < average.backward_ms <= times.backward_communication_ms
    report = StepReport.read(tmp_path / "run" / "step-report.json")
    assert {each.family for times in report.ranks for each in times.collectives} == {
        None, Family.COLUMNS, Family.NODE_ROWS, Family.REPLICATED,
    }  # fmt: skip
