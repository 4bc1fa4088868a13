"""One of two ranks: counts the bytes that torch's allocator gives out at most in a step of TorchRec's pipelines."""

import gc
import json
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support import builders
from support.trainer.rank_server import joined_ranks
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

# By its file: the ranks' server has another package of that name before it on the path.
ALLOCATED = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "allocated_memory.py"))
CPU = torch.device("cpu")
NUM_TABLES = 8
NUM_ROWS = 100
NUM_STEPS = 4
PIPELINES = {Pipeline.NONE: TrainPipelineBase, Pipeline.SPARSE_DIST: TrainPipelineSparseDist}
CASES = [  # columns, samples, lookups of each
    (256, 2048, 1),
    (64, 4096, 32),
    (4, 2048, 100),
]


@dataclass
class _Batch(Pipelineable):  # type: ignore[misc] # torchrec, untyped
    lookups: KeyedJaggedTensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "_Batch":  # noqa: ARG002, FBT001, FBT002 - torch's
        """Return a copy, as there is one on a GPU."""
        lookups = self.lookups
        copied = KeyedJaggedTensor(
            keys=lookups.keys(), values=lookups.values().clone(), lengths=lookups.lengths().clone()
        )
        return _Batch(copied, self.labels.clone())

    def record_stream(self, stream: torch.Stream) -> None:
        """A CPU has no streams."""

    def pin_memory(self) -> "_Batch":
        """Return the batch."""
        return self


class _Model(nn.Module):
    """Tables and a loss that keeps nothing of their vectors."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=f"t{i}", num_embeddings=NUM_ROWS, embedding_dim=columns, feature_names=[f"t{i}"]
                )
                for i in range(NUM_TABLES)
            ],
        )
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and logits."""
        logits = self.tables(batch.lookups).values().sum(dim=1) * self.scale
        return ((logits - batch.labels) ** 2).mean(), logits.detach()


def main(folder: str) -> None:
    """Write the ledger's and the allocator's bytes of each pipeline and case, of rank 0."""
    torch.set_num_threads(1)
    with joined_ranks():
        ALLOCATED["count_on_all_threads"]()
        found = [
            {"pipeline": kind, "case": index, **_bytes(kind, *case)}
            for kind in PIPELINES
            for index, case in enumerate(CASES)
        ]
        if dist.get_rank() == 0:
            Path(folder, "found.json").write_text(json.dumps(found))


def _bytes(kind: Pipeline, columns: int, num_samples: int, num_lookups: int) -> dict[str, int]:
    members = tuple(
        builders.table(f"t{i}", num_embeddings=NUM_ROWS, embedding_dim=columns, pooling_factor=float(num_lookups))
        for i in range(NUM_TABLES)
    )
    on_cpu = builders.topology(2, device=builders.device_type(name="cpu-any"))
    request = builders.request(*members, topology=on_cpu, batch_size_per_device=num_samples, pipeline=kind)
    tables = tuple(
        TablePlacement(
            name=table.name,
            sharding_type=ShardingType.TABLE_WISE,
            shards=(Shard(device=i % 2, row_offset=0, num_rows=NUM_ROWS, column_offset=0, num_columns=columns),),
        )
        for i, table in enumerate(members)
    )
    memory = tables_memory(MemoryLedger(request), tables)[dist.get_rank()]
    resident = memory.weights_bytes + memory.optimizer_state_bytes
    plan = builders.plan(request, tables=tables)
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        _Model(columns),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path="tables", compute_device="cpu"),
        sharders=[EmbeddingBagCollectionSharder()],
    )
    optimizer = torch.optim.SGD([each for name, each in model.named_parameters() if "scale" in name], lr=0.1)
    pipeline = PIPELINES[kind](model, optimizer, CPU)
    batches = iter(list(_batches(num_samples, num_lookups)))
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.empty(1)  # its event tells what was allocated before
        for _ in range(NUM_STEPS):
            with record_function(ALLOCATED["STEP"]):
                pipeline.progress(batches)
    return {
        "counted": memory.used_bytes - memory.reserve_bytes - resident,
        "allocated": max(ALLOCATED["step_peaks"](profiler)[1:]),
    }


def _batches(num_samples: int, num_lookups: int) -> Iterator[_Batch]:
    count = NUM_TABLES * num_samples
    for _ in range(NUM_STEPS + 3):
        lookups = KeyedJaggedTensor(
            keys=[f"t{i}" for i in range(NUM_TABLES)],
            values=torch.randint(0, NUM_ROWS, (count * num_lookups,)),
            lengths=torch.full((count,), num_lookups, dtype=torch.int32),
        )
        yield _Batch(lookups, torch.zeros(num_samples))
