"""One of several ranks: trains one step under each plan and holds it against the unsharded model.

Arguments: plan files. Exits with an error where logits differ before or after the step.
"""

import logging
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.model import Architecture, Model
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import read_plan, sharding_plan
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data
from support.trainer.trainer_models import random_samples
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

LEARNING_RATE = 0.5
SAMPLES = 16  # of each rank
CPU = torch.device("cpu")


def main(*files: str) -> None:
    """Check every file's plan, with either architecture."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        for index, file in enumerate(files):
            check(Path(file), list(Architecture)[index % 2])


def check(file: Path, architecture: Architecture) -> None:
    """Compare logits, and logits after one step, of the sharded and the unsharded model."""
    plan = read_plan(file, world_size=dist.get_world_size(), tables=TABLES)
    settings = validated(Model, {**job_data()["spec"]["model"], "architecture": architecture}, where="spec.model")
    torch.manual_seed(0)
    plain = RecommendationModel(settings, TABLES)
    plain.tables = plain.tables.to_empty(device="cpu")
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    world = dist.group.WORLD
    assert world is not None
    sharded = DistributedModelParallel(
        RecommendationModel(settings, TABLES),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(Optimizer.SGD, learning_rate=LEARNING_RATE, device=CPU)],
    )
    prove_sharding(sharded, plan)
    copy_weights(sharded, plain.state_dict())
    batches = [random_samples(seed, SAMPLES, TABLES) for seed in range(dist.get_world_size())]
    dense, lookups, labels = batches[dist.get_rank()]
    before = sharded(dense, lookups)
    torch.testing.assert_close(before, plain(dense, lookups))
    torch.autograd.backward(binary_cross_entropy_with_logits(before, labels))
    losses = [binary_cross_entropy_with_logits(plain(dense, lookups), labels) for dense, lookups, labels in batches]
    torch.autograd.backward(torch.stack(losses).mean())  # gradients of the sharded model are means over the ranks
    with torch.no_grad():
        for name, weight in sharded.named_parameters():
            if not name.startswith(f"{TABLES_PATH}."):  # the tables' optimizer has stepped in their backward pass
                descend(weight)
        for weight in plain.parameters():
            descend(weight)
    after = sharded(dense, lookups)
    torch.testing.assert_close(after, plain(dense, lookups), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after, before, rtol=1e-2), "the step changed nothing that could be compared"


def descend(weight: torch.Tensor) -> None:
    """Take one step of SGD."""
    assert weight.grad is not None
    weight.sub_(weight.grad, alpha=LEARNING_RATE)


def copy_weights(sharded: DistributedModelParallel, weights: dict[str, torch.Tensor]) -> None:
    """Write the unsharded model's weights into the sharded one, each rank its slices of the tables."""
    for name, tensor in sharded.state_dict().items():
        if not isinstance(tensor, ShardedTensor):
            tensor.copy_(weights[name])
            continue
        for shard in tensor.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])
