"""A TorchRec script with NeuroShard's planner in place of TorchRec's: one process of a torchrun.

    torchrun --standalone --nproc-per-node 2 one_line.py

The plan is for two H100; the training here is on the CPU.
"""  # noqa: INP001 - a script, not a package

import torch
import torch.distributed as dist
from neuroshard_torchrec import NeuroShardPlanner
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 64  # of each rank and step
STEPS = 3
TABLES = {"user": (20_000, 64), "item": (5_000, 64), "country": (250, 16)}  # rows and columns


class Model(torch.nn.Module):
    """A few tables and one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=columns, feature_names=[name])
            for name, (rows, columns) in TABLES.items()
        ]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = torch.nn.Linear(sum(columns for _, columns in TABLES.values()), 1)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return one logit per sample."""
        pooled = self.tables(lookups).to_dict()
        logits: torch.Tensor = self.dense(torch.cat([pooled[name] for name in TABLES], dim=1))
        return logits.squeeze(1)


def main() -> None:
    """Plan, shard, and train a few steps."""
    dist.init_process_group("gloo")  # nccl on GPUs
    torch.manual_seed(0)  # equal weights in each run
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")  # "cuda" on GPUs
    model, sharders = Model(), [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})]

    # The one line: in place of TorchRec's EmbeddingShardingPlanner with this topology and batch size.
    planner = NeuroShardPlanner(topology, batch_size=8192, device_type="h100-80gb", sample_batches=random_batch(seed=9))

    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    if dist.get_rank() == 0:
        report(planner)
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    for step in range(STEPS):
        dense.zero_grad()
        logits = sharded(random_batch(seed=step * dist.get_world_size() + dist.get_rank()))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        loss.backward()  # type: ignore[no-untyped-call] # torch's
        dense.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)  # noqa: T201 - a script
    dist.destroy_process_group()


def report(planner: NeuroShardPlanner) -> None:
    """Print the plan's predicted cost, and the place of each table."""
    plan = planner.last_plan
    assert plan is not None, "a plan was made"
    best = min((each.total_ms, each.algorithm) for each in plan.baselines if each.total_ms is not None)
    print(f"predicted {plan.predicted.total_ms:.3f} ms; best baseline {best[0]:.3f} ms ({best[1]})")  # noqa: T201
    for table in plan.tables:
        devices = ", ".join(str(shard.device) for shard in table.shards)
        print(f"{table.name}: {table.sharding_type} on device {devices}")  # noqa: T201


def random_batch(*, seed: int) -> KeyedJaggedTensor:
    """Return a lookup of the user and the country, and eight of items, per sample."""
    random = torch.Generator().manual_seed(seed)
    lengths = {"user": 1, "item": 8, "country": 1}
    values = [torch.randint(TABLES[name][0], (count * SAMPLES,), generator=random) for name, count in lengths.items()]
    counts = [torch.full((SAMPLES,), count, dtype=torch.int32) for count in lengths.values()]
    return KeyedJaggedTensor(keys=list(TABLES), values=torch.cat(values), lengths=torch.cat(counts))


if __name__ == "__main__":
    main()
