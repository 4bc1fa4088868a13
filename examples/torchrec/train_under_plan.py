"""A training script of your own that runs under a plan of NeuroShard: one process of a torchrun.

    torchrun --standalone --nproc-per-node 2 train_under_plan.py plan.json

Rank 0 writes step-report.json next to the plan; docs/guides/bring-your-own-trainer.md has the steps.
"""  # noqa: INP001 - a script, not a package

import csv
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_trainer import StepReporter, prove_sharding, read_plan, sharding_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 64  # of each rank and step
STEPS = 3


class Model(torch.nn.Module):
    """A few tables and one dense layer. The tables' path in the model is ``tables``, as the adapter takes it."""

    def __init__(self, configs: list[EmbeddingBagConfig]) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = torch.nn.Linear(sum(config.embedding_dim for config in configs), 1)
        self.names = [config.name for config in configs]

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return one logit per sample."""
        pooled = self.tables(lookups).to_dict()  # by name: a sharded collection returns its keys in another order
        return self.dense(torch.cat([pooled[name] for name in self.names], dim=1)).squeeze(1)


def main(plan_file: Path) -> None:
    """Train a few steps."""
    dist.init_process_group("gloo")  # nccl on GPUs
    configs = read_configs(Path(__file__).with_name("tables.csv"))
    plan = read_plan(plan_file, world_size=dist.get_world_size())
    model = DistributedModelParallel(
        Model(configs),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),  # torch.device("cuda", local_rank) on GPUs
        plan=sharding_plan(plan, module_path="tables", compute_device="cpu"),  # "cuda" on GPUs
        sharders=[
            EmbeddingBagCollectionSharder(
                fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
            )
        ],
    )
    prove_sharding(model, plan)
    dense = [weight for name, weight in model.named_parameters() if "tables" not in name]
    dense_optimizer = torch.optim.SGD(dense, lr=0.1)  # the tables' optimizer is fused into their backward pass
    torch.manual_seed(dist.get_rank())
    batches = [(random_batch(configs), torch.randint(2, (SAMPLES,)).float())] * STEPS
    reporter = StepReporter(model, plan_file, write=plan_file.with_name("step-report.json"))
    for step, (lookups, labels) in enumerate(reporter.steps(batches)):
        dense_optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(lookups), labels)
        loss.backward()
        dense_optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)  # noqa: T201 - a script
    dist.destroy_process_group()


def read_configs(tables_file: Path) -> list[EmbeddingBagConfig]:
    """Return the tables that the plan was made for."""
    with tables_file.open(newline="") as lines:
        return [
            EmbeddingBagConfig(
                name=row["name"],
                num_embeddings=int(row["num_embeddings"]),
                embedding_dim=int(row["embedding_dim"]),
                feature_names=[row["name"]],
            )
            for row in csv.DictReader(lines)
        ]


def random_batch(configs: list[EmbeddingBagConfig]) -> KeyedJaggedTensor:
    """Return two lookups per sample and table."""
    values = [torch.randint(config.num_embeddings, (2 * SAMPLES,)) for config in configs]
    lengths = torch.full((len(configs) * SAMPLES,), 2)
    return KeyedJaggedTensor(keys=[config.name for config in configs], values=torch.cat(values), lengths=lengths)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
