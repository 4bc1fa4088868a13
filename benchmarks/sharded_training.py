"""A small model of many tables under a plan, on one of two processes; for the benchmarks of real training steps."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.job.model import Model
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.communication.codecs import codecs_of
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.model.grouped_model import TableCollections, planned_model
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

WORLD_SIZE = 2
BATCH_SIZE = 1024  # of each process
NUM_DENSE = 4
NUM_BATCHES = 8  # that the steps go through in turn
CPU = torch.device("cpu")
BY_COLUMNS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Of the plans: these loops have no optimizer for copied tables, which no kernel updates."""


def _model(name: str, tables: Sequence[tuple[int, int, float]]) -> TableSet:
    return TableSet(
        name=name,
        tables=tuple(
            Table(name=f"{name}{index}", num_embeddings=rows, embedding_dim=columns, pooling_factor=pooling)
            for index, (rows, columns, pooling) in enumerate(tables)
        ),
    )


MIXED = _model(
    "mixed",
    (
        (400_000, 64, 12.0),
        (200_000, 128, 4.0),
        (150_000, 32, 10.0),
        (100_000, 64, 1.0),
        (50_000, 128, 2.0),
        (50_000, 16, 20.0),
        (20_000, 64, 3.0),
        (20_000, 32, 1.0),
        (10_000, 128, 1.0),
        (5_000, 16, 8.0),
        (1_000, 64, 6.0),
        (1_000, 32, 1.0),
        (300, 16, 1.0),
        (50, 8, 1.0),
    ),
)
ONE_HOT = _model(
    "onehot",
    tuple(
        (rows, 64, 1.0)
        for rows in (
            *(600_000, 500_000, 300_000, 250_000, 150_000, 90_000, 60_000, 40_000, 12_000, 10_000, 8_000, 6_000, 5_000),
            *(3_000, 2_000, 1_500, 1_000, 600, 500, 300, 100, 60, 30, 20, 10, 4),
        )
    ),
)
MULTI_HOT = _model(
    "multihot",
    (
        (1_000_000, 16, 15.0),
        (300_000, 96, 5.0),
        (250_000, 32, 20.0),
        (120_000, 192, 1.0),
        (60_000, 64, 8.0),
        (30_000, 256, 1.0),
        (4_000, 48, 12.0),
        (800, 128, 3.0),
    ),
)
MODELS = (MIXED, ONE_HOT, MULTI_HOT)
"""Tables of several widths and pooling factors; a Criteo-like model of one lookup each; few tables of many lookups."""
SMALL_MODEL: Mapping[str, Any] = {"dense_arch_layer_sizes": (32,), "over_arch_layer_sizes": (32,)}
"""Settings of a dense part that takes little of a step."""


class ShardedTraining:
    """One model under one plan, trained without a look at how well.

    Args:
        plan: placement of the tables, and the form of groups without repeats.
        tables: of the model.
        num_dense: dense features of a sample.
        model: fields of the settings of its dense part.
    """

    def __init__(
        self,
        plan: Plan,
        tables: TableSet = MIXED,
        *,
        num_dense: int = NUM_DENSE,
        model: Mapping[str, Any] = SMALL_MODEL,
    ) -> None:
        world = dist.group.WORLD
        assert world is not None
        torch.manual_seed(0)
        settings = Model.model_construct(num_dense_features=num_dense, **model)
        self.model = DistributedModelParallel(
            planned_model(settings, plan) if plan.deduplication else RecommendationModel(settings, tables.tables),
            env=ShardingEnv.from_process_group(world),
            device=CPU,
            plan=TableCollections.of(plan).divided(sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu")),
            sharders=[
                embedding_sharder(
                    Optimizer.ROWWISE_ADAGRAD, learning_rate=0.01, device=CPU, codecs=codecs_of(plan, CPU)
                )
            ],
        )
        prove_sharding(self.model, plan)
        dense = [weight for name, weight in self.model.named_parameters() if not name.startswith(f"{TABLES_PATH}.")]
        self._optimizer = torch.optim.SGD(dense, lr=0.01)

    def step(self, batch: Batch) -> None:
        """Train on a batch."""
        self._optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self.model(*batch.inputs), batch.labels)
        torch.autograd.backward(loss)
        self._optimizer.step()


def start_process() -> None:
    """Meet the other process, on a core and a thread of its own and with the profiler's treatment of memory."""
    keep_freed_memory()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def batches(batch_size: int = BATCH_SIZE, tables: TableSet = MIXED) -> list[Batch]:
    """Return this rank's batches."""
    features = features_of(tables.tables)
    count = NUM_BATCHES * WORLD_SIZE * batch_size
    source = SyntheticSource(tables, features, num_dense=NUM_DENSE, num_samples=count, seed=0)
    order = SampleOrder(source.block_sizes, validation_percent=0, seed=0, shuffle=False)
    maker = BatchMaker(source, order, features, rank=dist.get_rank(), world_size=WORLD_SIZE, batch_size=batch_size)
    keys = [feature.name for feature in features]
    return [Batch.of(maker.training(index * maker.global_batch_size), keys) for index in range(NUM_BATCHES)]


def measured_by_ranks(script: Path) -> Any:  # noqa: ANN401 - what the script measures
    """Run a script with ``--measure FILE`` on two processes of one thread, and return the JSON in the file."""
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.json"
        command = [sys.executable, *torchrun(script, "--measure", str(found))]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - a benchmark's own
        return json.loads(found.read_text(encoding="utf-8"))


def torchrun(script: Path, *arguments: str, count: int = WORLD_SIZE) -> list[str]:
    """Return the command that runs a script on the two processes, or on another number of them."""
    module = f"benchmarks.{script.stem}"
    return [
        "-m",
        "neuroshard_trainer.launch",
        "--standalone",
        "--nproc-per-node",
        str(count),
        "-m",
        module,
        *arguments,
    ]
