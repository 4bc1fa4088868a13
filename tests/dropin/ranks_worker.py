"""One of several ranks: plans a model with both planners, trains it under each, and compares.

Arguments: none. Exits with an error where the plan's shards, logits or updated weights differ from TorchRec's own, or
where an error of one rank is not the error of all.
"""

import logging
import re

import pytest
import torch
import torch.distributed as dist
from dropin_models import TwoTowers, batch, config
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from rank_server import joined_ranks
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

CPU = torch.device("cpu")
SAMPLES = 8  # of each rank


def main() -> None:
    """Compare the plans, then the errors."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        compare()


def compare() -> None:
    """Train under both plans, and fail on one rank."""
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    ours = NeuroShardPlanner(topology, SAMPLES, device_type="h100-80gb")
    columns = {
        name: ParameterConstraints(sharding_types=["table_wise", "column_wise"]) for name in ("id", "country", "tags")
    }
    theirs = EmbeddingShardingPlanner(topology=topology, batch_size=SAMPLES, constraints=columns)
    seen = [trained(planner) for planner in (ours, theirs)]
    for got, expected in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    plans = [""] * dist.get_world_size()
    assert ours.last_plan is not None
    dist.all_gather_object(plans, ours.last_plan.to_json())
    assert len(set(plans)) == 1
    require_one_error(ours)


def trained(planner: NeuroShardPlanner | EmbeddingShardingPlanner) -> list[torch.Tensor]:
    """Return the logits of two steps of SGD under a planner's plan."""
    plain = TwoTowers(CPU)
    sharders = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.5})]
    plan: ShardingPlan = planner.collective_plan(plain, sharders, dist.group.WORLD)
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        plain,
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=plan,
        sharders=sharders,
    )
    fill(model)
    dense = torch.optim.SGD(plain_dense(model), lr=0.5)
    logits = []
    for step in range(2):
        seed = 2 * (step * dist.get_world_size() + dist.get_rank())
        users = batch({"id_id": 2, "country_id": 3}, samples=SAMPLES, seed=seed)
        items = batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=SAMPLES, seed=seed + 1)
        found = model(users, items)
        logits.append(found.detach())
        dense.zero_grad()
        found.square().mean().backward()
        dense.step()
    return logits


def fill(model: DistributedModelParallel) -> None:
    """Give every weight a value of its own, which depends on its row and column in the whole tensor alone."""
    for found in model.state_dict().values():
        if isinstance(found, ShardedTensor):
            for shard in found.local_shards():
                fill_part(shard.tensor, tuple(shard.metadata.shard_offsets))
        else:
            fill_part(found, (0, 0))


def fill_part(part: torch.Tensor, first: tuple[int, ...]) -> None:
    """Fill a part of a tensor that begins at this row and column."""
    index = torch.meshgrid(*(torch.arange(size) for size in part.shape), indexing="ij")
    angle = torch.zeros_like(part)
    for axis, start, step in zip(index, first, (0.7, 1.3), strict=False):
        angle += (axis + start) * step
    part.copy_(torch.sin(angle))


def plain_dense(model: DistributedModelParallel) -> list[nn.Parameter]:
    """Return the parameters that are not the tables'."""
    return [weight for name, weight in model.named_parameters() if "dense" in name]


def require_one_error(planner: NeuroShardPlanner) -> None:
    """Give ranks different modules, and the last one none with tables: all ranks must raise the same."""
    last = dist.get_world_size() - 1
    rows = 10 + dist.get_rank()
    cases = {
        "rank 1 and rank 0 differ in table 't'": EmbeddingBagCollection(tables=[config("t", rows=rows)]),
        f"rank {last}: Linear has no": nn.Linear(1, 1)
        if dist.get_rank() == last
        else EmbeddingBagCollection(tables=[config("t")]),
    }
    for message, module in cases.items():
        with pytest.raises(DropInError, match=re.escape(message)):
            planner.collective_plan(module)
