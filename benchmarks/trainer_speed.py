"""Steps per second of this trainer's loop next to TorchRec's public DLRM script: same model, plan, data, and processes.

python -m benchmarks.trainer_speed
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import DenseOptimizer, Training
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder
from neuroshard_trainer.measure.step_reporter import StepReporter
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.pipeline import BatchPipeline
from neuroshard_trainer.ranks.precision import autocast
from neuroshard_trainer.ranks.stopping import StepVote
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import LambdaLR
from torchrec.datasets.utils import Batch as TorchRecBatch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, measured_blocks, timed
from benchmarks.plan_times import spread
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import BATCH_SIZE, CPU, WORLD_SIZE, start_process

WIDTH = 64  # of all tables, as TorchRec's DLRM wants it
NUM_DENSE = 13
DENSE_SIZES, OVER_SIZES = (128,), (128, 64)
TABLES = TableSet(
    name="trainer-speed",
    tables=tuple(
        Table(name=f"t{index}", num_embeddings=rows, embedding_dim=WIDTH, pooling_factor=pooling)
        for index, (rows, pooling) in enumerate(
            zip(
                (
                    400_000,
                    200_000,
                    150_000,
                    100_000,
                    50_000,
                    50_000,
                    20_000,
                    20_000,
                    10_000,
                    5_000,
                    1_000,
                    1_000,
                    300,
                    50,
                ),
                (12, 4, 10, 1, 2, 20, 3, 1, 1, 8, 6, 1, 1, 1),
                strict=True,
            )
        )
    ),
)
NUM_BATCHES, STEPS, BLOCKS = 8, 15, 8
RATE = 0.01
PUBLIC_MODULE = "model.sparse_arch.embedding_bag_collection"

HEAD = """# Steps per second next to TorchRec's DLRM script

Machine: {machine}, two cores; load average at the end: {load:.1f}. Where other work runs at the same time,
the two loops take turns step by step in the same two processes: what disturbs one disturbs the other. Processor time
is what that disturbs least. {num_tables} tables of {width} columns, {batch} samples per process, two processes over
gloo, each on a core with one thread; rank 0's numbers, medians and quartiles of means over {blocks} blocks of {steps}
steps. The same plan, the same batches in memory, row-wise Adagrad in the tables and SGD in the dense part. The public
script's loop is that of torchrec/dlrm (`dlrm_main.py`), written for this benchmark: `DLRMTrain` under
`TrainPipelineSparseDist`, with its optimizer of tables and dense part and its scheduler's step, and without its
progress bar. This trainer's loop is the same pipeline with what the trainer adds: the step reporter (a
report each 100 steps), the vote on a stop, and the sum of losses. Reading of data is part of neither."""


def main() -> None:
    """Measure and write the result; or, given a folder, be one of the processes that train."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    print(write_result("trainer-speed", report(measured_blocks(Path(__file__), TABLES)), hardware=hardware_slug()))


def train(folder: Path) -> None:
    """Take steps of both loops in turn."""
    start_process()
    plan = Plan.read(folder / PLAN_FILE)
    data = batches()
    loops = (public_loop(plan, data), own_loop(plan, data, folder))
    blocks = []
    for _ in range(BLOCKS + 1):  # the first warms up
        times = [[timed(partial(_advance, loop), data[0]) for loop in loops] for _ in range(STEPS)]
        blocks.append(np.array(times).mean(axis=0).tolist())
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(blocks[1:]))
    dist.barrier()
    os._exit(0)  # both pipelines still have batches on their way


def _advance(loop: Iterator[torch.Tensor], _: Batch) -> None:
    """Take a step of a loop, which has its batches from elsewhere."""
    next(loop)


def public_loop(plan: Plan, data: list[Batch]) -> Iterator[torch.Tensor]:
    """Train as TorchRec's DLRM script does, a step each time."""
    tables = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=[table.name],
        )
        for table in TABLES.tables
    ]
    torch.manual_seed(0)
    dlrm = DLRM(
        EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        NUM_DENSE,
        [*DENSE_SIZES, WIDTH],
        [*OVER_SIZES, 1],
    )
    model = sharded(DLRMTrain(dlrm), plan, module_path=PUBLIC_MODULE)
    dense = {name: weight for name, weight in model.named_parameters() if PUBLIC_MODULE not in name}
    dense_optimizer = KeyedOptimizerWrapper(dense, lambda weights: torch.optim.SGD(weights, lr=RATE))
    optimizer = CombinedOptimizer([model.fused_optimizer, dense_optimizer])
    scheduler = LambdaLR(optimizer, lambda _: 1.0)  # the script's own, which neither warms up nor decays by default
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU)
    converted = [TorchRecBatch(each.dense, each.lookups, each.labels.int()) for each in data]
    iterator = (converted[index % NUM_BATCHES] for index in range(10**9))
    while True:
        losses = pipeline.progress(iterator)
        scheduler.step()
        yield losses


def own_loop(plan: Plan, data: list[Batch], folder: Path) -> Iterator[torch.Tensor]:
    """Train as this project's trainer does, a step each time."""
    training = Training(
        dense_optimizer=DenseOptimizer.SGD, dense_learning_rate=str(RATE), embedding_learning_rate=str(RATE)
    )
    settings = Model.model_construct(
        num_dense_features=NUM_DENSE, dense_arch_layer_sizes=DENSE_SIZES, over_arch_layer_sizes=OVER_SIZES
    )
    torch.manual_seed(0)
    model = sharded(RecommendationModel(settings, TABLES.tables), plan, module_path=TABLES_PATH)
    dense = dense_optimizer(model, training, tables_path=TABLES_PATH)
    optimizer = StepOptimizer(model, dense, None, training, step=0)

    def loss_of(batch: Batch) -> torch.Tensor:
        with autocast(training.precision, CPU):
            logits = model(batch.dense, batch.lookups)
        return binary_cross_entropy_with_logits(logits.float(), batch.labels)

    pipeline = BatchPipeline(model, optimizer, loss_of, CPU)
    reporter = StepReporter(
        model, folder / PLAN_FILE, write=folder / "step-report.json", samples_per_step=WORLD_SIZE * BATCH_SIZE
    )
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    vote, loss_sum = StepVote(group), torch.zeros(())
    iterator = (data[index % NUM_BATCHES] for index in range(10**9))
    for loss in reporter.pipelined(iterator, pipeline.progress):
        loss_sum += loss
        vote.wish(save_is_due=False)
        reporter.end_step()
        yield loss


def sharded(model: torch.nn.Module, plan: Plan, *, module_path: str) -> DistributedModelParallel:
    """Return a model under the plan."""
    world = dist.group.WORLD
    assert world is not None
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path=module_path, compute_device="cpu"),
        sharders=[embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=RATE, device=CPU)],
    )


def batches() -> list[Batch]:
    """Return this rank's batches, of uniformly drawn rows."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    made = []
    for _ in range(NUM_BATCHES):
        lengths = [torch.full((BATCH_SIZE,), int(table.pooling_factor)) for table in TABLES.tables]
        values = [
            torch.randint(table.num_embeddings, (int(length.sum()),), generator=generator)
            for table, length in zip(TABLES.tables, lengths, strict=True)
        ]
        lookups = KeyedJaggedTensor(
            keys=[table.name for table in TABLES.tables], values=torch.cat(values), lengths=torch.cat(lengths).int()
        )
        labels = torch.randint(2, (BATCH_SIZE,), generator=generator).float()
        dense = torch.randn(BATCH_SIZE, NUM_DENSE, generator=generator)
        made.append(Batch(dense=dense, lookups=lookups, labels=labels, num_real=BATCH_SIZE))
    return made


def report(blocks: list[list[list[float]]]) -> list[str]:
    """Return the lines of the result."""
    head = HEAD.format(
        machine=cpu_model(),
        load=os.getloadavg()[0],
        num_tables=len(TABLES.tables),
        width=WIDTH,
        batch=BATCH_SIZE,
        blocks=BLOCKS,
        steps=STEPS,
    )
    lines = [
        *head.splitlines(),
        "",
        "| | public script, ms | this trainer, ms | steps per second, ratio |",
        "|---|---|---|---|",
    ]
    ratios = {}
    for index, measure in enumerate(("by the clock", "processor time")):
        public, own = ([block[loop][index] for block in blocks] for loop in (0, 1))
        ratios[measure] = [a / b for a, b in zip(public, own, strict=True)]
        lines.append(f"| a step, {measure} | {spread(public)} | {spread(own)} | {spread(ratios[measure])} |")
    found = median(ratios["by the clock"])
    return [
        *lines,
        "",
        f"This trainer takes {found:.3f} times the steps per second of the public script. The aim is 1.0.",
    ]


if __name__ == "__main__":
    main()
