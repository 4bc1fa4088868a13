"""What narrow types on the wire do to normalized entropy: pairs of trainings of equal weights and batches.

python -m benchmarks.narrow_types DATA [--seeds 5]

Two processes of this machine train MovieLens-100K, or synthetic samples with a planted signal, with exact exchange and
in each type; a pair has the seed of its weights and of the order of its samples. Evaluations are exact.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import yaml
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.plan import GivenPlan, Shard, TablePlacement
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.codecs import live_codecs
from neuroshard_trainer.data.training_data import open_training_data
from neuroshard_trainer.metrics import Evaluation
from neuroshard_trainer.model import TABLES_PATH
from neuroshard_trainer.optimizers import dense_optimizer
from neuroshard_trainer.process import Launched, Process, start_process
from neuroshard_trainer.run import sharded_job_model
from neuroshard_trainer.step_optimizer import StepOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.results_file import write_result

WORLD_SIZE = 2
EXAMPLE = Path(__file__).parents[1] / "examples" / "02-movielens.yaml"
EPOCHS = {"MovieLens-100K": 2, "planted signal": 1}
SYNTHETIC_SAMPLES = 100_000
EXACT = WireTypes()
KINDS = (WireType.FP16, WireType.INT8, WireType.MX4)
"""Types of both directions that a CPU has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One training."""

    data: str
    kind: str
    seed: int
    entropy: float
    """Normalized, of held-out samples."""
    auc: float


def job_of(data: str, seed: int) -> DLRMTrainingJob:
    """Return the example's job on some data."""
    raw: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec = raw["spec"]
    spec["training"] |= {"seed": seed, "epochs": EPOCHS[data], "pipeline": "None"}
    spec["data"]["readerProcesses"] = 0
    if data == "planted signal":
        spec["data"] = {"format": "Synthetic", "numSamples": SYNTHETIC_SAMPLES, "readerProcesses": 0}
    return DLRMTrainingJob.from_data(raw)


def plan_of(job: DLRMTrainingJob, types: WireTypes) -> GivenPlan:
    """Return whole tables on the processes in turn, exchanged in these types."""
    tables = job.spec.model.inline_tables(job.metadata.name)
    assert tables is not None
    preset = load_presets()["h100-80gb"]
    request = PlanRequest(
        tables=tables,
        topology=preset.topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=job.spec.model.batch_size_per_device,
        optimizer=job.spec.model.embedding_optimizer.optimizer,
        wire=None if types.is_exact else types,
    )
    placements = tuple(
        TablePlacement(
            name=table.name,
            sharding_type=ShardingType.TABLE_WISE,
            shards=(Shard(device=index % WORLD_SIZE, num_rows=table.num_embeddings, num_columns=table.embedding_dim),),
        )
        for index, table in enumerate(tables.tables)
    )
    return GivenPlan(algorithm=Algorithm.DIM_GREEDY, tables=placements, request=request)


def trained(job: DLRMTrainingJob, types: WireTypes, process: Process, data_dir: Path) -> Mapping[str, float]:
    """Train a job once, and return the metrics of its held-out samples. All ranks must call this."""
    plan = plan_of(job, types)
    tables = plan.request.tables
    data = open_training_data(job, tables, process, root=data_dir, spare=data_dir)
    model = sharded_job_model(job, plan, process)
    codecs = live_codecs(model)
    assert (codecs is None) == types.is_exact
    assert codecs is None or codecs.types == types
    of_dense = dense_optimizer(model, job.spec.training, tables_path=TABLES_PATH)
    optimizer = StepOptimizer(model, of_dense, None, job.spec.training, step=0)
    size = data.global_batch_size
    positions = range(0, job.spec.training.epochs * data.num_training - size + 1, size)
    for batch in data.training(positions, process.device):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(*batch.inputs).float(), batch.labels)
        torch.autograd.backward(loss)
        optimizer.step()
    model.eval()
    evaluation = Evaluation(process.group)
    if codecs is not None:
        codecs.switch(on=False)
    with torch.no_grad():
        for batch in data.validation(process.device):
            evaluation.add(model(*batch.inputs).float()[: batch.num_real], batch.labels[: batch.num_real])
    return evaluation.compute()


def rank(data_dir: Path, out: Path, seeds: int) -> None:
    """Train all pairs on this rank; rank 0 appends each training to a file."""
    launched = Launched.from_environment()
    first = job_of("MovieLens-100K", 0)
    process = start_process(first, plan_of(first, EXACT), launched, "cpu", nccl_log_folder=out.parent)
    for seed in range(seeds):
        for data in EPOCHS:
            for kind in (WireType.FP32, *KINDS):
                job, types = job_of(data, seed), WireTypes(forward=kind, backward=kind)
                metrics = trained(job, types, process, data_dir)
                if process.is_first:
                    entry: dict[str, object] = {"data": data, "kind": kind.value, "seed": seed}
                    entry |= {"entropy": metrics["normalized_entropy"], "auc": metrics["auc"]}
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(entry) + "\n")


def lines_of(found: Sequence[Trained]) -> list[str]:
    """Return the table of pairs."""
    by_key = {(each.data, each.kind, each.seed): each for each in found}
    lines = [
        "# Normalized entropy with narrow types on the wire",
        "",
        (
            "The model of `examples/02-movielens.yaml` (64 columns), two processes with gloo, tables whole on them in "
            "turn, 512 samples each, no pipeline. MovieLens-100K for two epochs, 100,000 synthetic samples with a "
            "planted signal for one. A pair of trainings has equal seeds; both directions have the type; evaluations "
            "are exact. FP16 gradients are scaled by 512. Below 0: narrow types ended with the lower entropy."
        ),
        "",
        "| data | type | pairs | entropy exact | change: mean, least, largest | standard error of the mean |",
        "|---|---|---|---|---|---|",
    ]
    for data in EPOCHS:
        for kind in KINDS:
            seeds = [each.seed for each in found if (each.data, each.kind) == (data, kind.value)]
            pairs = [(by_key[data, "FP32", seed].entropy, by_key[data, kind.value, seed].entropy) for seed in seeds]
            if not pairs:
                continue
            changes = [narrow - exact for exact, narrow in pairs]
            error = stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
            exact = [one for one, _ in pairs]
            lines.append(
                f"| {data} | {kind.value} | {len(pairs)} | {mean(exact):.4f} ({min(exact):.4f} to {max(exact):.4f}) | "
                f"{mean(changes):+.5f}, {min(changes):+.5f}, {max(changes):+.5f} | {error:.5f} |"
            )
    return lines


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder dataset_example of the package recbole")
    parser.add_argument("--seeds", type=int, default=5, help="pairs of each type and data")
    parser.add_argument("--rank-out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_out is not None:
        rank(options.data, options.rank_out, options.seeds)
        sys.stdout.flush()
        os._exit(0)  # as the trainer ends
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "trained.jsonl"
        launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node"]
        command = [*launcher, str(WORLD_SIZE), "-m", "benchmarks.narrow_types", str(options.data)]
        command += ["--seeds", str(options.seeds), "--rank-out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - ours
        found = [Trained(**json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]
    print(write_result("narrow-types", lines_of(found), packages=("torch", "torchrec", "fbgemm-gpu-cpu")))


if __name__ == "__main__":
    main()
