"""What lookahead of embedding servers does to the accuracy on MovieLens-100K, and to the time of a step.

    python -m benchmarks.server_lookahead DATA

DATA is the folder ml-100k of the package recbole. One trainer and one server, each with a core, train the model of
examples/02-movielens.yaml by the trainer's own loop, with and without lookahead in turns, under each seed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch.distributed as dist
import yaml
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import ServedTables, Shard, TablePlacement
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.request import Algorithm, Pipeline, PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.ranks.process import Launched, start_process
from neuroshard_trainer.run import RunPaths, set_up

from benchmarks.results_file import cpu_model, hardware_slug, write_result

EXAMPLE = Path(__file__).parents[1] / "examples" / "02-movielens.yaml"
FAR = ("user_id", "item_id", "zip_code")
"""Tables on the server: those that say most, and change most in a step."""
SEEDS = range(5)
BATCH_SIZE = 1024
EPOCHS = 3
WAYS: Mapping[str, int | None] = {"exact": None, "lookahead": 1}
FOUND_FILE = "found.json"


def main() -> None:
    """Train, and write the result; or, given a folder, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder ml-100k of the package recbole")
    parser.add_argument("--rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options.rank, options.data)
        sys.stdout.flush()
        os._exit(0)  # as the trainer ends
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", "2"]
        command = [*launcher, "-m", "benchmarks.server_lookahead", str(options.data.resolve()), "--rank", scratch]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - ours
        found = json.loads(Path(scratch, FOUND_FILE).read_text())
    lines = lines_of(found, load)
    print(write_result("server-lookahead", lines, hardware=hardware_slug(), packages=("torch", "torchrec")))


def job_of(data: Path, seed: int) -> DLRMTrainingJob:
    """Return the example's job for one trainer, which evaluates at its end alone."""
    raw: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec = raw["spec"]
    spec["model"] |= {"batchSizePerDevice": BATCH_SIZE, "embeddingOptimizer": "RowWiseAdagrad"}
    spec["data"] |= {"path": str(data)}
    spec["trainer"] = {"numProcPerNode": 1}
    spec["training"] |= {"epochs": EPOCHS, "evalEverySteps": 10**6, "seed": seed}
    spec["experimental"] = {"pipeline": "None", "watchDrift": False, "data": {"readerProcesses": 0}}
    return DLRMTrainingJob.from_data(raw)


def plan_of(job: DLRMTrainingJob, lookahead: int | None) -> GivenPlan:
    """Return whole tables, those of `FAR` on the server, all others on the trainer."""
    tables = job.spec.model.inline_tables(job.metadata.name)
    assert tables is not None, "the example has its tables"
    request = PlanRequest(
        tables=tables,
        topology=load_presets()["h100-80gb"].topology(num_nodes=1, devices_per_node=1),
        batch_size_per_device=BATCH_SIZE,
        optimizer=job.spec.model.embedding_optimizer.optimizer,
        pipeline=Pipeline.NONE,
        servers=ServerPool(count=1, memory_bytes=8 * 2**30, tables=FAR, lookahead=lookahead),
    )
    near, far = (
        tuple(_whole(table) for table in tables.tables if (table.name in FAR) is is_far) for is_far in (False, True)
    )
    return GivenPlan(algorithm=Algorithm.DIM_GREEDY, tables=near, servers=ServedTables(tables=far), request=request)


def _whole(table: Table) -> TablePlacement:
    shard = Shard(device=0, num_rows=table.num_embeddings, num_columns=table.embedding_dim)
    return TablePlacement(name=table.name, sharding_type=ShardingType.TABLE_WISE, shards=(shard,))


def rank(folder: Path, data: Path) -> None:
    """Train in each way under each seed; rank 0 writes what each training came to."""
    first = job_of(data, 0)
    process = start_process(first, plan_of(first, None), Launched.from_environment(), "cpu", nccl_log_folder=folder)
    found = []
    for seed in SEEDS:
        job = job_of(data, seed)
        for way, lookahead in WAYS.items():
            plan, run_dir = plan_of(job, lookahead), folder / f"{way}-{seed}"
            run_dir.mkdir(exist_ok=True)
            plan_file = folder / f"{way}.plan.json"
            if process.is_first:
                plan_file.write_text(plan.to_json())
            dist.barrier(process.group)
            loop = set_up(job, plan, RunPaths(plan_file=plan_file, run_dir=run_dir, data_dir=data.parent), process)
            loop.run()
            if process.is_first:
                found.append({"way": way, "seed": seed, **_of_run(run_dir)})
    if process.is_first:
        (folder / FOUND_FILE).write_text(json.dumps(found))
    dist.barrier(process.group)


def _of_run(run_dir: Path) -> dict[str, float]:
    """Return the last metrics of a training, and the times of its last steps."""
    progress, report = (
        TrainingProgress.read(run_dir / "progress.json"),
        StepReport.read(run_dir / "step-report.json"),
    )
    (times,) = report.ranks
    return {
        "steps": progress.step,
        "entropy": progress.metrics["normalized_entropy"],
        "auc": progress.metrics["auc"],
        "step_ms": times.step_ms,
        "waited_ms": times.server_ms or 0.0,
        "hidden_ms": times.server_hidden_ms or 0.0,
    }


def lines_of(found: Sequence[dict[str, Any]], load: float) -> list[str]:
    """Return the lines of the result."""
    by_way = {way: [each for each in found if each["way"] == way] for way in WAYS}
    entropies = {way: [each["entropy"] for each in runs] for way, runs in by_way.items()}
    changes = [late - own for own, late in zip(entropies["exact"], entropies["lookahead"], strict=True)]
    spread = stdev(entropies["exact"])
    verdict = "within" if abs(mean(changes)) <= spread else "beyond"
    rows = [
        f"| {way} | {mean(entropies[way]):.5f} ± {stdev(entropies[way]):.5f} "
        f"| {mean(each['auc'] for each in runs):.5f} ± {stdev(each['auc'] for each in runs):.5f} "
        f"| {median(each['step_ms'] for each in runs):.2f} | {median(each['waited_ms'] for each in runs):.2f} "
        f"| {median(each['hidden_ms'] for each in runs):.2f} |"
        for way, runs in by_way.items()
    ]
    return [
        "# Lookahead of embedding servers on MovieLens-100K",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f} to {os.getloadavg()[0]:.1f}.",
        "",
        f"The model of `examples/02-movielens.yaml` with {', '.join(FAR)} on one server, one trainer, {BATCH_SIZE:,}",
        f"samples a step, row-wise Adagrad, {EPOCHS} epochs of {found[0]['steps'] // EPOCHS} steps; the last step of",
        f"an epoch is exact. Metrics of held-out samples at the end, mean ± standard deviation of {len(SEEDS)} seeds;",
        "times of the last steps, medians of the seeds by the clock, which other work on the machine lengthens.",
        "",
        "| rows on the server | normalized entropy | AUC | step, ms | waits for the server | next to the step |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"Seed by seed lookahead changes the normalized entropy by {mean(changes):+.5f} ± {stdev(changes):.5f}, from",
        f"{min(changes):+.5f} to {max(changes):+.5f}: the mean is {verdict} the spread of the seeds ({spread:.5f}).",
        "Waits are those of the forward pass; an exact step also has the exchange of gradients in its backward pass.",
    ]


if __name__ == "__main__":
    main()
